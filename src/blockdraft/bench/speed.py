"""Drafting against plain decoding: the same prompts with and without drafts, in turn.

Greedy, one sequence. Rates count the tokens after the first and the median seconds of the repeats;
which way runs first alternates. What the figures mean is said in `bench.gains`, `bench.choices`,
`bench.gate`, `bench.sweep` and `bench.together`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blockdraft import _native
from blockdraft.bench.depth import Depth
from blockdraft.bench.filler import with_filler
from blockdraft.bench.gains import Pair, PromptRun, ends_in_a_loop
from blockdraft.bench.limits import describe_machine
from blockdraft.bench.passes import PassTimer
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.report import Notify, median
from blockdraft.bench.speed_report import SpeedReport
from blockdraft.bench.subject import Subject
from blockdraft.bench.sweep import PLAIN
from blockdraft.bench.ways import DRAFTED, Way, fixed_ways, lone_ways, spoiled, two_ways
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.session import Result, Session

__all__ = ["SpeedExtras", "SpeedReport", "bench_speed"]

_CURVE_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_CURVE_CONTEXT = 128
_CURVE_REPEATS = 7


@dataclass(frozen=True, slots=True)
class SpeedExtras:
    """What to measure besides the gains.

    Attributes:
        pairs: Judge whether drafting loses, by at least so many pairs of runs in every category;
            None does not.
        is_adverse: Replace the drafters by one that is always wrong and costs as much.
        has_sweep: Also measure fixed settings.
        has_lone: Also measure each drafter by itself.
        depths: Tokens of other text before every prompt; the prompts are answered at each.
    """

    pairs: int | None = None
    is_adverse: bool = False
    has_sweep: bool = False
    has_lone: bool = False
    depths: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        """Check that they do not contradict each other.

        Raises:
            ConfigError: They do.
        """
        if self.is_adverse and (self.has_sweep or self.has_lone):
            raise ConfigError("--adversary replaces the drafters that --sweep and --alone measure")


_NOTHING_MORE = SpeedExtras()


def bench_speed(
    subject: Subject,
    prompts: Sequence[SpeedPrompt],
    *,
    drafting: DraftConfig,
    max_tokens: int,
    repeats: int = 3,
    extras: SpeedExtras = _NOTHING_MORE,
    notify: Notify = lambda _: None,
) -> SpeedReport:
    """Measure what drafting gains.

    Args:
        subject: The model and its settings.
        prompts: What to answer.
        drafting: How tokens are drafted.
        max_tokens: The most tokens of an answer.
        repeats: Runs of each prompt each way; which way is first alternates.
        extras: What else to measure.
        notify: Told what is being measured.

    Raises:
        ConfigError: ``drafting`` turns drafts off, no answer has two tokens, or a prompt does not
            fit the context at the greatest depth.
        BlockdraftError: The model or a prompt cannot be honoured.
    """
    if drafting.spec_type == "none":
        raise ConfigError("--spec-type none drafts nothing; bench decode measures plain decoding")
    session = Session.load(
        subject.path, num_threads=subject.num_threads, isa=subject.isa, drafting=drafting
    )
    if extras.is_adverse:
        session = spoiled(session, subject, drafting)
    ways = two_ways(session)
    if extras.has_lone:
        ways += lone_ways(session, subject, drafting)
    if extras.has_sweep:
        ways += fixed_ways(session, subject, drafting)
    texts = {depth: _texts(session, prompts, depth, max_tokens) for depth in extras.depths}
    for way in ways:
        way.answer(prompts[0].prompt, 8)  # touches memory
    sizes = _repeats(prompts, repeats, extras.pairs)
    depths: list[Depth] = []
    for depth, at_depth in texts.items():
        where = f" at depth {depth}" if depth else ""
        runs: list[PromptRun] = []
        for i, prompt in enumerate(at_depth):
            notify(f"{i + 1} of {len(at_depth)}: {prompt.id}{where}")
            run = _measure(ways, prompt, max_tokens, sizes[prompt.category], first=i)
            if run is not None:
                runs.append(run)
        if not runs:
            raise ConfigError("no answer has two tokens: there is no speed to measure")
        depths.append(Depth(depth, tuple(runs)))
    stats = depths[0].runs[0].stats
    return SpeedReport(
        machine=describe_machine(),
        model=subject.name,
        threads=subject.num_threads,
        isa=subject.isa or _native.isa_names()[-1],
        spec_type=stats.type_name,
        block_size=stats.block_size,
        max_tokens=max_tokens,
        repeats=min(sizes.values()),
        depths=tuple(depths),
        verify_ms=_verify_ms(session),
        is_gate=extras.pairs is not None,
    )


def _texts(
    session: Session, prompts: Sequence[SpeedPrompt], depth: int, max_tokens: int
) -> list[SpeedPrompt]:
    """The prompts behind ``depth`` tokens of other text, all of which fit the context."""
    found: list[SpeedPrompt] = []
    for prompt in prompts:
        text = with_filler(prompt.prompt, depth, session.tokenizer)
        num_tokens = len(session.encode(text)) if depth else 0
        if num_tokens + max_tokens > session.engine.context_length:
            raise ConfigError(
                f"{prompt.id} at depth {depth} has {num_tokens} tokens, and {max_tokens} more"
                f" exceed the context of {session.engine.context_length}"
            )
        found.append(SpeedPrompt(prompt.id, prompt.category, text))
    return found


def _repeats(prompts: Sequence[SpeedPrompt], repeats: int, pairs: int | None) -> dict[str, int]:
    """Repeats of each prompt by its category, so that there are enough pairs."""
    names = [prompt.category for prompt in prompts]
    if pairs is None:
        return dict.fromkeys(names, repeats)
    return {name: -(-pairs // names.count(name)) for name in names}


def _measure(
    ways: Sequence[Way], prompt: SpeedPrompt, max_tokens: int, repeats: int, *, first: int
) -> PromptRun | None:
    """One prompt every way; None when its answer has no second token."""
    results: dict[str, list[Result]] = {way.name: [] for way in ways}
    for repeat in range(repeats):
        for way in _in_turn(ways, first + repeat):
            results[way.name].append(way.answer(prompt.prompt, max_tokens))
    plain, drafted = results[PLAIN], results[DRAFTED]
    timings, stats = plain[0].timings, drafted[0].stats
    num_tokens = round(timings.tokens_per_s * timings.predicted_s)
    if not num_tokens or stats is None:
        return None
    seconds = {
        name: median([one.timings.predicted_s for one in each]) for name, each in results.items()
    }
    plain_s, drafted_s = seconds.pop(PLAIN), seconds.pop(DRAFTED)
    lone_s = {way.name: seconds.pop(way.name) for way in ways if way.is_lone}
    answers = {one.token_ids for each in results.values() for one in each}
    return PromptRun(
        id=prompt.id,
        category=prompt.category,
        num_tokens=num_tokens,
        plain_s=plain_s,
        drafted_s=drafted_s,
        stats=stats,
        is_identical=len(answers) == 1,
        is_loop=ends_in_a_loop(plain[0].token_ids),
        pairs=tuple(Pair(_whole_s(a), _whole_s(b)) for a, b in zip(plain, drafted, strict=True)),
        fixed_s=seconds,
        lone_s=lone_s,
        prompt_tokens=timings.prompt_tokens,
    )


def _in_turn(ways: Sequence[Way], turn: int) -> list[Way]:
    """Every other turn the other way round, so that each comes before another as often as after."""
    start = turn // 2 % len(ways)
    order = [*ways[start:], *ways[:start]]
    return order[::-1] if turn % 2 else order


def _whole_s(result: Result) -> float:
    """From the call to the end."""
    return result.timings.ttft_s + result.timings.predicted_s


def _verify_ms(session: Session) -> dict[int, float]:
    """The cost curve: milliseconds of passes of several sizes, behind a short context."""
    target = session.engine.target
    room = target.config.context_length - max(_CURVE_ROWS)
    context = min(_CURVE_CONTEXT, room)
    timer = PassTimer(target, context + max(_CURVE_ROWS))
    timer.extend(context)
    sizes = [rows for rows in _CURVE_ROWS if rows <= target.max_rows]
    return {rows: 1000 * median(timer.time_rows(rows, _CURVE_REPEATS)) for rows in sizes}
