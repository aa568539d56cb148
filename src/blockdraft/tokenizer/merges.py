"""Merge rules of a vocabulary, in the order in which they apply.

SentencePiece stores scores, not merges: it joins the two neighbours whose text together scores
highest, the leftmost of equals, until no two neighbours form a token. While a token forms,
nothing outside its text takes part, so the joins inside are those of its text on its own, and the
last of them is the only way to make it. One rule per token, ranked by score, therefore gives what
the scores give, with half the rules that listing every split would.

Source: Kudo and Richardson, 2018, "SentencePiece" (arXiv:1808.06226), 3.2.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from blockdraft.errors import FileFormatError

__all__ = ["Merge", "checked_merges", "derived_merges"]

Merge = tuple[str, str]


def checked_merges(lines: Sequence[str], texts: frozenset[str]) -> list[Merge]:
    """The rules of a byte-level vocabulary, without repetitions.

    Args:
        lines: ``"left right"`` by falling priority.
        texts: Every token.

    Raises:
        FileFormatError: A line is no pair of tokens, or they do not make a token.
    """
    merges: dict[Merge, None] = {}
    for idx, line in enumerate(lines):
        left, space, right = line.partition(" ")
        if not (space and left in texts and right in texts and left + right in texts):
            raise FileFormatError(
                f"tokenizer.ggml.merges[{idx}] is {line!r}: not two tokens that make a third"
            )
        merges[left, right] = None
    return list(merges)


def derived_merges(scores: Mapping[str, float]) -> list[Merge]:
    """The rules that do what SentencePiece does with ``scores``.

    Tokens that no sequence of joins reaches get none. Rules of equal score, which only placeholder
    tokens have, are ranked in the order of ``scores``.

    Args:
        scores: Score of every token by its text.
    """
    found: list[tuple[float, Merge]] = []
    for text, score in scores.items():
        if len(text) > 1:
            merge = _last_join(text, scores)
            if merge is not None:
                found.append((-score, merge))
    found.sort(key=lambda item: item[0])
    return [merge for _, merge in found]


def _last_join(text: str, scores: Mapping[str, float]) -> Merge | None:
    """The join that completes ``text``, or None when joining stops before."""
    parts = list(text)
    joined = [scores.get(left + right) for left, right in pairwise(parts)]
    while len(parts) > 2:
        best, highest = -1, 0.0
        for idx, score in enumerate(joined):
            if score is not None and (best < 0 or score > highest):
                best, highest = idx, score
        if best < 0:
            return None
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
        del joined[best]
        if best > 0:
            joined[best - 1] = scores.get(parts[best - 1] + parts[best])
        if best < len(joined):
            joined[best] = scores.get(parts[best] + parts[best + 1])
    # Two parts are left, and together they are the token itself.
    return parts[0], parts[1]
