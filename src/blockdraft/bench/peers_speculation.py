"""Our drafting against llama.cpp's own: the same file and prompts, in turn.

Greedy, one sequence. Rates count the tokens after the first. Both programs write nearly, not always
exactly, the same text: they round differently. After each turn all sides sleep a moment, so that
nobody's waiting threads run into the next turn. llama.cpp's ngram-mod remembers earlier answers:
with more than one turn it knows what comes. Knows llama.cpp only through `bench.sides`.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from blockdraft import _native
from blockdraft.bench.limits import describe_machine
from blockdraft.bench.llama_server import (
    LlamaFiles,
    LlamaSettings,
    LlamaSpec,
    program_of,
    start_llama,
    system_of,
)
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.report import Notify
from blockdraft.bench.sides import Answer, LlamaSide, OurSide, Side
from blockdraft.bench.speculation_report import (
    OURS,
    OURS_PLAIN,
    PEER_PLAIN,
    SpeculationReport,
    sum_of,
)
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.session import Session

__all__ = ["SpeculationPlan", "bench_speculation", "take_turns"]

_PAUSE_S = 0.02
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """How much to compare.

    Attributes:
        specs: How llama.cpp drafts; without drafts it runs in any case.
        max_tokens: The most tokens of an answer.
        repeats: Turns of every side with every prompt; llama.cpp's ngram-mod remembers earlier
            answers, so with several turns it knows what comes.
    """

    specs: tuple[LlamaSpec, ...]
    max_tokens: int
    repeats: int = 1


def bench_speculation(
    subject: Subject,
    prompts: Sequence[SpeedPrompt],
    plan: SpeculationPlan,
    *,
    drafting: DraftConfig,
    files: LlamaFiles,
    notify: Notify = lambda _: None,
) -> SpeculationReport:
    """Compare our drafting with llama.cpp's.

    Args:
        subject: The model and its settings; llama.cpp gets as many threads.
        prompts: What to answer.
        plan: How much, and how llama.cpp drafts.
        drafting: How we draft.
        files: llama.cpp's drafter and program.
        notify: Told what is being measured.

    Raises:
        ConfigError: No answer has two tokens, or a server does not start.
        BlockdraftError: The model, a prompt or a setting cannot be honoured.
    """
    notify("loading the model once for each side")
    session = Session.load(
        subject.path, num_threads=subject.num_threads, isa=subject.isa, drafting=drafting
    )
    encoded = [(prompt, session.encode(prompt.prompt)) for prompt in prompts]
    context = max(len(ids) for _, ids in encoded) + plan.max_tokens + 1
    with ExitStack() as stack:
        sides: list[Side] = [OurSide(OURS_PLAIN, session, False), OurSide(OURS, session, True)]
        plain = LlamaSpec()
        for spec in (plain, *(spec for spec in plan.specs if spec != plain)):
            settings = LlamaSettings(subject.path, subject.num_threads, 1, context, spec, files)
            server = stack.enter_context(start_llama(settings))
            sides.append(LlamaSide(PEER_PLAIN if spec == plain else spec.name, server))
        answers = take_turns(sides, encoded, plan, notify)
        drafters = session.engine.drafter
        assert drafters is not None, "drafting was asked for"
        return SpeculationReport(
            machine=describe_machine(),
            model=subject.name,
            threads=subject.num_threads,
            isa=subject.isa or _native.isa_names()[-1],
            drafting=drafters.type_name,
            peer=program_of(server),
            peer_system=system_of(server),
            max_tokens=plan.max_tokens,
            repeats=plan.repeats,
            answers=answers,
        )


def take_turns(
    sides: Sequence[Side],
    encoded: Sequence[tuple[SpeedPrompt, Sequence[int]]],
    plan: SpeculationPlan,
    notify: Notify,
) -> dict[str, dict[str, list[Answer]]]:
    """Of each category each side's answers, one for each prompt: its turns together.

    Raises:
        ConfigError: No answer has two tokens.
    """
    for side in sides:
        side.answer(encoded[0][1][:_WARM_UP_TOKENS], _WARM_UP_TOKENS)  # touches memory
    found: dict[str, dict[str, list[Answer]]] = {}
    for i, (prompt, token_ids) in enumerate(encoded):
        notify(f"{i + 1} of {len(encoded)}: {prompt.id}")
        turns: dict[str, list[Answer]] = {side.name: [] for side in sides}
        for repeat in range(plan.repeats):
            start = (i + repeat) % len(sides)
            for side in (*sides[start:], *sides[:start]):
                turns[side.name].append(side.answer(token_ids, plan.max_tokens))
                time.sleep(_PAUSE_S)
        if not all(sum_of(each).num_tokens for each in turns.values()):
            continue  # an answer without a second token has no speed
        by_side = found.setdefault(prompt.category, {side.name: [] for side in sides})
        for name, each in turns.items():
            by_side[name].append(sum_of(each))
    if not found:
        raise ConfigError("no answer has two tokens: there is no speed to measure")
    return found
