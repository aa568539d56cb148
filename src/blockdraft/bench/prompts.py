"""Prompts of the speed measurement: a small set of our own, or a file of JSON lines.

A line has ``id``, ``category`` and ``prompt``; other keys are left alone. Knows no models.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from blockdraft.errors import ConfigError

__all__ = ["BUILTIN", "SpeedPrompt", "load_prompts"]

BUILTIN = "builtin"
"""Name of our own set: 8 prompts each of code, code edit, explanation, chat and maths."""

_KEYS = ("id", "category", "prompt")


@dataclass(frozen=True, slots=True)
class SpeedPrompt:
    """One prompt.

    Attributes:
        id: Its name, unique in its set.
        category: What kind it is.
        prompt: The text of a user's turn.
    """

    id: str
    category: str
    prompt: str


def load_prompts(source: str) -> tuple[SpeedPrompt, ...]:
    """The prompts of a file, or our own for `BUILTIN`.

    Raises:
        ConfigError: There is no such file, it has no prompts, or a line is not one; the message
            says which.
    """
    if source == BUILTIN:
        text = resources.files("blockdraft.bench").joinpath("prompts.jsonl").read_text("utf-8")
        return _parse(text.splitlines(), BUILTIN)
    path = Path(source)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise ConfigError(f"the prompts {source} {what}")
    try:
        return _parse(path.read_text("utf-8").splitlines(), source)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text: byte {error.start} is wrong") from error


def _parse(lines: Iterable[str], source: str) -> tuple[SpeedPrompt, ...]:
    prompts: dict[str, SpeedPrompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _parse_line(line, f"{source}, line {number}")
        if prompt.id in prompts:
            raise ConfigError(f"{source}, line {number}: the id {prompt.id!r} is taken")
        prompts[prompt.id] = prompt
    if not prompts:
        raise ConfigError(f"{source} has no prompts")
    return tuple(prompts.values())


def _parse_line(line: str, place: str) -> SpeedPrompt:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{place} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{place} is not a JSON object")
    for key in _KEYS:
        if not isinstance(found.get(key), str) or not found[key]:
            raise ConfigError(f"{place} has no text under {key!r}")
    return SpeedPrompt(*(found[key] for key in _KEYS))
