"""Drafting against plain decoding: the same prompts with and without drafts, in turn.

Greedy, one sequence. Rates count the tokens after the first and the median seconds of the repeats;
which way runs first alternates. What the figures mean is said in `bench.gains`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft import _native
from blockdraft.bench.gains import PromptRun, Summary, average, ends_in_a_loop, summarize
from blockdraft.bench.limits import Machine, describe_machine
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.report import Notify, format_table, median
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.session import Result, Session

__all__ = ["SpeedReport", "bench_speed"]

_GREEDY = SamplingParams(temperature=0, seed=0)


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """What `bench_speed` measured."""

    machine: Machine
    model: str
    threads: int
    isa: str
    spec_type: str
    block_size: int
    max_tokens: int
    repeats: int
    overall: Summary
    categories: dict[str, Summary]
    runs: tuple[PromptRun, ...]

    @property
    def is_identical(self) -> bool:
        """Whether no prompt gave other tokens."""
        return self.overall.num_identical == self.overall.num_prompts

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        return {
            "overall": self.overall.to_json(),
            "categories": {name: one.to_json() for name, one in self.categories.items()},
            "prompts": [run.to_json() for run in self.runs],
            "machine": asdict(self.machine),
            "model": self.model,
            "threads": self.threads,
            "isa": self.isa,
            "type": self.spec_type,
            "block_size": self.block_size,
            "max_tokens": self.max_tokens,
            "repeats": self.repeats,
        }

    def to_text(self) -> str:
        """The report for people."""
        header = ["category", "plain tok/s", "drafted", "speed-up", "95 %", "tau", "accepted"]
        header += ["identical", "loops"]
        rows = [_row(name, one) for name, one in (*self.categories.items(), ("all", self.overall))]
        shares = " ".join(f"{share:.0%}" for share in self.overall.acceptance.by_position)
        ms = self.overall.round_ms
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu}\n"
            f"{self.spec_type}, B {self.block_size}, K {self.block_size - 1}, "
            f"{self.max_tokens} tokens at most, {self.repeats} repeats\n"
            f"{format_table(header, rows)}\n"
            f"accepted by position: {shares or 'nothing was drafted'}\n"
            f"a round: draft {ms['draft']:.3f} ms, verify {ms['verify']:.2f} ms, "
            f"other {ms['other']:.3f} ms"
        )


def bench_speed(
    subject: Subject,
    prompts: Sequence[SpeedPrompt],
    *,
    drafting: DraftConfig,
    max_tokens: int,
    repeats: int = 3,
    notify: Notify = lambda _: None,
) -> SpeedReport:
    """Measure what drafting gains.

    Args:
        subject: The model and its settings.
        prompts: What to answer.
        drafting: How tokens are drafted.
        max_tokens: The most tokens of an answer.
        repeats: Runs of each prompt each way; which way is first alternates.
        notify: Told what is being measured.

    Raises:
        ConfigError: ``drafting`` turns drafts off, or no answer has two tokens.
        BlockdraftError: The model or a prompt cannot be honoured.
    """
    if drafting.spec_type == "none":
        raise ConfigError("--spec-type none drafts nothing; bench decode measures plain decoding")
    session = Session.load(
        subject.path, num_threads=subject.num_threads, isa=subject.isa, drafting=drafting
    )
    session.generate(prompts[0].prompt, params=_GREEDY, max_tokens=8)  # touches memory
    runs: list[PromptRun] = []
    for i, prompt in enumerate(prompts):
        notify(f"{i + 1} of {len(prompts)}: {prompt.id}")
        run = _measure(session, prompt, max_tokens, repeats, is_plain_first=i % 2 == 0)
        if run is not None:
            runs.append(run)
    if not runs:
        raise ConfigError("no answer has two tokens: there is no speed to measure")
    names = list(dict.fromkeys(run.category for run in runs))
    groups = {name: [run for run in runs if run.category == name] for name in names}
    stats = runs[0].stats
    return SpeedReport(
        machine=describe_machine(),
        model=subject.name,
        threads=subject.num_threads,
        isa=subject.isa or _native.isa_names()[-1],
        spec_type=stats.type_name,
        block_size=stats.block_size,
        max_tokens=max_tokens,
        repeats=repeats,
        overall=average(groups),
        categories={name: summarize(group) for name, group in groups.items()},
        runs=tuple(runs),
    )


def _measure(
    session: Session, prompt: SpeedPrompt, max_tokens: int, repeats: int, *, is_plain_first: bool
) -> PromptRun | None:
    """One prompt both ways; None when its answer has no second token."""
    results: dict[bool, list[Result]] = {False: [], True: []}
    for repeat in range(repeats):
        is_drafted = is_plain_first == (repeat % 2 == 1)
        for draft in (is_drafted, not is_drafted):
            results[draft].append(
                session.generate(prompt.prompt, params=_GREEDY, max_tokens=max_tokens, draft=draft)
            )
    plain, drafted = results[False], results[True]
    timings, stats = plain[0].timings, drafted[0].stats
    num_tokens = round(timings.tokens_per_s * timings.predicted_s)
    if not num_tokens or stats is None:
        return None
    return PromptRun(
        id=prompt.id,
        category=prompt.category,
        num_tokens=num_tokens,
        plain_s=median([result.timings.predicted_s for result in plain]),
        drafted_s=median([result.timings.predicted_s for result in drafted]),
        stats=stats,
        is_identical=len({result.token_ids for result in (*plain, *drafted)}) == 1,
        is_loop=ends_in_a_loop(plain[0].token_ids),
    )


def _row(name: str, one: Summary) -> list[str]:
    return [
        name,
        f"{one.plain_tokens_per_s:.1f}",
        f"{one.drafted_tokens_per_s:.1f}",
        f"{one.speedup:.2f}",
        f"{one.speedup_low:.2f}-{one.speedup_high:.2f}",
        *one.acceptance.cells(),
        f"{one.num_identical}/{one.num_prompts}",
        f"{one.num_loops}",
    ]
