"""Plain decoding through the engine: tokens per second and where the time of a step goes.

Greedy, without stop tokens. The first token of a request belongs to its prompt and is not counted.
Conventions of the report: every rate is a median over repeats; ``outside_native_share`` is the
part of the engine's steps that was not spent in the native pass (picking the token counts as
outside, although it is native too).
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft.bench.limits import Limits, Machine, describe_machine, measure_limits, read_work
from blockdraft.bench.passes import draw_tokens
from blockdraft.bench.report import Notify, format_table, median
from blockdraft.bench.subject import Subject
from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request
from blockdraft.errors import CapacityError
from blockdraft.kv_cache import KVLayout
from blockdraft.models.target import TargetModel

__all__ = ["DecodeReport", "DecodeRun", "bench_decode", "decode_once", "new_engine"]

PROMPT_TOKENS = 32
PREDICTED_TOKENS = 64
LONG_CONTEXT = 4096

_BUSY_LIMIT_S = 300  # a busy process ends by itself, whatever happens to us
_BUSY_PROGRAM = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == int(sys.argv[3]):
    sum(range(100_000))
"""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """One kind of decoding.

    Attributes:
        name: What was measured.
        prompt_tokens: Tokens of each prompt.
        predicted_tokens: Tokens counted per sequence.
        sequences: Sequences decoded together.
        tokens_per_s: All sequences together.
        outside_native_share: Share of the steps outside the native pass.
    """

    name: str
    prompt_tokens: int
    predicted_tokens: int
    sequences: int
    tokens_per_s: float
    outside_native_share: float


@dataclass(frozen=True, slots=True)
class DecodeReport:
    """What `bench_decode` measured; ``runs[0]`` is the plain one, the others compare with it."""

    machine: Machine
    model: str
    threads: int
    isa: str
    runs: tuple[DecodeRun, ...]
    limits: Limits
    bandwidth_share: float

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        plain = self.runs[0]
        head = {
            "tokens_per_s": plain.tokens_per_s,
            "outside_native_share": plain.outside_native_share,
            "prompt_tokens": plain.prompt_tokens,
            "predicted_tokens": plain.predicted_tokens,
        }
        return head | asdict(self)

    def to_text(self) -> str:
        """The report for people."""
        plain = self.runs[0]
        rows = [
            [
                run.name,
                f"{run.prompt_tokens}",
                f"{run.sequences}",
                f"{run.tokens_per_s:.1f}",
                f"{run.tokens_per_s / plain.tokens_per_s:.2f}",
                f"{run.outside_native_share:.1%}",
            ]
            for run in self.runs
        ]
        header = ["decoding", "prompt", "sequences", "tokens/s", "x plain", "outside native"]
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu}\n"
            f"{format_table(header, rows)}\n"
            f"plain decoding reaches {self.bandwidth_share:.0%} of what "
            f"{self.limits.read_gb_per_s:.1f} GB/s allow"
        )


