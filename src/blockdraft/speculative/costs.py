"""What a pass costs: measured seconds by rows and context, kept up to date by passes themselves.

Knows no models. A curve never falls with more rows; between known sizes it is linear, beyond the
last one it goes on with the last slope. Context adds to a pass in proportion: attention reads each
committed token once a pass and works on it once a row. A machine that is slower now than it was
is so for all passes, those included that were not run lately.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

__all__ = ["ContextCost", "CostCurve", "CostModel"]

_KEPT = 15
"""Passes of one size that count; older ones are forgotten."""

_DRIFT = 1 / 16
"""How fast the mean slowness of passes follows; one pass counts for at most twice what it was."""


class CostCurve:
    """Seconds of a pass by its number of rows.

    Args:
        seconds: Known sizes, at least one; what is measured later takes their place.

    Raises:
        ValueError: There is no size, a size is below 1 or a time is not positive.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if not seconds or min(seconds) < 1 or min(seconds.values()) <= 0:
            raise ValueError(f"not a cost curve: {dict(seconds)}")
        self._points = self._first = _monotone(seconds)
        self._known = {rows: (each, 1.0) for rows, each in self._first}  # with the slowness then
        self._recent: dict[int, deque[float]] = {}
        self._slowness: float | None = 1.0  # of the points; None where they are out of date

    def add(self, num_rows: int, seconds: float, slowness: float = 1.0) -> None:
        """Take note of a pass on a machine that is ``slowness`` times as slow as at first.

        A time that a coarse clock could not tell from none says nothing.
        """
        if seconds <= 0:
            return
        if num_rows not in self._recent:
            # A first pass that met other work would otherwise pass for what the size costs, and
            # the size would not be run again.
            expected = self.seconds(num_rows, slowness)
            self._recent[num_rows] = deque([expected], maxlen=_KEPT)
        recent = self._recent[num_rows]
        recent.append(seconds)
        # A single pass may have met a burst of other work.
        self._known[num_rows] = (median(recent), slowness)
        self._slowness = None

    def seconds(self, num_rows: int, slowness: float = 1.0) -> float:
        """Expected time of a pass of ``num_rows`` rows."""
        if slowness != self._slowness:
            self._update(slowness)
        return _between(self._points, num_rows)

    def first_seconds(self, num_rows: int) -> float:
        """What was expected at first."""
        return _between(self._first, num_rows)

    def _update(self, slowness: float) -> None:
        """Sizes that were run lately are believed; others lie between them."""
        self._slowness = slowness
        known = {n: each * (slowness / then) for n, (each, then) in self._known.items()}
        run = dict(_monotone({n: known[n] for n in self._recent}))
        points: list[tuple[int, float]] = []
        for rows in sorted(known, reverse=True):
            above = points[-1][1] if points else float("inf")
            points.append((rows, run.get(rows, min(known[rows], above))))
        points.reverse()
        highest = 0.0
        for place, (rows, seconds) in enumerate(points):
            highest = max(highest, seconds)
            points[place] = (rows, highest)
        self._points = points

    def to_json(self, slowness: float = 1.0) -> list[list[float]]:
        """Pairs of rows and seconds, ascending."""
        self._update(slowness)
        return [[rows, seconds] for rows, seconds in self._points]

    @classmethod
    def from_json(cls, pairs: Any) -> "CostCurve":
        """The curve of `to_json`.

        Raises:
            ValueError: It is not one.
        """
        try:
            return cls({int(rows): float(seconds) for rows, seconds in pairs})
        except TypeError as error:
            raise ValueError(f"not a cost curve: {pairs}") from error


@dataclass(frozen=True, slots=True)
class ContextCost:
    """What committed tokens add to a pass.

    Attributes:
        per_pass: Seconds of each token of a sequence's context, whatever its rows.
        per_row: Further seconds of each token of the context for each row.
    """

    per_pass: float = 0.0
    per_row: float = 0.0

    def __post_init__(self) -> None:
        """Check that context never makes a pass cheaper.

        Raises:
            ValueError: A cost is negative.
        """
        if not (self.per_pass >= 0 and self.per_row >= 0):
            raise ValueError(f"not a cost of context: {self.per_pass}, {self.per_row}")

    def seconds(self, num_rows: int, num_sequences: int, context: float) -> float:
        """What ``context`` tokens of each sequence add to a pass of ``num_rows`` rows in all."""
        return context * (self.per_pass * num_sequences + self.per_row * num_rows)

    def times(self, slowness: float) -> "ContextCost":
        """The same on a machine that is so many times as slow."""
        return ContextCost(self.per_pass * slowness, self.per_row * slowness)


