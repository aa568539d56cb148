"""Which prompts are answered and in what order: licences, duplicates, leaks, a mix of categories.

The order is a pure function of the prompts, the selection and what fits: the same every time, and
any beginning of it has the mix that was asked for. Knows no model; what fits is the caller's
predicate.
"""

import hashlib
import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

from blockdraft.errors import ConfigError
from blockdraft.train.prompts import Prompt

__all__ = ["LEAK_WORDS", "PromptPlan", "Selection", "plan_prompts", "words_of"]

LEAK_WORDS = 10
"""A run of so many words in common with an evaluation prompt makes a prompt a leak."""

# A run that stands in more evaluation prompts than this is a phrase of their suite ("put your
# final answer within ..."), which training prompts of the same kind may have.
_SUITE_PROMPTS = 16

Prepared = TypeVar("Prepared")

# Scripts without spaces between words count by the character, as the evaluation files do.
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W_\u3040-\u30ff\u3400-\u9fff]+")


@dataclass(frozen=True, slots=True)
class Selection:
    """How prompts are chosen.

    Attributes:
        excluded_sources: Shell patterns of sources that are left out, such as "gpteacher-*".
        mix: (category, weight) pairs: of every so many prompts, how many are of which category.
            Categories without a weight are left out; None takes all as they come.
        seed: Orders the prompts of a category.
    """

    excluded_sources: tuple[str, ...] = ()
    mix: tuple[tuple[str, float], ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the weights.

        Raises:
            ConfigError: A weight is not positive, or a category has two.
        """
        for category, weight in self.mix or ():
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(f"the weight of {category} is {weight}; it must be positive")
        names = [category for category, _ in self.mix or ()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"the category {twice} has two weights")


@dataclass(slots=True)
class PromptPlan:
    """Prompts in the order in which they are answered.

    Attributes:
        queues: Prompts by category, in order.
        weights: Share of each category.
        left_out: Prompts that are not in ``queues``, by the reason.
    """

    queues: dict[str, list[Prompt]]
    weights: dict[str, float]
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        """Prompts in the plan, those that will not fit included."""
        return sum(map(len, self.queues.values()))

    def interleave(self, prepare: Callable[[Prompt], Prepared | None]) -> Iterator[Prepared]:
        """What ``prepare`` makes of the prompts, the categories interleaved by their weights.

        A prompt of which it makes None (one that is too long, say) gives its turn to the next of
        its category, so that such prompts do not thin out the mix.
        """
        ready = [(0.5 / self.weights[name], name) for name in sorted(self.queues)]
        rest = {name: filter(None, map(prepare, queue)) for name, queue in self.queues.items()}
        heapq.heapify(ready)
        while ready:
            turn, name = heapq.heappop(ready)
            prepared = next(rest[name], None)
            if prepared is not None:
                yield prepared
                heapq.heappush(ready, (turn + 1 / self.weights[name], name))


def plan_prompts(
    prompts: Iterable[Prompt], selection: Selection, *, held_out: Iterable[Prompt] = ()
) -> PromptPlan:
    """The plan for some prompts.

    Args:
        prompts: All there are, of one file after the other.
        selection: How to choose.
        held_out: Evaluation prompts, which must not be learned from.

    Raises:
        ConfigError: A pattern or category of the selection meets no prompt, two prompts share an
            id, or nothing is left.
    """
    left_out: Counter[str] = Counter()
    kept = _permitted(prompts, selection.excluded_sources, left_out)
    kept = _distinct(kept, left_out)
    kept = _without_leaks(kept, held_out, left_out)
    queues: dict[str, list[Prompt]] = {}
    for prompt in sorted(kept, key=lambda one: _rank(one, selection.seed)):
        queues.setdefault(prompt.category, []).append(prompt)
    weights = {name: float(len(queue)) for name, queue in queues.items()}
    if selection.mix is not None:
        weights = _checked_mix(selection.mix, queues)
        left_out += Counter(
            category=sum(len(queues[name]) for name in queues if name not in weights)
        )
    if not weights:
        raise ConfigError(f"no prompt is left: {_count_text(left_out)}")
    return PromptPlan({name: queues[name] for name in weights}, weights, left_out)


def words_of(text: str) -> list[str]:
    """The words of a text: lower case, compatibility forms unified, no punctuation."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def _permitted(
    prompts: Iterable[Prompt], patterns: Sequence[str], left_out: Counter[str]
) -> list[Prompt]:
    """Prompts whose source no pattern names."""
    kept = []
    met = set()
    excluded: dict[str, str | None] = {}
    for prompt in prompts:
        source = prompt.source
        if source not in excluded:
            fitting = [pattern for pattern in patterns if fnmatchcase(source, pattern)]
            met.update(fitting)
            excluded[source] = fitting[0] if fitting else None
        if excluded[source] is None:
            kept.append(prompt)
        else:
            left_out["source"] += 1
    idle = [pattern for pattern in patterns if pattern not in met]
    if idle:
        # A misspelt pattern would let in what its owner wanted out.
        known = ", ".join(sorted(filter(None, excluded))) or "none"
        raise ConfigError(f"no prompt has a source like {idle[0]!r}; sources: {known}")
    return kept


