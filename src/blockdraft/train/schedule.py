"""The learning rate over a run: linear warm-up, then a cosine to nearly nothing."""

import math

from blockdraft.train.settings import Budget, Optimization

__all__ = ["learning_rate", "progress"]


def progress(budget: Budget, *, seconds: float, steps: int, epochs: float) -> float:
    """Share of the budget that is used up, 1 or more at its end."""
    if budget.hours is not None:
        return seconds / (budget.hours * 3600)
    if budget.steps is not None:
        return steps / budget.steps
    assert budget.epochs is not None
    return epochs / budget.epochs


def learning_rate(settings: Optimization, share: float) -> float:
    """Rate after ``share`` of the budget; never zero, so that the first step moves."""
    if share < settings.warmup:
        return settings.learning_rate * max(share / settings.warmup, 0.01)
    rest = min((share - settings.warmup) / max(1 - settings.warmup, 1e-9), 1.0)
    cosine = 0.5 * (1 + math.cos(math.pi * rest))
    return settings.learning_rate * (settings.final_share + (1 - settings.final_share) * cosine)
