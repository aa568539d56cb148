"""Ours against llama.cpp: the same file, the same process, alternating.

After each turn both sides sleep a moment, so that neither's waiting threads run into the other's
turn. Knows llama.cpp only through `bench.llamacpp`.
Conventions of the report: times are medians over all repeats; ``speedup`` is the ratio of medians,
above 1 where ours is faster; a pass of M rows is one sequence's next M tokens after ``context``
tokens, all with logits; decoding is greedy, 64 tokens after a prompt of 32.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from blockdraft.bench.decode import PREDICTED_TOKENS, PROMPT_TOKENS, decode_once, new_engine
from blockdraft.bench.limits import Machine, describe_machine
from blockdraft.bench.llamacpp import LlamaCpp
from blockdraft.bench.passes import PassTimer, draw_tokens
from blockdraft.bench.report import Notify, format_table, median
from blockdraft.bench.subject import Subject
from blockdraft.models.target import TargetModel

__all__ = ["FLOORS", "Comparison", "Floors", "PeerReport", "bench_peers"]

ROWS = (1, 4, 8, 16)
PREFILL_TOKENS = 512
CONTEXT = 128

_PAUSE_S = 0.02
_REPEATS = 4  # passes per turn; the first is not counted


@dataclass(frozen=True, slots=True)
class Floors:
    """The least speed-ups over llama.cpp that we promise with two threads."""

    decode: float
    rows_8: float
    rows_16: float
    prefill: float


# By architecture and width: what the floors were set on, wherever the file lies.
FLOORS = {
    ("llama", 576): Floors(1.8, 4, 4, 4),  # SmolLM2-135M Q4_1
    ("qwen2", 896): Floors(1.3, 3, 3, 2),  # Qwen2.5-Coder-0.5B Q4_K_M
    ("gemma3", 640): Floors(1.2, 2.5, 3, 1.5),  # Gemma-3-270M Q4_K_M
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured task.

    Attributes:
        name: The task.
        ours_ms: Median milliseconds of ours; per token when decoding.
        peer_ms: The same of llama.cpp.
        speedup: ``peer_ms / ours_ms``.
        floor: The least speed-up we promise, or None.
    """

    name: str
    ours_ms: float
    peer_ms: float
    speedup: float
    floor: float | None

    @property
    def is_met(self) -> bool:
        """Whether the floor, if there is one, was reached."""
        return self.floor is None or self.speedup >= self.floor


@dataclass(frozen=True, slots=True)
class PeerReport:
    """What `bench_peers` measured."""

    machine: Machine
    model: str
    threads: int
    isa: str
    context: int
    repeats: int
    peer: str
    peer_system: str
    comparisons: tuple[Comparison, ...]

    @property
    def is_met(self) -> bool:
        """Whether every floor was reached."""
        return all(comparison.is_met for comparison in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        return asdict(self) | {"passed": self.is_met}

    def to_text(self) -> str:
        """The report for people."""
        rows = []
        for one in self.comparisons:
            floor, verdict = "-", ""
            if one.floor is not None:
                floor, verdict = f"{one.floor:.1f}", "pass" if one.is_met else "FAIL"
            rows.append(
                [
                    one.name,
                    f"{one.ours_ms:.2f}",
                    f"{one.peer_ms:.2f}",
                    f"{one.speedup:.2f}",
                    floor,
                    verdict,
                ]
            )
        header = ["task", "ours ms", "llama.cpp ms", "speed-up", "floor", ""]
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu}; "
            f"against {self.peer}\n"
            f"rows after {self.context} tokens; medians of {self.repeats} alternating repeats\n"
            f"{format_table(header, rows)}"
        )


@dataclass(slots=True)
class _Task:
    """One task, as a function per side that gives seconds, and what they gave."""

    name: str
    ours: Callable[[], Sequence[float]]
    peer: Callable[[], Sequence[float]]
    floor: float | None
    ours_s: list[float] = field(default_factory=list)
    peer_s: list[float] = field(default_factory=list)

    def run(self, *, ours_first: bool) -> None:
        """One turn of each side."""
        sides = [(self.ours, self.ours_s), (self.peer, self.peer_s)]
        for measure, times in sides if ours_first else reversed(sides):
            times.extend(measure())
            time.sleep(_PAUSE_S)

    def compare(self) -> Comparison:
        """The medians side by side."""
        ours_ms, peer_ms = 1e3 * median(self.ours_s), 1e3 * median(self.peer_s)
        return Comparison(self.name, ours_ms, peer_ms, peer_ms / ours_ms, self.floor)