class CostModel:
    """Costs of a target's passes and of each drafter's.

    Attributes:
        verify: Passes of the target behind no context.
        draft: Passes of each drafter by its name, by rows; one without an entry costs nothing.
        context: What context adds to passes of the target.
        read: Seconds for each token that a drafter lags behind, by its name.
        slowness: Seconds of a pass now over those that were expected at first, a moving mean.
    """

    def __init__(
        self,
        verify: CostCurve,
        draft: Mapping[str, CostCurve] | None = None,
        *,
        context: ContextCost | None = None,
        read: Mapping[str, float] | None = None,
    ) -> None:
        self.verify = verify
        self.draft = dict(draft or {})
        self.context = context or ContextCost()
        self.read = dict(read or {})
        self.slowness = 1.0

    def verify_seconds(self, num_rows: int, num_sequences: int = 1, context: float = 0.0) -> float:
        """Expected time of a pass of the target.

        Args:
            num_rows: Rows of all sequences.
            num_sequences: Sequences.
            context: Committed tokens of a sequence, the mean over them.
        """
        added = self.context.times(self.slowness).seconds(num_rows, num_sequences, context)
        return self.verify.seconds(num_rows, self.slowness) + added

    def add_verify(
        self, num_rows: int, seconds: float, *, num_sequences: int = 1, context: float = 0.0
    ) -> None:
        """Take note of a pass of the target; arguments as of `verify_seconds`."""
        if seconds <= 0:
            return
        added = self.context.seconds(num_rows, num_sequences, context)
        ratio = seconds / (self.verify.first_seconds(num_rows) + added)
        self.slowness += _DRIFT * (min(ratio, 2 * self.slowness) - self.slowness)
        rest = max(seconds - added * self.slowness, seconds / 4)
        self.verify.add(num_rows, rest, self.slowness)

    def draft_seconds(self, name: str, num_rows: int) -> float:
        """Expected time of a drafter's pass over ``num_rows`` rows."""
        curve = self.draft.get(name)
        if curve is None or not num_rows:
            return 0.0
        return curve.seconds(num_rows, self.slowness)

    def read_seconds(self, name: str, num_tokens: int) -> float:
        """Expected time in which a drafter reads what it lags behind."""
        return self.slowness * self.read.get(name, 0.0) * num_tokens

    def add_draft(self, name: str, num_rows: int, seconds: float) -> None:
        """Take note of a drafter's pass."""
        if name in self.draft:
            self.draft[name].add(num_rows, seconds, self.slowness)
        elif seconds > 0:
            self.draft[name] = CostCurve({num_rows: seconds / self.slowness})

    def to_json(self) -> dict[str, Any]:
        """Everything as it is now, for traces and for the cache."""
        slowness = self.slowness
        context = self.context.times(slowness)
        return {
            "verify": self.verify.to_json(slowness),
            "draft": {name: curve.to_json(slowness) for name, curve in self.draft.items()},
            "context": [context.per_pass, context.per_row],
            "read": {name: seconds * slowness for name, seconds in self.read.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "CostModel":
        """The model of `to_json`.

        Raises:
            ValueError: It is not one.
        """
        try:
            draft = {name: CostCurve.from_json(pairs) for name, pairs in value["draft"].items()}
            per_pass, per_row = value["context"]
            return cls(
                CostCurve.from_json(value["verify"]),
                draft,
                context=ContextCost(float(per_pass), float(per_row)),
                read={name: float(seconds) for name, seconds in value["read"].items()},
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a cost model: {value}") from error


def _between(points: list[tuple[int, float]], num_rows: int) -> float:
    """Linear between points; a small pass costs what the first one does."""
    place = bisect_left(points, (num_rows, 0.0))
    if place < len(points) and points[place][0] == num_rows:
        return points[place][1]
    if place == 0:
        return points[0][1]
    if place == len(points):
        if len(points) == 1:
            return points[0][1] * num_rows / points[0][0]
        place -= 1
    (rows_a, a), (rows_b, b) = points[place - 1], points[place]
    return a + (b - a) * (num_rows - rows_a) / (rows_b - rows_a)


def _monotone(known: Mapping[int, float]) -> list[tuple[int, float]]:
    """Points of a curve that never falls: a size is as cheap as any larger one."""
    points = sorted(known.items())
    cheapest = float("inf")
    for place in range(len(points) - 1, -1, -1):
        rows, seconds = points[place]
        cheapest = min(cheapest, seconds)
        points[place] = (rows, cheapest)
    return points
