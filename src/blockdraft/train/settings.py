"""Settings of a training run: frozen, checked once, written into every checkpoint.

Knows no file and no tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from blockdraft.errors import ConfigError
from blockdraft.train.anchors import BlockSampler
from blockdraft.train.shape import DrafterShape

__all__ = [
    "Budget",
    "Evaluation",
    "Objective",
    "Optimization",
    "TrainingSettings",
    "settings_from",
]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train; exactly one is given. The learning rate's schedule ends with it.

    Attributes:
        hours: Of training, pauses left out.
        steps: Optimizer steps.
        epochs: Passes over the corpus.
    """

    hours: float | None = None
    steps: int | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        """Check that there is one.

        Raises:
            ConfigError: None or several are given, or it is not positive.
        """
        given = [each for each in (self.hours, self.steps, self.epochs) if each is not None]
        if len(given) != 1:
            raise ConfigError(f"a budget is hours, steps or epochs; {len(given)} are given")
        if not 0 < given[0] < inf:
            raise ConfigError(f"the budget is {given[0]}; it must be positive and finite")


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimized.

    Attributes:
        weighting: "decay": exp(-(k - 1) / gamma) for position k; "dpace": by the drafter's own
            confidence that a block survives up to it.
        gamma: Of decay.
        alpha: Of D-PACE: how much of a block survives a position that is wrong.
        selector: Weight of the selector's loss beside the unary loss.
        soft: Share of soft labels: the divergence from the target's own distribution, in place of
            the cross-entropy of the token that it wrote.
    """

    weighting: Literal["decay", "dpace"] = "dpace"
    gamma: float = 4.0
    alpha: float = 0.5
    selector: float = 1.0
    soft: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A value is out of range; the message names it.
        """
        if self.weighting not in ("decay", "dpace"):
            raise ConfigError(f"the weighting is {self.weighting!r}; it must be decay or dpace")
        if not 0 < self.gamma < inf:
            raise ConfigError(f"gamma is {self.gamma}; it must be positive and finite")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha is {self.alpha}; it must be in [0, 1]")
        if not 0 <= self.soft <= 1:
            raise ConfigError(f"the share of soft labels is {self.soft}; it must be in [0, 1]")
        if not 0 <= self.selector < inf:
            raise ConfigError(f"the selector's weight is {self.selector}; it must be 0 or more")


@dataclass(frozen=True, slots=True)
class Optimization:
    """How the weights move.

    Attributes:
        learning_rate: Highest.
        warmup: Share of the budget in which it rises; afterwards it falls as a cosine.
        final_share: Share of the highest that is left at the end.
        kind: "adamw" for everything, or "muon" for matrices and AdamW for the rest.
        betas: Of AdamW.
        momentum: Of Muon.
        slow: Factor on the rate of the matrices that single AdamW steps move most: the feature
            projection, whose inputs are raw residual streams, and the kernels of convolutions.
        weight_decay: Of matrices.
        clip: Largest norm of the gradient.
        sequences_per_step: Corpus sequences of an optimizer step, over all processes.
        rows_per_pass: Rows that are computed together; bounds memory, not the step.
    """

    learning_rate: float = 6e-4
    warmup: float = 0.04
    final_share: float = 0.02
    kind: Literal["adamw", "muon"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.95
    slow: float = 1.0
    weight_decay: float = 0.0
    clip: float = 1.0
    sequences_per_step: int = 4
    rows_per_pass: int = 1536

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A value is out of range; the message names it.
        """
        if self.kind not in ("adamw", "muon"):
            raise ConfigError(f"the optimizer is {self.kind!r}; it must be adamw or muon")
        for name, low, high in (
            ("learning_rate", 1e-8, 1.0),
            ("warmup", 0.0, 1.0),
            ("final_share", 0.0, 1.0),
            ("momentum", 0.0, 0.9999),
            ("slow", 1e-3, 1.0),
            ("weight_decay", 0.0, 1.0),
            ("clip", 1e-6, 1e6),
            ("sequences_per_step", 1, 1 << 20),
            ("rows_per_pass", 1, 1 << 24),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}; it must be in [{low:g}, {high:g}]")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is held out and how often it is looked at.

    Attributes:
        share: Share of the prompts that is held out.
        sequences: Most held-out sequences per evaluation.
        stride: Answer tokens between two anchors.
        every_s: Seconds between evaluations.
    """

    share: float = 0.02
    sequences: int = 64
    stride: int = 4
    every_s: float = 900.0


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Everything that decides a run, but for the corpus and the target.

    Attributes:
        budget: Its length.
        shape: The drafter.
        sampler: Blocks.
        objective: Loss.
        optimization: Steps.
        evaluation: Held-out sequences.
        draft_vocab_size: Rows of the training head; None takes all.
        selector: What is trained of a selector: "linear" maps of the target's embedding, or free
            "tables".
        is_warm: Start from the target's last layers.
        mask_token: The mask token's text; None chooses one.
        seed: Of everything random.
        dtype: "float32" or "bfloat16": of the arithmetic; masters are float32.
        device: "cpu", "cuda" or "cuda:N".
        log_every: Steps per log line.
        save_every_s: Seconds between checkpoints.
    """

    budget: Budget
    shape: DrafterShape = field(default_factory=DrafterShape)
    sampler: BlockSampler = field(default_factory=BlockSampler)
    objective: Objective = field(default_factory=Objective)
    optimization: Optimization = field(default_factory=Optimization)
    evaluation: Evaluation = field(default_factory=Evaluation)
    draft_vocab_size: int | None = 8192
    selector: Literal["linear", "tables"] = "linear"
    is_warm: bool = True
    mask_token: str | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    log_every: int = 20
    save_every_s: float = 600.0

    def __post_init__(self) -> None:
        """Check what no part sees alone.

        Raises:
            ConfigError: A value is unknown, or two contradict each other; the message has both.
        """
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"dtype is {self.dtype!r}; it must be float32 or bfloat16")
        if self.selector not in ("linear", "tables"):
            raise ConfigError(f"the selector is {self.selector!r}; it must be linear or tables")
        widest = max(self.sampler.widths)
        if widest > self.shape.block_size:
            raise ConfigError(
                f"blocks of {widest} are wider than the drafter's {self.shape.block_size}"
            )
        top_k = self.shape.selector_top_k
        if self.draft_vocab_size is not None and self.draft_vocab_size < top_k:
            raise ConfigError(
                f"{top_k} candidates of a vocabulary of {self.draft_vocab_size} cannot be chosen"
            )


_PARTS = {
    "budget": Budget,
    "shape": DrafterShape,
    "sampler": BlockSampler,
    "objective": Objective,
    "optimization": Optimization,
    "evaluation": Evaluation,
}


def settings_from(values: Mapping[str, Any]) -> TrainingSettings:
    """Settings that `dataclasses.asdict` took apart."""
    parts = {name: kind(**values[name]) for name, kind in _PARTS.items()}
    return TrainingSettings(**{**values, **parts})
