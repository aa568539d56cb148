"""What a person decides of a training in one command: plain values, kept where it runs.

Everything else has the defaults of the steps, which may be run one by one with all their
settings. Knows no model and no network.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.train.answers import AnswerSettings
from blockdraft.train.corpus import CorpusConfig
from blockdraft.train.selection import Selection
from blockdraft.train.settings import Budget, TrainingSettings
from blockdraft.weights.replacing import replacing

__all__ = ["STEPS", "Plan", "Recipe", "begin", "go_on", "save_plan"]

STEPS = ("corpus", "fit", "eval", "export")
"""The steps in order; each has its own sub-command too."""

_FILE = "training.json"
_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """The decisions.

    Attributes:
        model: The target, as it was named.
        prompts: Files or datasets of prompts.
        hold_out: Files of evaluation prompts, from which the corpus keeps away.
        excluded_sources: Patterns of sources that are left out.
        limit: The most answers of the corpus; None is one for every prompt.
        answer_tokens: The most tokens of an answer.
        hours: Length of the fit; either this or ``steps``.
        steps: Length of the fit in optimizer steps.
        type_name: Type of the exported GGUF file.
        eval_prompts: The most held-out prompts that are answered at the end.
        eval_tokens: The most tokens of their answers.
        seed: Of everything random.
        dtype: Of the fit's arithmetic.
        device: Of the fit.
    """

    model: str
    prompts: tuple[str, ...]
    hold_out: tuple[str, ...] = ()
    excluded_sources: tuple[str, ...] = ()
    limit: int | None = None
    answer_tokens: int = 256
    hours: float | None = 3.0
    steps: int | None = None
    type_name: str = "q4_0"
    eval_prompts: int = 60
    eval_tokens: int = 128
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check what the steps would refuse later.

        Raises:
            ConfigError: There are no prompts, or a value is out of range; the message names it.
        """
        if not self.prompts:
            raise ConfigError("there are no prompts: name a file or hf:ORG/DATASET")
        self.corpus_config()
        self.training_settings()

    def corpus_config(self) -> CorpusConfig:
        """Settings of the first step."""
        return CorpusConfig(
            prompts=self.prompts,
            held_out=self.hold_out,
            selection=Selection(self.excluded_sources, seed=self.seed),
            answers=AnswerSettings(max_tokens=self.answer_tokens, seed=self.seed),
            limit=self.limit,
        )

    def training_settings(self) -> TrainingSettings:
        """Settings of the second step."""
        budget = Budget(self.hours) if self.steps is None else Budget(steps=self.steps)
        return TrainingSettings(budget, seed=self.seed, dtype=self.dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe and how far it is.

    Attributes:
        recipe: The recipe.
        done: Steps that are finished.
    """

    recipe: Recipe
    done: tuple[str, ...] = ()

    def with_done(self, step: str) -> "Plan":
        """The plan after a step."""
        return replace(self, done=(*self.done, step))


def begin(folder: Path, recipe: Recipe) -> Plan:
    """A new plan in ``folder``, which is made.

    Raises:
        ConfigError: There is a training that has more than a plan.
    """
    if (folder / _FILE).exists() and any(path.name != _FILE for path in folder.iterdir()):
        raise ConfigError(f"{folder} has a training already; --resume goes on with it")
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(recipe)
    save_plan(folder, plan)
    return plan


def go_on(folder: Path, **changes: Any) -> Plan:
    """The plan in ``folder``.

    A longer fit or a larger corpus makes the steps from there on unfinished again; they go on with
    what they have.

    Args:
        folder: Of the training.
        changes: New values of the recipe's ``hours``, ``steps``, ``limit`` and ``device``; None
            leaves a value as it is.

    Raises:
        ConfigError: There is no training.
        FileFormatError: Its file is damaged.
    """
    path = folder / _FILE
    if not path.is_file():
        raise ConfigError(f"there is no training to go on with: {path} does not exist")
    try:
        found = json.loads(path.read_text("utf-8"))
        if found["format_version"] != _FORMAT_VERSION:
            raise ValueError(f"version {found['format_version']}")
        names = {each.name for each in fields(Recipe)}
        values = {name: _tuples(value) for name, value in found["recipe"].items() if name in names}
        plan = Plan(Recipe(**values), tuple(found["done"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {error!r}") from error
    given = {name: value for name, value in changes.items() if value is not None}
    if "hours" in given:
        given["steps"] = None
    recipe = replace(plan.recipe, **given)
    return Plan(recipe, _still_done(plan, recipe))


def save_plan(folder: Path, plan: Plan) -> None:
    """Write how far it is."""
    content = {
        "format": "blockdraft training",
        "format_version": _FORMAT_VERSION,
        "recipe": asdict(plan.recipe),
        "done": list(plan.done),
    }
    with replacing(folder / _FILE) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


def _still_done(plan: Plan, recipe: Recipe) -> tuple[str, ...]:
    before = plan.recipe
    first: int = len(STEPS)
    if (before.hours, before.steps) != (recipe.hours, recipe.steps):
        first = STEPS.index("fit")
    if before.limit != recipe.limit:
        first = STEPS.index("corpus")
    return tuple(step for step in plan.done if STEPS.index(step) < first)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
