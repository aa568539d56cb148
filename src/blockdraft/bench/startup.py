"""From the command to the first token, in processes of their own, and the memory that takes.

Conventions of the report: seconds run from starting the process until the first byte of its
answer (``--help``: until its end) and are medians over repeats. A first run, which is not counted,
brings files into the system's cache and compiles the tokenizer. Peak memory is the most resident
bytes over all runs, as the system counts them. Knows ``blockdraft run`` by its flags only.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from blockdraft.bench.limits import Machine, describe_machine
from blockdraft.bench.report import Notify, format_table, median
from blockdraft.bench.subject import Subject
from blockdraft.config import ModelConfig
from blockdraft.errors import ConfigError
from blockdraft.kv_cache import PAGE_POSITIONS, KVLayout
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import packed_bytes

__all__ = ["STARTUP_LIMITS", "Quantity", "StartupLimits", "StartupReport", "bench_startup"]

PROMPT = "Write a Python function that reverses a list."  # with any chat template one K/V page
HELP_LIMIT_S = 0.3
WEIGHTS_LIMIT = 1.02

_MODULE = (sys.executable, "-P", "-m", "blockdraft")  # -P: not what lies in the current folder


@dataclass(frozen=True, slots=True)
class StartupLimits:
    """What we promise for one model.

    Attributes:
        first_token_s: From the command to the first token, seconds.
        beside_bytes: Peak memory beside packed weights and K/V.
    """

    first_token_s: float
    beside_bytes: int


# By architecture and width, as the floors of `bench.peers`.
STARTUP_LIMITS = {
    ("llama", 576): StartupLimits(1.0, 200_000_000),  # SmolLM2-135M
    ("qwen2", 896): StartupLimits(1.8, 200_000_000),  # Qwen2.5-Coder-0.5B
    ("gemma3", 640): StartupLimits(2.2, 600_000_000),  # Gemma-3-270M: 262,144 tokens
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """One measured number.

    Attributes:
        name: What it is, with its unit.
        value: What was measured.
        limit: The most we promise, or None.
    """

    name: str
    value: float
    limit: float | None

    @property
    def is_met(self) -> bool:
        """Whether the limit, if there is one, is kept."""
        return self.limit is None or self.value <= self.limit


@dataclass(frozen=True, slots=True)
class StartupReport:
    """What `bench_startup` measured.

    Attributes:
        machine: Where.
        model: Name of the model.
        threads: Threads of the native core.
        repeats: Runs that the medians are over.
        help_s: ``blockdraft --help``, seconds.
        first_token_s: ``blockdraft run`` to the first token, seconds.
        peak_rss_bytes: Peak memory of the runs.
        weight_bytes: Packed weights.
        tensor_bytes: The same weights in the file.
        kv_bytes: K/V pages that the prompt takes.
        limits: What we promise for this model, or None.
    """

    machine: Machine
    model: str
    threads: int
    repeats: int
    help_s: float
    first_token_s: float
    peak_rss_bytes: int
    weight_bytes: int
    tensor_bytes: int
    kv_bytes: int
    limits: StartupLimits | None

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The numbers beside their limits."""
        first_token_s = peak_mb = None
        if self.limits is not None:
            first_token_s = self.limits.first_token_s
            peak_mb = (self.weight_bytes + self.kv_bytes + self.limits.beside_bytes) / 1e6
        weights = self.weight_bytes / self.tensor_bytes
        return (
            Quantity("--help, s", self.help_s, HELP_LIMIT_S),
            Quantity("first token, s", self.first_token_s, first_token_s),
            Quantity("packed weights over the file's", weights, WEIGHTS_LIMIT),
            Quantity("peak memory, MB", self.peak_rss_bytes / 1e6, peak_mb),
        )

    @property
    def is_met(self) -> bool:
        """Whether every limit is kept."""
        return all(quantity.is_met for quantity in self.quantities)

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        quantities = [asdict(one) | {"passed": one.is_met} for one in self.quantities]
        return asdict(self) | {"quantities": quantities, "passed": self.is_met}

    def to_text(self) -> str:
        """The report for people."""
        rows = [
            [
                one.name,
                f"{one.value:.2f}",
                "-" if one.limit is None else f"{one.limit:.2f}",
                "" if one.limit is None else "pass" if one.is_met else "FAIL",
            ]
            for one in self.quantities
        ]
        return (
            f"{self.model}, {self.threads} threads, {self.machine.cpu}; "
            f"median of {self.repeats}, file in the system's cache\n"
            f"{format_table(['start', 'measured', 'limit', ''], rows)}"
        )


def bench_startup(
    subject: Subject, *, repeats: int = 5, notify: Notify = lambda _: None
) -> StartupReport:
    """Measure how long a user waits for the first token, and the memory of that run.

    Args:
        subject: The model and its settings; its name in the report is all that is not passed on.
        repeats: Runs after the one that is not counted.
        notify: Told what is being measured.

    Raises:
        ConfigError: A run failed.
        FileFormatError: The model file is damaged.
        UnsupportedError: It asks for what we do not have.
    """
    with GGUFFile.open(subject.path) as file:
        config = read_model_config(file)
        weight_bytes, tensor_bytes = packed_bytes(file), file.tensor_bytes
    notify("--help")
    helps = [_time([*_MODULE, "--help"]) for _ in range(repeats + 1)][1:]
    flags = ["-m", str(subject.path), "-n", "1", "-t", f"{subject.num_threads}"]
    if subject.isa is not None:
        flags += ["--isa", subject.isa]
    runs = []
    for i in range(repeats + 1):
        notify(f"run {i} of {repeats}" if i else "warming up")
        runs.append(_time([*_MODULE, "run", PROMPT, *flags]))
    return StartupReport(
        machine=describe_machine(),
        model=subject.name,
        threads=subject.num_threads,
        repeats=repeats,
        help_s=median([run.total_s for run in helps]),
        first_token_s=median([run.first_byte_s for run in runs[1:]]),
        peak_rss_bytes=max(run.peak_rss_bytes for run in runs),
        weight_bytes=weight_bytes,
        tensor_bytes=tensor_bytes,
        kv_bytes=_prompt_kv_bytes(config),
        limits=STARTUP_LIMITS.get((config.architecture, config.hidden_size)),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One process: seconds to its first byte of output and to its end, and its peak memory."""

    first_byte_s: float
    total_s: float
    peak_rss_bytes: int


def _time(command: Sequence[str]) -> _Run:
    """Run ``command`` to its end.

    Raises:
        ConfigError: It exits with another code than 0.
    """
    pipe = subprocess.PIPE
    start = time.perf_counter()
    with subprocess.Popen(
        command, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    ) as process:
        out, err = _opened(process.stdout), _opened(process.stderr)
        out.read(1)
        first_byte_s = time.perf_counter() - start
        while out.read(1 << 16):
            pass
        errors = err.read()
        # What Popen waits with does not tell the memory.
        _, status, usage = os.wait4(process.pid, 0)
        total_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ConfigError(f"a run ended with code {process.returncode}: {(lines or ['-'])[-1]}")
    # A process counts what its parent had when it was started: that is less, we load no model.
    return _Run(first_byte_s, total_s, usage.ru_maxrss * 1024)


def _opened(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "it was asked for"
    return stream


def _prompt_kv_bytes(config: ModelConfig) -> int:
    """K/V memory of one page of positions."""
    return KVLayout.from_config(config).max_bytes(PAGE_POSITIONS, rows_per_pass=PAGE_POSITIONS)