def _distinct(prompts: Sequence[Prompt], left_out: Counter[str]) -> list[Prompt]:
    """The first prompt of every text; white space makes no difference."""
    kept: dict[str, Prompt] = {}
    by_id: dict[str, Prompt] = {}
    for prompt in prompts:
        if by_id.setdefault(prompt.id, prompt).text != prompt.text:
            raise ConfigError(f"two prompts have the id {prompt.id!r}")
        key = " ".join(prompt.text.split())
        if kept.setdefault(key, prompt) is not prompt:
            left_out["duplicate"] += 1
    return list(kept.values())


def _without_leaks(
    prompts: Sequence[Prompt], held_out: Iterable[Prompt], left_out: Counter[str]
) -> list[Prompt]:
    """Prompts that share neither all their words nor a long run of words with evaluation ones."""
    texts = [words_of(text) for one in held_out for text in (one.text, *one.later_turns)]
    counts = Counter(run for words in texts for run in set(_runs(words)))
    phrases = {run for run, count in counts.items() if count > _SUITE_PROMPTS}
    contents = [_content(words, phrases) for words in texts]
    known = {run for content in contents for piece in content for run in _runs(piece)}
    wholes = {_whole(content) for content in contents} - {""}
    kept = []
    for prompt in prompts:
        content = _content(words_of(prompt.text), phrases)
        is_leak = _whole(content) in wholes
        if is_leak or any(not known.isdisjoint(_runs(piece)) for piece in content):
            left_out["held out"] += 1
        else:
            kept.append(prompt)
    return kept


def _runs(words: Sequence[str]) -> Iterator[str]:
    """Every run of `LEAK_WORDS` words."""
    for start in range(len(words) - LEAK_WORDS + 1):
        yield " ".join(words[start : start + LEAK_WORDS])


def _content(words: Sequence[str], phrases: Set[str]) -> list[list[str]]:
    """The pieces of a text between the phrases in it."""
    pieces: list[list[str]] = [[]]
    covered = 0  # words before this place belong to a phrase
    starts = {start for start, run in enumerate(_runs(words)) if run in phrases}
    for place, word in enumerate(words):
        if place in starts:
            covered = place + LEAK_WORDS
        if place >= covered:
            pieces[-1].append(word)
        elif pieces[-1]:
            pieces.append([])
    return pieces


def _whole(content: Sequence[Sequence[str]]) -> str:
    return " ".join(word for piece in content for word in piece)


def _checked_mix(
    mix: Iterable[tuple[str, float]], queues: Mapping[str, Sequence[Prompt]]
) -> dict[str, float]:
    weights = dict(mix)
    for name in weights:
        if name not in queues:
            known = ", ".join(sorted(queues)) or "none"
            raise ConfigError(f"no prompt is of the category {name!r}; categories: {known}")
    return weights


def _rank(prompt: Prompt, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{prompt.id}".encode(), digest_size=8).digest()


def _count_text(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count} left out by {reason}" for reason, count in left_out.items())