def bench_peers(
    subject: Subject,
    *,
    context: int = CONTEXT,
    rows: Sequence[int] = ROWS,
    repeats: int = 7,
    notify: Notify = lambda _: None,
) -> PeerReport:
    """Compare plain decoding, passes of several rows and prefill with llama.cpp.

    Args:
        subject: The model and its settings; llama.cpp gets as many threads.
        context: Committed tokens before the rows.
        rows: Sizes of pass.
        repeats: Turns of each side per task.
        notify: Told what is being measured.

    Raises:
        UnsupportedError: llama-cpp-python is not installed or cannot load the model.
        CapacityError: The model was not trained for so many positions.
    """
    longest = max(PREFILL_TOKENS, PROMPT_TOKENS + PREDICTED_TOKENS + 1)
    max_positions = max(context + max(rows), longest)
    notify("loading the model twice")
    target = subject.load(max_rows=PREFILL_TOKENS)
    tokens = draw_tokens(max_positions, target.config.vocab_size).tolist()
    peer = LlamaCpp(
        subject.path,
        num_threads=subject.num_threads,
        max_positions=max_positions,
        max_rows=max(rows),
        context_tokens=tokens[:context],
    )
    with closing(peer):
        tasks = [
            _decode_task(target, peer, tokens),
            *_row_tasks(target, peer, tokens, context, rows),
            _prefill_task(target, peer, tokens),
        ]
        for i in range(repeats):
            notify(f"repeat {i + 1} of {repeats}")
            for task in tasks:
                task.run(ours_first=i % 2 == 0)
        return PeerReport(
            machine=describe_machine(),
            model=subject.name,
            threads=subject.num_threads,
            isa=target.isa,
            context=context,
            repeats=repeats,
            peer=peer.name,
            peer_system=peer.system,
            comparisons=tuple(task.compare() for task in tasks),
        )


def _floors(target: TargetModel) -> Floors | None:
    return FLOORS.get((target.config.architecture, target.config.hidden_size))


def _decode_task(target: TargetModel, peer: LlamaCpp, tokens: list[int]) -> _Task:
    engine = new_engine(target, PROMPT_TOKENS + PREDICTED_TOKENS + 1)
    floors = _floors(target)

    def ours() -> list[float]:
        tokens_per_s, _ = decode_once(engine, target, PROMPT_TOKENS, PREDICTED_TOKENS, 1)
        return [1 / tokens_per_s]

    def theirs() -> list[float]:
        return [peer.time_decode(tokens[:PROMPT_TOKENS], PREDICTED_TOKENS)]

    return _Task("decode, per token", ours, theirs, floors.decode if floors else None)


def _row_tasks(
    target: TargetModel, peer: LlamaCpp, tokens: list[int], context: int, rows: Sequence[int]
) -> list[_Task]:
    timer = PassTimer(target, context + max(rows))
    timer.extend(context)
    floors = _floors(target)
    by_rows = {8: floors.rows_8, 16: floors.rows_16} if floors else {}

    def task(num_rows: int) -> _Task:
        drafted = tokens[context : context + num_rows]
        return _Task(
            f"pass, {num_rows} rows",
            lambda: timer.time_rows(num_rows, _REPEATS)[1:],
            lambda: peer.time_rows(drafted, _REPEATS)[1:],
            by_rows.get(num_rows),
        )

    return [task(num_rows) for num_rows in rows]


def _prefill_task(target: TargetModel, peer: LlamaCpp, tokens: list[int]) -> _Task:
    timer = PassTimer(target, PREFILL_TOKENS)
    floors = _floors(target)
    return _Task(
        f"prefill, {PREFILL_TOKENS} tokens",
        lambda: [timer.time_prefill(PREFILL_TOKENS)],
        lambda: [peer.time_prefill(tokens[:PREFILL_TOKENS])],
        floors.prefill if floors else None,
    )