def bench_decode(
    subject: Subject,
    *,
    num_sequences: int = 1,
    busy_core: int | None = None,
    repeats: int = 5,
    notify: Notify = lambda _: None,
) -> DecodeReport:
    """Measure plain decoding after a short and a long prompt.

    Args:
        subject: The model and its settings.
        num_sequences: Above 1, so many sequences together are measured as well.
        busy_core: Core on which another process is kept busy in one more run; None leaves it out.
        repeats: Repeats of each run.
        notify: Told what is being measured.

    Raises:
        CapacityError: The model was not trained for so long a context.
    """
    limits = measure_limits(subject.num_threads)
    max_rows = max(512, num_sequences)
    target = subject.load(max_rows=max_rows)
    engine = new_engine(target, LONG_CONTEXT + PREDICTED_TOKENS + 1, num_sequences)

    def measure(
        name: str, prompt_tokens: int = PROMPT_TOKENS, sequences: int = 1, repeats: int = repeats
    ) -> DecodeRun:
        notify(name)
        results = [
            decode_once(engine, target, prompt_tokens, PREDICTED_TOKENS, sequences)
            for _ in range(repeats)
        ]
        return DecodeRun(
            name=name,
            prompt_tokens=prompt_tokens,
            predicted_tokens=PREDICTED_TOKENS,
            sequences=sequences,
            tokens_per_s=median([rate for rate, _ in results]),
            outside_native_share=median([share for _, share in results]),
        )

    decode_once(engine, target, PROMPT_TOKENS, 8, num_sequences)  # touches memory, wakes threads
    # Reading a long prompt takes far longer than the tokens after it: few repeats.
    runs = [measure("plain"), measure("long context", LONG_CONTEXT, repeats=min(repeats, 3))]
    if num_sequences > 1:
        runs.append(measure("many sequences", sequences=num_sequences))
    if busy_core is not None:
        with _busy_process(busy_core):
            runs.append(measure(f"core {busy_core} busy"))
    limits = limits.or_better(measure_limits(subject.num_threads))
    read_gb_per_s = read_work(subject.path).weight_bytes * runs[0].tokens_per_s / 1e9
    return DecodeReport(
        machine=describe_machine(),
        model=subject.name,
        threads=subject.num_threads,
        isa=target.isa,
        runs=tuple(runs),
        limits=limits,
        bandwidth_share=read_gb_per_s / limits.read_gb_per_s,
    )


def new_engine(target: TargetModel, max_positions: int, num_sequences: int = 1) -> Engine:
    """An engine with K/V memory for one sequence of ``max_positions`` and the others' share.

    Raises:
        CapacityError: The model was trained for fewer positions.
    """
    trained = target.config.context_length
    if max_positions > trained:
        raise CapacityError(f"{max_positions} positions exceed the model's context of {trained}")
    layout = KVLayout.from_config(target.config)
    short = PROMPT_TOKENS + PREDICTED_TOKENS + 1
    one = layout.max_bytes(max_positions, rows_per_pass=target.max_rows)
    many = num_sequences * layout.max_bytes(short, rows_per_pass=target.max_rows)
    return Engine(target, max_cache_bytes=2 * max(one, many))


def decode_once(
    engine: Engine, target: TargetModel, prompt_tokens: int, predicted_tokens: int, sequences: int
) -> tuple[float, float]:
    """Tokens per second and the share outside the native pass of one greedy run.

    Counts ``predicted_tokens`` steps after every sequence has its first token.
    """
    tokens = draw_tokens(prompt_tokens + sequences, target.config.vocab_size).tolist()
    params = SamplingParams(temperature=0, seed=0)
    for i in range(sequences):
        # Prompts may finish in different passes: the earlier ones need tokens to spare.
        spare = 1 + sequences * prompt_tokens // target.max_rows + 1
        prompt = tuple(tokens[i : i + prompt_tokens])
        engine.add(Request(prompt, params, max_tokens=predicted_tokens + spare))
    started: set[int] = set()
    while len(started) < sequences:
        started |= {event.request_id for event in engine.step()}
    native_s = target.native_seconds
    start = time.perf_counter()
    num_tokens = sum(len(engine.step()) for _ in range(predicted_tokens))
    elapsed_s = time.perf_counter() - start
    native_s = target.native_seconds - native_s
    for request_id in started:
        _cancel(engine, request_id)
    return num_tokens / elapsed_s, 1 - native_s / elapsed_s


def _cancel(engine: Engine, request_id: int) -> None:
    try:
        engine.cancel(request_id)
    except KeyError:  # it has all its tokens already
        return


@contextmanager
def _busy_process(core: int) -> Iterator[None]:
    """Another process that computes on ``core`` for as long as the block runs."""
    command = [sys.executable, "-c", _BUSY_PROGRAM, f"{core}", f"{_BUSY_LIMIT_S}", f"{os.getpid()}"]
    with subprocess.Popen(command) as process:
        try:
            time.sleep(0.5)  # until it is up and busy
            yield
        finally:
            process.kill()
