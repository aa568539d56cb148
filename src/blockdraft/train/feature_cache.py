"""Features on the disk, so that a later epoch need not run the target again.

A folder with ``features.f16``, rows one after the other, and ``index.bin``, one record per
sequence: checksum of its token ids, first row, number of rows. Rows come before their record, so a
process that dies leaves whole entries. ``cache.json`` says whose features they are. Values are
float16, also of a sequence that was just computed: the same numbers whether it was kept or not.
Knows no network.
"""

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.errors import CapacityError, ConfigError
from blockdraft.train.features import FeatureSource

__all__ = ["FeatureCache"]

_DATA, _INDEX, _HEADER = "features.f16", "index.bin", "cache.json"
_RECORD = struct.Struct("<16sQQ")
_LARGEST = 65504.0


class FeatureCache:
    """A source of features that keeps what another source gives.

    Attributes:
        hits: Sequences that were read.
        misses: Sequences that were computed.
    """

    def __init__(
        self,
        folder: Path,
        source: FeatureSource,
        *,
        target_sha256: str,
        taps: Sequence[int],
        hidden_size: int,
        max_bytes: int,
    ) -> None:
        """Open the folder or begin it.

        Args:
            folder: For this process alone.
            source: Computes what is missing.
            target_sha256: Checksum of the target.
            taps: Target layers of the features.
            hidden_size: Columns of a tap.
            max_bytes: What the rows may take on the disk; what comes later is not kept.

        Raises:
            ConfigError: The folder has features of another target or other layers, or another
                process uses it.
        """
        self.hits = self.misses = 0
        self._source = source
        self._size = hidden_size * len(taps)
        self._max_bytes = max_bytes
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._check_header({"target_sha256": target_sha256, "taps": list(taps)})
        self._data = os.open(folder / _DATA, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._data, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._data)
            raise ConfigError(f"another process uses the feature cache {folder}") from error
        self._places = self._read_index()
        self._end = max((start + rows for start, rows in self._places.values()), default=0)

    def close(self) -> None:
        """Let another process use the folder."""
        os.close(self._data)

    def extract(self, sequences: Sequence[NDArray[np.int32]]) -> list[Tensor]:
        """Features of each sequence of token ids, float32 "tokens taps*hidden"."""
        keys = [hashlib.blake2b(each.tobytes(), digest_size=16).digest() for each in sequences]
        missing = [i for i, key in enumerate(keys) if key not in self._places]
        computed = dict(zip(missing, self._computed(sequences, missing), strict=True))
        for index, rows in computed.items():
            self._keep(keys[index], rows)
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        halves = [computed[i] if i in computed else self._read(key) for i, key in enumerate(keys)]
        return [torch.from_numpy(each.astype(np.float32)) for each in halves]

    def _computed(
        self, sequences: Sequence[NDArray[np.int32]], missing: Sequence[int]
    ) -> list[NDArray[np.float16]]:
        if not missing:
            return []
        found = self._source.extract([sequences[i] for i in missing])
        # Residual streams have outliers; float16 must not make them infinite.
        return [each.clamp(-_LARGEST, _LARGEST).half().numpy() for each in found]

    def _keep(self, key: bytes, rows: NDArray[np.float16]) -> None:
        if (self._end + len(rows)) * self._row_bytes > self._max_bytes or key in self._places:
            return
        try:
            _write_all(self._data, rows.tobytes(), self._end * self._row_bytes)
        except OSError as error:
            raise CapacityError(f"the feature cache {self._folder}: {error.strerror}") from error
        with (self._folder / _INDEX).open("ab") as index:
            index.write(_RECORD.pack(key, self._end, len(rows)))
        self._places[key] = (self._end, len(rows))
        self._end += len(rows)

    def _read(self, key: bytes) -> NDArray[np.float16]:
        start, num_rows = self._places[key]
        wanted = num_rows * self._row_bytes
        data = os.pread(self._data, wanted, start * self._row_bytes)
        if len(data) != wanted:
            raise ConfigError(f"{self._folder / _DATA} ends before row {start + num_rows}")
        return np.frombuffer(data, np.float16).reshape(num_rows, self._size)

    @property
    def _row_bytes(self) -> int:
        return 2 * self._size

    def _read_index(self) -> dict[bytes, tuple[int, int]]:
        path = self._folder / _INDEX
        content = path.read_bytes() if path.exists() else b""
        whole = len(content) // _RECORD.size * _RECORD.size
        if whole != len(content):
            os.truncate(path, whole)
        written = os.fstat(self._data).st_size // self._row_bytes
        records = _RECORD.iter_unpack(content[:whole])
        return {key: (at, rows) for key, at, rows in records if at + rows <= written}

    def _check_header(self, header: dict[str, object]) -> None:
        path = self._folder / _HEADER
        if not path.exists():
            path.write_text(json.dumps(header) + "\n")
            return
        found = json.loads(path.read_text())
        for key, value in header.items():
            if found.get(key) != value:
                raise ConfigError(
                    f"the feature cache {self._folder} has {key} {found.get(key)}, not {value}"
                )


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
