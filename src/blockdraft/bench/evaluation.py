"""How good a drafter is: greedy answers with drafts of a fixed number, each written once, alone.

Real decoding: blocks begin where the rounds before them ended, and meet the target's own choices.
Nothing is timed, so that a busy machine changes no figure, and tokens are not compared with plain
decoding (`bench.speed` does both). One answer at a time: the engine gives several together a
smaller share of drafts. An answer that ends in a loop is counted, but not in tau and acceptance.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blockdraft import _native
from blockdraft.bench.acceptance import Acceptance, acceptance_of, average_acceptance
from blockdraft.bench.gains import ends_in_a_loop
from blockdraft.bench.limits import Machine, describe_machine
from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.bench.report import Notify, format_table
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.session import Session
from blockdraft.speculative.stats import SpeculationStats

__all__ = ["Answer", "DrafterReport", "Group", "drafter_sha256", "evaluate_drafter"]

_GREEDY = SamplingParams(temperature=0, seed=0)
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one prompt.

    Attributes:
        id: Of the prompt.
        category: Of the prompt.
        stats: Its rounds.
        is_loop: Whether it ends in a loop.
        prompt_ids: Tokens of the prompt, chat template included.
        token_ids: Tokens of the answer.
    """

    id: str
    category: str
    stats: SpeculationStats
    is_loop: bool
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The answer for programs; its keys are stable."""
        return {
            "id": self.id,
            "category": self.category,
            "tokens": self.stats.num_tokens,
            **self.stats.to_dict(),
            "loop": self.is_loop,
        }


@dataclass(frozen=True, slots=True)
class Group:
    """The answers of one category, or all of them.

    Attributes:
        acceptance: Of the answers that do not end in a loop.
        num_prompts: All of them.
        num_loops: Those that end in a loop.
    """

    acceptance: Acceptance
    num_prompts: int
    num_loops: int

    def to_json(self) -> dict[str, Any]:
        """The group for programs; its keys are stable."""
        return {
            **self.acceptance.to_json(),
            "prompts": self.num_prompts,
            "loops": self.num_loops,
        }


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """What `evaluate_drafter` found; ``overall`` is the mean over categories."""

    machine: Machine
    model: str
    drafter: str
    sha256: str
    isa: str
    block_size: int
    max_tokens: int
    overall: Group
    categories: Mapping[str, Group]
    answers: tuple[Answer, ...]
    skipped: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The report for programs; its keys are stable."""
        return {
            "overall": self.overall.to_json(),
            "categories": {name: one.to_json() for name, one in self.categories.items()},
            "prompts": [answer.to_json() for answer in self.answers],
            "skipped": list(self.skipped),
            "machine": asdict(self.machine),
            "model": self.model,
            "drafter": self.drafter,
            "drafter_sha256": self.sha256,
            "isa": self.isa,
            "block_size": self.block_size,
            "max_tokens": self.max_tokens,
        }

    def to_text(self) -> str:
        """The report for people."""
        deepest = max(len(one.acceptance.by_position) for one in self.categories.values())
        header = ["category", "tau", "accepted", *(f"{k}" for k in range(1, deepest + 1))]
        header += ["prompts", "loops"]
        every = (*self.categories.items(), ("all", self.overall))
        rows = [_row(name, one, deepest) for name, one in every]
        skipped = ""
        if self.skipped:
            skipped = f"\n{len(self.skipped)} prompts do not fit the context and were skipped"
        return (
            f"{self.model} with {self.drafter}, B {self.block_size}, K {self.block_size - 1},"
            f" greedy, {self.max_tokens} tokens at most\n"
            f"{format_table(header, rows)}{skipped}"
        )


def evaluate_drafter(
    subject: Subject,
    drafter: Path,
    prompts: Sequence[SpeedPrompt],
    *,
    max_tokens: int,
    num_draft_tokens: int | None = None,
    notify: Notify = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> DrafterReport:
    """Answer prompts with drafts and count what was accepted.

    Args:
        subject: The target and its settings.
        drafter: A folder or a GGUF file.
        prompts: What to answer; those too long for the context are skipped.
        max_tokens: The most tokens of an answer.
        num_draft_tokens: K; None is all that a block has room for.
        notify: Told what is being answered, and the time left.
        clock: Seconds, for the time left.

    Raises:
        ConfigError: The drafter does not fit, or every prompt is too long.
        BlockdraftError: The target, the drafter or a prompt cannot be honoured.
    """
    session = Session.load(
        subject.path,
        num_threads=subject.num_threads,
        isa=subject.isa,
        drafting=DraftConfig("dflash", str(drafter), policy="fixed", draft_n_max=num_draft_tokens),
    )
    context = session.engine.context_length
    limit = context - max_tokens
    fitting = [each for each in prompts if len(session.encode(each.prompt)) <= limit]
    if not fitting:
        raise ConfigError(
            f"no prompt has room for {max_tokens} tokens after it in the context of {context}"
        )
    start_s = clock()
    answers: list[Answer] = []
    for i, prompt in enumerate(fitting):
        left_s = (clock() - start_s) / i * (len(fitting) - i) if i else None
        left = "" if left_s is None else f", {left_s / 60:.0f} min left"
        notify(f"{i + 1} of {len(fitting)}: {prompt.id}{left}")
        answers.append(_answer(session, prompt, max_tokens))
    names = list(dict.fromkeys(prompt.category for prompt in fitting))
    groups = {name: [each for each in answers if each.category == name] for name in names}
    categories = {name: _group(group) for name, group in groups.items()}
    kept = {prompt.id for prompt in fitting}
    return DrafterReport(
        machine=describe_machine(),
        model=subject.name,
        drafter=str(drafter),
        sha256=drafter_sha256(drafter),
        isa=subject.isa or _native.isa_names()[-1],
        block_size=answers[0].stats.block_size,
        max_tokens=max_tokens,
        overall=Group(
            average_acceptance([one.acceptance for one in categories.values()]),
            sum(one.num_prompts for one in categories.values()),
            sum(one.num_loops for one in categories.values()),
        ),
        categories=categories,
        answers=tuple(answers),
        skipped=tuple(prompt.id for prompt in prompts if prompt.id not in kept),
    )


def drafter_sha256(drafter: Path) -> str:
    """Checksum of a drafter's weights: of its GGUF file, or of the safetensors in its folder."""
    paths = sorted(drafter.glob("*.safetensors")) if drafter.is_dir() else [drafter]
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _answer(session: Session, prompt: SpeedPrompt, max_tokens: int) -> Answer:
    result = session.generate(prompt.prompt, params=_GREEDY, max_tokens=max_tokens)
    assert result.stats is not None
    return Answer(
        prompt.id,
        prompt.category,
        result.stats,
        ends_in_a_loop(result.token_ids),
        tuple(session.encode(prompt.prompt)),
        tuple(result.token_ids),
    )


def _group(answers: Sequence[Answer]) -> Group:
    return Group(
        acceptance_of([each.stats for each in answers if not each.is_loop]),
        len(answers),
        sum(each.is_loop for each in answers),
    )


def _row(name: str, one: Group, deepest: int) -> list[str]:
    shares = [f"{share:.0%}" for share in one.acceptance.by_position]
    shares += ["-"] * (deepest - len(shares))
    return [name, *one.acceptance.cells(), *shares, f"{one.num_prompts}", f"{one.num_loops}"]
