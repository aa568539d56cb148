"""The speed report as a picture: gains, acceptance, cost curve, and depth where there are several.

Knows reports, no measuring. The only door to matplotlib in this room.
"""

from collections.abc import Sequence
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blockdraft.bench.speed_report import SpeedReport

__all__ = ["draw_speed"]

_INCHES = (5.2, 4.2)
_DPI = 120
_LARGEST_POINT = 400.0  # points², for a size that every round has


def draw_speed(report: SpeedReport) -> bytes:
    """A PNG of the report."""
    panels = [_draw_gains, _draw_acceptance, _draw_curve]
    if len(report.depths) > 1:
        panels.append(_draw_depths)
    figure = Figure(figsize=(_INCHES[0] * len(panels), _INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(report.title), fontsize=9)
    for place, draw in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        draw(axes, report)
        axes.grid(alpha=0.3)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()


def _draw_gains(axes: Axes, report: SpeedReport) -> None:
    names, every = [*report.categories, "all"], [*report.categories.values(), report.overall]
    places = list(range(len(every)))
    speedups = [one.speedup for one in every]
    errors = [
        [max(one.speedup - one.speedup_low, 0) for one in every],
        [max(one.speedup_high - one.speedup, 0) for one in every],
    ]
    axes.barh(places, speedups, xerr=errors, color="#4477aa", ecolor="#333333", capsize=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(places, [_plain(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("speed-up over plain decoding, 95 % interval")


def _draw_acceptance(axes: Axes, report: SpeedReport) -> None:
    for name, one in report.categories.items():
        shares = one.acceptance.by_position
        axes.plot(range(1, len(shares) + 1), shares, "o-", markersize=3, label=_plain(name))
    axes.set_ylim(0, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("position of the draft")
    axes.set_ylabel("accepted up to here")
    axes.legend(fontsize=7)


def _draw_curve(axes: Axes, report: SpeedReport) -> None:
    rows, ms = list(report.verify_ms), list(report.verify_ms.values())
    axes.plot(rows, ms, "-", color="#333333", label="pass over M rows")
    for name, choices in report.choices.items():
        points = [(1 + size, share) for size, share in choices.by_size.items()]
        axes.scatter(
            [m for m, _ in points],
            [_at(rows, ms, m) for m, _ in points],
            s=[_LARGEST_POINT * share for _, share in points],
            alpha=0.4,
            label=_plain(name),
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows M (1 + drafts); areas: share of the rounds")
    axes.set_ylabel("ms of a target pass")
    legend = axes.legend(fontsize=7)
    for handle in legend.legend_handles[1:]:
        handle.set_sizes([20.0])  # type: ignore[union-attr]


def _draw_depths(axes: Axes, report: SpeedReport) -> None:
    tokens = [depth.tokens for depth in report.depths]
    for name in report.categories:
        speedups = [
            depth.categories[name].speedup if name in depth.categories else float("nan")
            for depth in report.depths
        ]
        axes.plot(tokens, speedups, "o-", markersize=3, linewidth=0.8, label=_plain(name))
    overall = [depth.overall for depth in report.depths]
    axes.errorbar(
        tokens,
        [one.speedup for one in overall],
        yerr=[
            [max(one.speedup - one.speedup_low, 0) for one in overall],
            [max(one.speedup_high - one.speedup, 0) for one in overall],
        ],
        fmt="ks-",
        capsize=3,
        label="all",
    )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("tokens of context before the prompt")
    axes.set_ylabel("speed-up over plain decoding")
    axes.legend(fontsize=7)


def _at(rows: Sequence[int], ms: Sequence[float], wanted: int) -> float:
    """The curve at ``wanted``: linear between its points and beyond the last."""
    if len(rows) == 1:
        return ms[0]
    right = next((place for place, m in enumerate(rows) if m >= wanted), len(rows) - 1)
    right = max(right, 1)
    slope = (ms[right] - ms[right - 1]) / (rows[right] - rows[right - 1])
    return ms[right] + slope * (wanted - rows[right])


def _plain(text: str) -> str:
    """Text that is no formula."""
    return text.replace("$", r"\$")
