"""The cost curve: what a target pass over M rows costs against one row.

All rows have logits, as in verification. Every round measures each M once more, so that a slow
minute of the machine falls on all of them. Conventions of the report: ``ms`` is the median;
``ratio`` is to M = 1 at the same context; ``gb_per_s`` counts the file's matrices once per pass;
``gmac_per_s`` counts their products, without attention.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft.bench.limits import (
    Limits,
    Machine,
    Work,
    describe_machine,
    measure_limits,
    read_work,
)
from blockdraft.bench.passes import PassTimer
from blockdraft.bench.report import Notify, format_table, median
from blockdraft.bench.subject import Subject
from blockdraft.engine import Target

__all__ = ["CONTEXTS", "PREFILL_TOKENS", "ROWS", "KernelReport", "PassCost", "bench_kernels"]

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
CONTEXTS = (0, 1024, 4096)
PREFILL_TOKENS = 512

_MIN_ROUNDS = 5
_MAX_ROUNDS = 200
_BURST_S = 0.03  # short passes repeat this long per round


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of one size of pass.

    Attributes:
        rows: M, all with logits.
        context: Committed tokens before the rows.
        ms: Median milliseconds.
        ratio: ``ms`` over that of one row at this context.
        gb_per_s: Bytes of the matrices per time.
        gmac_per_s: Multiply-accumulates of the matrices per time.
        read_share: ``gb_per_s`` over the machine's limit; above 1 weights came from a cache.
        int8_share: ``gmac_per_s`` over the machine's limit.
    """

    rows: int
    context: int
    ms: float
    ratio: float
    gb_per_s: float
    gmac_per_s: float
    read_share: float
    int8_share: float


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Cost of reading a prompt with logits of its last token; fields as in `PassCost`."""

    tokens: int
    ms: float
    tokens_per_s: float
    gmac_per_s: float
    int8_share: float


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What `bench_kernels` measured."""

    machine: Machine
    model: str
    threads: int
    isa: str
    passes: tuple[PassCost, ...]
    prefill: PrefillCost
    limits: Limits

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        return asdict(self)

    def to_text(self) -> str:
        """The report for people."""
        rows = [
            [
                f"{cost.rows}",
                f"{cost.context}",
                f"{cost.ms:.2f}",
                f"{cost.ratio:.2f}",
                f"{cost.gb_per_s:.1f}",
                f"{cost.read_share:.0%}",
                f"{cost.gmac_per_s:.0f}",
                f"{cost.int8_share:.0%}",
            ]
            for cost in self.passes
        ]
        header = ["rows", "context", "ms", "x 1 row", "GB/s", "of read", "GMAC/s", "of int8"]
        prefill, limits = self.prefill, self.limits
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu}\n"
            f"limits: {limits.read_gb_per_s:.1f} GB/s read, "
            f"{limits.int8_gmac_per_s:.0f} GMAC/s int8\n"
            f"{format_table(header, rows)}\n"
            f"prefill of {prefill.tokens} tokens: {prefill.ms:.0f} ms, "
            f"{prefill.tokens_per_s:.0f} tokens/s, {prefill.gmac_per_s:.0f} GMAC/s "
            f"({prefill.int8_share:.0%} of int8)"
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    rows: Sequence[int]
    contexts: Sequence[int]
    seconds: float
    notify: Notify


def bench_kernels(
    subject: Subject,
    *,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    seconds: float = 6.0,
    notify: Notify = lambda _: None,
) -> KernelReport:
    """Measure the cost curve of a model.

    Args:
        subject: The model and its settings.
        rows: Sizes of pass; one row is always measured as well.
        contexts: Tokens before the rows.
        seconds: Time per context at least, after which the next one begins.
        notify: Told what is being measured.

    Raises:
        CapacityError: The model was not trained for so many positions.
    """
    plan = _Plan(sorted({1, *rows}), sorted(set(contexts)), seconds, notify)
    notify("limits of the machine")
    limits = measure_limits(subject.num_threads)
    work = read_work(subject.path)
    max_rows = max(*plan.rows, PREFILL_TOKENS)
    target = subject.load(max_rows=max_rows)
    times = _time_passes(target, plan)
    notify(f"prefill of {PREFILL_TOKENS} tokens")
    prefill_s = _time_prefill(target, seconds / 2)
    limits = limits.or_better(measure_limits(subject.num_threads))
    return KernelReport(
        machine=describe_machine(),
        model=subject.name,
        threads=subject.num_threads,
        isa=target.isa,
        passes=_costs(times, work, limits),
        prefill=_prefill_cost(prefill_s, work, limits),
        limits=limits,
    )


def _repeat_rounds(one_round: Callable[[], None], seconds: float) -> None:
    """Call ``one_round`` for about ``seconds``, but a few times at least."""
    start = time.perf_counter()
    for done in range(_MAX_ROUNDS):
        if done >= _MIN_ROUNDS and time.perf_counter() - start >= seconds:
            break
        one_round()


def _time_passes(target: Target, plan: _Plan) -> dict[tuple[int, int], list[float]]:
    """Seconds of the passes by (context, rows)."""
    times: dict[tuple[int, int], list[float]] = {}
    timer = PassTimer(target, plan.contexts[-1] + plan.rows[-1])
    for context in plan.contexts:
        plan.notify(f"passes after {context} tokens")
        timer.extend(context)
        # The first pass of a size may touch new memory; it sets the repeats and is not counted.
        bursts = {
            num_rows: max(1, math.ceil(_BURST_S / timer.time_rows(num_rows, 1)[0]))
            for num_rows in plan.rows
        }
        for num_rows in plan.rows:
            times[context, num_rows] = []

        def one_round(context: int = context, bursts: dict[int, int] = bursts) -> None:
            for num_rows, repeats in bursts.items():
                times[context, num_rows] += timer.time_rows(num_rows, repeats)

        _repeat_rounds(one_round, plan.seconds)
    return times


def _costs(
    times: dict[tuple[int, int], list[float]], work: Work, limits: Limits
) -> tuple[PassCost, ...]:
    costs = []
    for (context, num_rows), seconds in times.items():
        middle = median(seconds)
        gb_per_s = work.weight_bytes / middle / 1e9
        gmac_per_s = work.macs(num_rows, num_rows) / middle / 1e9
        costs.append(
            PassCost(
                rows=num_rows,
                context=context,
                ms=middle * 1e3,
                ratio=middle / median(times[context, 1]),
                gb_per_s=gb_per_s,
                gmac_per_s=gmac_per_s,
                read_share=gb_per_s / limits.read_gb_per_s,
                int8_share=gmac_per_s / limits.int8_gmac_per_s,
            )
        )
    return tuple(costs)


def _time_prefill(target: Target, seconds: float) -> float:
    """Median seconds of a prefill."""
    timer = PassTimer(target, PREFILL_TOKENS)
    timer.time_prefill(PREFILL_TOKENS)
    times: list[float] = []
    _repeat_rounds(lambda: times.append(timer.time_prefill(PREFILL_TOKENS)), seconds)
    return median(times)


def _prefill_cost(seconds: float, work: Work, limits: Limits) -> PrefillCost:
    gmac_per_s = work.macs(PREFILL_TOKENS, 1) / seconds / 1e9
    return PrefillCost(
        tokens=PREFILL_TOKENS,
        ms=seconds * 1e3,
        tokens_per_s=PREFILL_TOKENS / seconds,
        gmac_per_s=gmac_per_s,
        int8_share=gmac_per_s / limits.int8_gmac_per_s,
    )
