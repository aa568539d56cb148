"""Adds to a written drafter how often its drafts were accepted, which is known only afterwards.

Tensors keep their bytes, so the figures stay true of the file. Knows no network.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blockdraft.weights.drafter_gguf import ACCEPTED
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.gguf_writer import NewTensor, NewValue, RawEntry, write_gguf
from blockdraft.weights.replacing import replacing
from blockdraft.weights.safetensors import read_json

__all__ = ["add_accepted"]

_CONFIG = "config.json"


def add_accepted(path: Path, shares: Sequence[float]) -> None:
    """Write into a drafter what its value is taken for before a draft of it was verified.

    Args:
        path: A GGUF file, or a folder with ``config.json``; replaced when the new one is whole.
        shares: Share of rounds whose first 1, 2, ... drafts were all accepted; each is taken for
            at most that before it. None changes nothing.

    Raises:
        FileFormatError: It cannot be read.
        OSError: It cannot be written.
    """
    if not shares:
        return
    falling = np.minimum.accumulate(np.array(shares, np.float32))
    if path.is_dir():
        content = read_json(path / _CONFIG)
        content["dflash_config"]["accepted_by_position"] = [float(str(share)) for share in falling]
        with replacing(path / _CONFIG) as out:
            out.write(json.dumps(content, indent=2).encode() + b"\n")
        return
    with GGUFFile.open(path) as file:
        keys: dict[str, NewValue] = {key: RawEntry(file.raw_entry(key)) for key in file.metadata}
        keys[ACCEPTED] = falling
        tensors = [NewTensor(t.name, t.shape, t.ggml_type) for t in file.tensors.values()]
        write_gguf(path, keys, tensors, (file.read(name) for name in file.tensors))
