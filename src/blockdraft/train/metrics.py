"""What is written about a run: one JSON object per line, and lines for people.

Knows no tensor but the sums it is given.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockdraft.train.anchors import Blocks
from blockdraft.train.checkpoint import Progress
from blockdraft.train.cost import StepCost
from blockdraft.train.evaluation import EvaluationResult
from blockdraft.train.loss import PositionStats

__all__ = ["MetricsLog", "Window"]


class Window:
    """Sums over some steps.

    Attributes:
        feature_s: Time spent on target features.
    """

    def __init__(self, num_positions: int, cost: StepCost, gemm_rate: float) -> None:
        """Start at zero.

        Args:
            num_positions: Drafted rows of the widest block.
            cost: Of a step.
            gemm_rate: Operations per second that torch reaches here.
        """
        self.feature_s = 0.0
        self._stats = PositionStats.zeros(num_positions)
        self._cost = cost
        self._gemm_rate = gemm_rate
        self._seconds = 0.0
        self._flops = 0.0
        self._losses: list[float] = []
        self._norms: list[float] = []

    def add(
        self,
        stats: PositionStats,
        blocks: Sequence[Blocks],
        *,
        seconds: float,
        gradient_norm: float,
    ) -> None:
        """Add a step."""
        rows = sum(each.num_rows for each in blocks)
        self._flops += self._cost.flops(
            rows=rows,
            label_rows=rows - sum(len(each.positions) for each in blocks),
            context_rows=sum(each.num_features for each in blocks),
            target_rows=sum(each.num_targets for each in blocks),
        )
        self._losses.append(stats.weighted_loss)
        self._norms.append(gradient_norm)
        self._seconds += seconds
        self._stats.add(stats)

    def record(self, done: Progress, *, share: float, learning_rate: float) -> dict[str, Any]:
        """The window as plain values."""
        learning_s = max(self._seconds - self.feature_s, 1e-9)
        return {
            **_place(done),
            "share": share,
            "learning_rate": learning_rate,
            "loss": sum(self._losses) / max(len(self._losses), 1),
            "gradient_norm": sum(self._norms) / max(len(self._norms), 1),
            **_positions(self._stats),
            "label_rows_per_s": float(self._stats.labels.sum()) / max(self._seconds, 1e-9),
            "feature_share": self.feature_s / max(self._seconds, 1e-9),
            "gemm_gflops": self._gemm_rate / 1e9,
            "gemm_share": self._flops / learning_s / self._gemm_rate,
        }

    @staticmethod
    def line(record: dict[str, Any]) -> str:
        """A record for people."""
        accuracy = " ".join(f"{100 * each:.0f}" for each in record["accuracy"])
        return (
            f"step {record['step']}, {100 * record['share']:.1f} %, epoch {record['epoch']}: loss"
            f" {record['loss']:.3f}, right {accuracy} %, {record['label_rows_per_s']:.0f} rows/s,"
            f" {100 * record['gemm_share']:.0f} % of {record['gemm_gflops']:.0f} GFLOP/s, features"
            f" {100 * record['feature_share']:.0f} % of the time"
        )


class MetricsLog:
    """A file of JSON lines, appended to."""

    def __init__(self, path: Path, *, is_quiet: bool = False) -> None:
        """Append to ``path``, or to nothing."""
        self._path = None if is_quiet else path

    def write(self, kind: str, record: dict[str, Any]) -> None:
        """Append a record."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, **record}) + "\n")

    def write_evaluation(self, found: EvaluationResult, done: Progress) -> str:
        """Append an evaluation; returns it for people."""
        tau = found.stats.mean_acceptance_length
        record = {
            **_place(done),
            "tau": tau,
            "tau_by_category": found.tau_by_category,
            **_positions(found.stats),
        }
        self.write("evaluation", record)
        accuracy = " ".join(f"{100 * each:.0f}" for each in record["accuracy"])
        kinds = ", ".join(f"{kind} {each:.2f}" for kind, each in found.tau_by_category.items())
        return (
            f"held out after step {done.steps}: teacher-forced tau {tau:.3f} ({kinds}); right"
            f" {accuracy} %"
        )


def _place(done: Progress) -> dict[str, Any]:
    return {
        "step": done.steps,
        "epoch": done.epoch,
        "seconds": done.seconds,
        "label_rows": done.label_rows,
        "tokens": done.tokens,
    }


def _positions(stats: PositionStats) -> dict[str, Any]:
    labels = stats.labels.clamp_min(1)
    blocks = max(stats.blocks, 1)
    return {
        "loss_by_position": (stats.loss / labels).tolist(),
        "accuracy": (stats.right / labels).tolist(),
        "unary_accuracy": (stats.unary_right / labels).tolist(),
        "recall": (stats.recalled / labels).tolist(),
        "survival": (stats.survived / blocks).tolist(),
    }
