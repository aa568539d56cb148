"""Prompts to answer: JSON lines in files, or in a dataset of the Hugging Face hub.

A line is an object with ``prompt``, and optionally ``id``, ``category``, ``source``, ``licence``
and ``turns``; other keys are left alone. Knows no model, and leaves the choice among prompts to
``selection``.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blockdraft.errors import ConfigError
from blockdraft.hub import resolve_dataset

__all__ = ["OTHER", "Prompt", "PromptFile", "read_prompts"]

OTHER = "other"
"""Category of a prompt that names none."""

_ID_LETTERS = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn.

    Attributes:
        id: Its name, unique in its file.
        category: What kind it is.
        source: Where it comes from; "" where its line does not say.
        text: The turn.
        later_turns: The user's further turns; they are not answered.
        licence: Of the source; "" where its line does not say.
    """

    id: str
    category: str
    source: str
    text: str
    later_turns: tuple[str, ...] = ()
    licence: str = ""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of one file.

    Attributes:
        name: The file's name, without its folder.
        sha256: Checksum of the file as it lies on the disk.
        prompts: In the order of the file.
    """

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]


def read_prompts(spec: str) -> PromptFile:
    """The prompts of ``spec``: a path, or ``hf:ORG/DATASET[:FILE]``.

    The file is JSON lines, compressed with gzip where its name ends in ``.gz``.

    Raises:
        ConfigError: There is no such file, it has no prompts, or a line is not one; the message
            says which.
        DownloadError: The hub cannot be reached.
    """
    path = resolve_dataset(spec) if spec.startswith("hf:") else Path(spec).expanduser()
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise ConfigError(f"the prompts {spec} {what}")
    data = path.read_bytes()
    lines = _text(data, spec, compressed=path.name.endswith(".gz")).split("\n")
    found: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _parse_line(line, f"{spec}, line {number}")
        if prompt.id in found and found[prompt.id].text != prompt.text:
            raise ConfigError(f"{spec}, line {number}: the id {prompt.id!r} is taken")
        found.setdefault(prompt.id, prompt)
    if not found:
        raise ConfigError(f"{spec} has no prompts")
    return PromptFile(path.name, hashlib.sha256(data).hexdigest(), tuple(found.values()))


def _text(data: bytes, spec: str, *, compressed: bool) -> str:
    try:
        return (gzip.decompress(data) if compressed else data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{spec} is not UTF-8 text: byte {error.start} is wrong") from error
    except (EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"{spec} cannot be decompressed: {error}") from error


def _parse_line(line: str, place: str) -> Prompt:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{place} is not a JSON object")
    text = found.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{place} has no text under 'prompt'")
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{place} has a surrogate at character {error.start}") from error
    values = {"id": digest[:_ID_LETTERS], "category": OTHER, "source": "", "licence": ""}
    for key in values:
        value = found.get(key, values[key])
        if not isinstance(value, str) or (not value and key in ("id", "category")):
            raise ConfigError(f"{place} has {value!r} under {key!r}, which must be a text")
        values[key] = value
    return Prompt(**values, text=text, later_turns=_later_turns(found.get("turns", ()), place))


def _later_turns(turns: Sequence[object], place: str) -> tuple[str, ...]:
    if not isinstance(turns, list | tuple) or not all(isinstance(turn, str) for turn in turns):
        raise ConfigError(f"{place} has no list of texts under 'turns'")
    return tuple(str(turn) for turn in turns[1:])
