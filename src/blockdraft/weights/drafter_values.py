"""Values of an open drafter's tensors, each read when it is asked for.

What quantized weights stand for comes from the native core. Knows no format that is written.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.errors import FileFormatError
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_names import VOCAB_MAP

__all__ = ["DrafterValues"]

_F32, _F16, _BF16 = 0, 1, 30


class DrafterValues(Mapping[str, NDArray[Any]]):
    """Float32 values under our names, in their shapes; ``d2t`` gives target tokens.

    An access raises FileFormatError where the file shrank or is damaged.
    """

    def __init__(self, file: DrafterFile) -> None:
        """Take values from ``file``, which has to stay open."""
        self._file = file

    def __len__(self) -> int:
        return len(self._file.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._file.tensors  # without a read

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._file.tensors:
            raise KeyError(name)
        if name == VOCAB_MAP:
            token_ids = self._file.vocab_map()
            assert token_ids is not None
            return token_ids
        info = self._file.tensor(name)
        data = self._file.read(name)
        if info.ggml_type == _BF16:
            values = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        elif info.ggml_type in (_F32, _F16):
            values = data.view("<f4" if info.ggml_type == _F32 else "<f2").astype(np.float32)
        else:
            values = self._dequantized(name, data)
        return values.reshape(info.shape)

    def _dequantized(self, name: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        info = self._file.tensor(name)
        try:
            matrix = _native.Matrix(info.ggml_type, info.rows, info.cols)
            matrix.pack(0, data)
        except ValueError as error:
            raise FileFormatError(f"{self._file.path}: tensor {name}: {error}") from error
        return matrix.dequantize(0, info.rows)
