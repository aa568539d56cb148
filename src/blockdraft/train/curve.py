"""The training curve of a run as a picture: loss and held-out tau against hours.

The upper axis counts corpus tokens, at the run's average rate. Knows records, no files of a run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from blockdraft.weights.replacing import replacing

__all__ = ["write_curve"]

Record = Mapping[str, Any]

_SIZE_INCHES = (10, 4)
_DPI = 120
_SECONDS = 3600


def write_curve(
    path: Path, training: Sequence[Record], evaluations: Sequence[Record], *, title: str
) -> None:
    """Draw a PNG.

    Args:
        path: The file.
        training: The run's records of kind "train".
        evaluations: Its records of kind "evaluation".
        title: Above the picture.
    """
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    loss_axes, tau_axes = figure.subplots(1, 2)
    loss_axes.plot(_hours(training), [one["loss"] for one in training], linewidth=1)
    loss_axes.set_ylabel("training loss")
    _plot_taus(tau_axes, evaluations)
    every = sorted((*training, *evaluations), key=lambda one: float(one["seconds"]))
    for axes in (loss_axes, tau_axes):
        axes.set_xlabel("hours of training")
        axes.grid(alpha=0.3)
        if every and every[-1]["seconds"] > 0 and every[-1]["tokens"] > 0:
            _add_token_axis(axes, every[-1])
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=_DPI)


def _plot_taus(axes: Axes, evaluations: Sequence[Record]) -> None:
    hours = _hours(evaluations)
    names = sorted({name for one in evaluations for name in one["tau_by_category"]})
    for name in names:
        taus = [one["tau_by_category"].get(name, float("nan")) for one in evaluations]
        axes.plot(hours, taus, linewidth=0.8, alpha=0.7, label=name)
    axes.plot(hours, [one["tau"] for one in evaluations], "k.-", linewidth=1.6, label="all")
    axes.set_ylabel("held-out tau, teacher-forced")
    axes.legend(fontsize="small")


def _add_token_axis(axes: Axes, last: Record) -> None:
    rate = last["tokens"] / 1e6 / (last["seconds"] / _SECONDS)
    upper = axes.secondary_xaxis(
        "top", functions=(lambda hours: hours * rate, lambda tokens: tokens / rate)
    )
    upper.set_xlabel("million corpus tokens")


def _hours(records: Sequence[Record]) -> list[float]:
    return [one["seconds"] / _SECONDS for one in records]
