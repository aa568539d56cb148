"""What a pass costs: measured seconds by rows, kept up to date by the passes themselves.

Knows no models. A curve never falls with more rows; between known sizes it is linear, beyond the
last one it goes on with the last slope. Context is not a variable: running medians follow it.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

__all__ = ["CostCurve", "CostModel"]

_KEPT = 15
"""Passes of one size that count; older ones are forgotten."""


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
        self._known = dict(seconds)
        self._recent: dict[int, deque[float]] = {}
        self._points = _monotone(self._known)

    def add(self, num_rows: int, seconds: float) -> None:
        """Take note of a pass; a time that a coarse clock could not tell from none says nothing."""
        if seconds <= 0:
            return
        if num_rows not in self._recent:
            before = [self._known[num_rows]] if num_rows in self._known else []
            self._recent[num_rows] = deque(before, maxlen=_KEPT)
        recent = self._recent[num_rows]
        recent.append(seconds)
        self._known[num_rows] = median(recent)  # a single pass may have met a burst of other work
        self._points = _monotone(self._known)

    def seconds(self, num_rows: int) -> float:
        """Expected time of a pass of ``num_rows`` rows."""
        points = self._points
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

    def to_json(self) -> list[list[float]]:
        """Pairs of rows and seconds, ascending."""
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


class CostModel:
    """Costs of a target's passes and of each drafter's.

    Attributes:
        verify: Passes of the target.
        draft: Passes of each drafter by its name, in blocks; one without an entry costs nothing.
    """

    def __init__(self, verify: CostCurve, draft: Mapping[str, CostCurve] | None = None) -> None:
        self.verify = verify
        self.draft = dict(draft or {})

    def draft_seconds(self, name: str, num_blocks: int) -> float:
        """Expected time of a drafter's pass for some sequences."""
        curve = self.draft.get(name)
        return curve.seconds(num_blocks) if curve is not None and num_blocks else 0.0

    def add_draft(self, name: str, num_blocks: int, seconds: float) -> None:
        """Take note of a drafter's pass."""
        if name in self.draft:
            self.draft[name].add(num_blocks, seconds)
        elif seconds > 0:
            self.draft[name] = CostCurve({num_blocks: seconds})

    def to_json(self) -> dict[str, Any]:
        """Everything, for traces and for the cache."""
        return {
            "verify": self.verify.to_json(),
            "draft": {name: curve.to_json() for name, curve in self.draft.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "CostModel":
        """The model of `to_json`.

        Raises:
            ValueError: It is not one.
        """
        try:
            draft = {name: CostCurve.from_json(pairs) for name, pairs in value["draft"].items()}
            return cls(CostCurve.from_json(value["verify"]), draft)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a cost model: {value}") from error


def _monotone(known: Mapping[int, float]) -> list[tuple[int, float]]:
    """Points of a curve that never falls: a size is as cheap as any larger one."""
    points = sorted(known.items())
    cheapest = float("inf")
    for place in range(len(points) - 1, -1, -1):
        rows, seconds = points[place]
        cheapest = min(cheapest, seconds)
        points[place] = (rows, cheapest)
    return points
