"""The most that K drafts can gain: a drafter that is always right and costs nothing.

Greedy. Each prompt is answered once; its own tokens are then the drafts of further runs, in turn
with plain ones. What a round spends outside the target's pass is the price of the machinery.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blockdraft import _native
from blockdraft.bench.limits import Machine, describe_machine
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.report import Notify, format_table, median
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine import Engine, Request, RequestStats
from blockdraft.errors import ConfigError
from blockdraft.session import Session
from blockdraft.speculative import NO_DRAFTS, CommittedRows, DraftTask, Proposal

__all__ = ["OracleReport", "bench_oracle"]

_GREEDY = SamplingParams(temperature=0.0, seed=0)
_CACHE_BYTES = 1 << 30


class _Oracle:
    """Drafts the tokens of an answer that is known."""

    type_name = "oracle"
    cache_layout = None

    def __init__(self, num_draft_tokens: int) -> None:
        self.block_size = num_draft_tokens + 1
        self.token_ids: Sequence[int] = ()

    def start(self, sequence_id: int) -> None:
        pass

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        return [self._propose(task) for task in tasks]

    def observe(self, rows: Sequence[CommittedRows]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def _propose(self, task: DraftTask) -> Proposal:
        known = len(task.token_ids)
        coming = self.token_ids[known : known + task.max_drafts]
        return Proposal.chain(coming) if len(coming) else NO_DRAFTS


@dataclass(frozen=True, slots=True)
class OracleReport:
    """What `bench_oracle` measured; medians over prompts of medians over repeats.

    Attributes:
        speedup: Plain time over drafted time of the same tokens.
        tau: Tokens per round; below K + 1 only where an answer ends.
        machinery_share: Share of a round outside drafter and target's pass.
    """

    machine: Machine
    model: str
    threads: int
    isa: str
    num_draft_tokens: int
    num_prompts: int
    num_identical: int
    plain_tokens_per_s: float
    drafted_tokens_per_s: float
    speedup: float
    tau: float
    machinery_share: float

    def to_json(self) -> dict[str, Any]:
        """The report for programs."""
        return asdict(self)

    def to_text(self) -> str:
        """The report for people."""
        header = [
            "oracle",
            "plain tokens/s",
            "drafted",
            "speed-up",
            "tau",
            "machinery",
            "identical",
        ]
        row = [
            f"K {self.num_draft_tokens}",
            f"{self.plain_tokens_per_s:.1f}",
            f"{self.drafted_tokens_per_s:.1f}",
            f"{self.speedup:.2f}",
            f"{self.tau:.2f}",
            f"{self.machinery_share:.1%}",
            f"{self.num_identical}/{self.num_prompts}",
        ]
        return (
            f"{self.model}, {self.threads} threads, {self.isa}, {self.machine.cpu}\n"
            f"{format_table(header, [row])}"
        )


@dataclass(frozen=True, slots=True)
class _Run:
    plain: RequestStats
    drafted: RequestStats
    is_identical: bool


def bench_oracle(
    subject: Subject,
    prompts: Sequence[SpeedPrompt],
    *,
    num_draft_tokens: int = 7,
    max_tokens: int = 96,
    repeats: int = 3,
    notify: Notify = lambda _: None,
) -> OracleReport:
    """Measure what always right drafts gain.

    Args:
        subject: The model and its settings.
        prompts: What to answer.
        num_draft_tokens: K.
        max_tokens: The most tokens of an answer.
        repeats: Runs of each prompt each way, in turn.
        notify: Told what is being measured.

    Raises:
        ConfigError: No answer has two tokens.
        BlockdraftError: The model or a prompt cannot be honoured.
    """
    session = Session.load(
        subject.path,
        num_threads=subject.num_threads,
        isa=subject.isa,
        drafting=DraftConfig(spec_type="none"),
    )
    target = session.engine.target
    oracle = _Oracle(num_draft_tokens)
    engine = Engine(target, max_cache_bytes=_CACHE_BYTES, drafter=oracle)
    runs: list[list[_Run]] = []
    for i, prompt in enumerate(prompts):
        notify(f"{i + 1} of {len(prompts)}: {prompt.id}")
        token_ids = tuple(session.encode(prompt.prompt))
        request = Request(token_ids, _GREEDY, max_tokens, session.tokenizer.eos_ids)
        answer, _ = _answer(engine, request, draft=False)
        if len(answer) < 2:
            continue
        oracle.token_ids = [*token_ids, *answer]
        runs.append([_run(engine, request, answer) for _ in range(repeats)])
    if not runs:
        raise ConfigError("no answer has two tokens: there is no speed to measure")
    plain = median([median([run.plain.tokens_per_s for run in each]) for each in runs])
    drafted = median([median([run.drafted.tokens_per_s for run in each]) for each in runs])
    ratios = [
        median([run.drafted.tokens_per_s / run.plain.tokens_per_s for run in each]) for each in runs
    ]
    stats = [each[0].drafted.speculation for each in runs]
    return OracleReport(
        machine=describe_machine(),
        model=subject.name,
        threads=subject.num_threads,
        isa=subject.isa or _native.isa_names()[-1],
        num_draft_tokens=num_draft_tokens,
        num_prompts=len(runs),
        num_identical=sum(all(run.is_identical for run in each) for each in runs),
        plain_tokens_per_s=plain,
        drafted_tokens_per_s=drafted,
        speedup=median(ratios),
        tau=median([one.mean_acceptance_length for one in stats if one is not None]),
        machinery_share=median([_machinery_share(each) for each in runs]),
    )


def _run(engine: Engine, request: Request, answer: Sequence[int]) -> _Run:
    found_plain, plain = _answer(engine, request, draft=False)
    found_drafted, drafted = _answer(engine, request, draft=True)
    return _Run(plain, drafted, found_plain == found_drafted == list(answer))


def _answer(engine: Engine, request: Request, *, draft: bool) -> tuple[list[int], RequestStats]:
    request = Request(
        request.token_ids, request.params, request.max_tokens, request.stop_token_ids, draft=draft
    )
    engine.add(request)
    token_ids: list[int] = []
    stats: RequestStats | None = None
    while engine.has_work:
        for event in engine.step():
            stats = event.stats or stats
            if event.token_id is not None:
                token_ids.append(event.token_id)
    assert stats is not None
    return token_ids, stats


def _machinery_share(runs: Sequence[_Run]) -> float:
    shares = []
    for run in runs:
        stats = run.drafted.speculation
        assert stats is not None
        in_round = stats.draft_s + stats.verify_s + stats.other_s
        shares.append((stats.draft_s + stats.other_s) / in_round if in_round else 0.0)
    return median(shares)
