"""A file's tensors in the form that the kernels and the oracle read.

Matrices are read in pieces of a few megabytes and packed by several threads at once, so that the
memory beside the packed weights stays small. Knows no architecture and no tensor's meaning.
"""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.errors import CapacityError, FileFormatError
from blockdraft.weights.ggml_types import ggml_type_name
from blockdraft.weights.header import TensorInfo
from blockdraft.weights.tensors import TensorFile

__all__ = ["FloatWeights", "PackedWeights", "pack_rows", "packed_bytes"]

_TILE_ROWS = 16
_PIECE_BYTES = 4 << 20
_F32, _F16, _BF16 = 0, 1, 30


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one matrix that one thread reads and packs."""

    matrix: _native.Matrix
    info: TensorInfo
    row_start: int
    num_rows: int

    @property
    def nbytes(self) -> int:
        return self.num_rows * self.info.row_bytes


def _new_matrix(file: TensorFile, name: str) -> _native.Matrix:
    info = file.tensor(name)
    if len(info.shape) != 2:
        raise FileFormatError(f"{file.path}: tensor {name} has shape {info.shape}, not 2 sizes")
    try:
        return _native.Matrix(info.ggml_type, info.rows, info.cols)
    except ValueError as error:
        raise FileFormatError(f"{file.path}: tensor {name}: {error}") from error
    except MemoryError as error:
        raise CapacityError(
            f"{file.path}: no memory for tensor {name} of {info.nbytes} bytes"
        ) from error


def packed_bytes(file: TensorFile) -> int:
    """Bytes of all weights of ``file`` once loaded; reads none of them.

    Raises:
        FileFormatError: A matrix's width does not fit its type.
    """
    total = 0
    for name, info in file.tensors.items():
        if len(info.shape) == 2:
            # A new matrix is memory that was never touched: asking for its size costs nothing.
            total += _new_matrix(file, name).nbytes
        else:
            total += info.rows * info.cols * 4  # vectors are kept as float32
    return total


def _pieces(matrix: _native.Matrix, info: TensorInfo) -> list[_Piece]:
    """Cut a matrix at tile borders into pieces of about `_PIECE_BYTES`."""
    step = max(_PIECE_BYTES // info.row_bytes // _TILE_ROWS, 1) * _TILE_ROWS
    return [
        _Piece(matrix, info, start, min(step, info.rows - start))
        for start in range(0, info.rows, step)
    ]


def _pack(file: TensorFile, names: Iterable[str], num_threads: int) -> dict[str, _native.Matrix]:
    """Read and pack the named matrices on ``num_threads`` threads."""
    infos = sorted((file.tensor(name) for name in set(names)), key=lambda info: info.offset)
    matrices = {info.name: _new_matrix(file, info.name) for info in infos}
    pieces = [piece for info in infos for piece in _pieces(matrices[info.name], info)]
    if not pieces:
        return matrices
    largest = max(piece.nbytes for piece in pieces)
    local = threading.local()

    def pack(piece: _Piece) -> None:
        # One buffer per thread: a new one per piece costs more in page faults than its read.
        if not hasattr(local, "buffer"):
            local.buffer = np.empty(largest, np.uint8)
        name = piece.info.name
        data = file.read_rows(name, piece.row_start, piece.num_rows, out=local.buffer)
        try:
            piece.matrix.pack(piece.row_start, data)
        except ValueError as error:
            raise FileFormatError(f"{file.path}: tensor {name}: {error}") from error

    with ThreadPoolExecutor(num_threads, "pack") as executor:
        for _ in executor.map(pack, pieces):  # the first error cancels what has not begun
            pass
    return matrices


def _read_vector(file: TensorFile, name: str) -> NDArray[np.float32]:
    info = file.tensor(name)
    # Three sizes are a table of kernels, which is handed out flat.
    if len(info.shape) == 2 or info.ggml_type not in (_F32, _F16, _BF16):
        raise FileFormatError(
            f"{file.path}: tensor {name} has type {ggml_type_name(info.ggml_type)} and shape"
            f" {info.shape}, it must be one row of F32, F16 or BF16"
        )
    data = file.read(name)
    if info.ggml_type == _BF16:
        vector = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        vector = data.view("<f4" if info.ggml_type == _F32 else "<f2").astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise FileFormatError(
            f"{file.path}: tensor {name} has the value {vector[bad[0]]} at index {bad[0]}"
        )
    return vector


class _Weights:
    """What both forms share: the file and its vectors."""

    def __init__(self, file: TensorFile, num_threads: int = 1) -> None:
        """Take tensors from ``file``, which has to stay open until they were all asked for."""
        self._file = file
        self._num_threads = num_threads
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def has(self, name: str) -> bool:
        """Whether the file has the tensor."""
        return name in self._file.tensors

    def vector(self, name: str) -> NDArray[np.float32]:
        """The values of a tensor that is no matrix, flat; the same array at every call.

        Raises:
            FileFormatError: It is missing, a matrix, no float, or a value is not finite.
        """
        if name not in self._vectors:
            self._vectors[name] = _read_vector(self._file, name)
        return self._vectors[name]


class PackedWeights(_Weights):
    """Tensors for the native core; a matrix is packed when first asked for and then kept."""

    def __init__(self, file: TensorFile, num_threads: int = 1) -> None:
        """Take tensors from ``file``, which has to stay open until they were all asked for."""
        super().__init__(file, num_threads)
        self._matrices: dict[str, _native.Matrix] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices packed so far."""
        return sum(matrix.nbytes for matrix in self._matrices.values())

    def load_all(self, names: Iterable[str]) -> None:
        """Pack many matrices at once; faster than one `matrix` call after the other.

        Raises:
            FileFormatError: A tensor is missing, has not two sizes or a value that is not finite.
            CapacityError: There is no memory for it.
        """
        missing = [name for name in names if name not in self._matrices]
        self._matrices |= _pack(self._file, missing, self._num_threads)

    def matrix(self, name: str) -> _native.Matrix:
        """The packed matrix; raises what `load_all` raises."""
        self.load_all([name])
        return self._matrices[name]


def pack_rows(file: TensorFile, name: str, rows: Sequence[int]) -> _native.Matrix:
    """Some rows of a matrix, packed as a matrix of their own.

    Raises:
        FileFormatError: There is no such matrix, or a value is not finite.
        CapacityError: There is no memory for it.
    """
    info = file.tensor(name)
    matrix = _native.Matrix(info.ggml_type, len(rows), info.cols)
    data = np.empty((len(rows), info.row_bytes), np.uint8)
    for place, row in enumerate(rows):
        file.read_rows(name, row, 1, out=data[place])
    try:
        matrix.pack(0, data.reshape(-1))
    except ValueError as error:
        raise FileFormatError(f"{file.path}: tensor {name}: {error}") from error
    return matrix


class FloatWeights(_Weights):
    """Tensors as plain float32, for the oracle: the very values that packed weights stand for."""

    def __init__(self, file: TensorFile, num_threads: int = 1) -> None:
        """Take tensors from ``file``, which has to stay open until they were all asked for."""
        super().__init__(file, num_threads)
        self._matrices: dict[str, NDArray[np.float32]] = {}

    def matrix(self, name: str) -> NDArray[np.float32]:
        """The matrix, "rows columns"; raises what `PackedWeights.load_all` raises."""
        if name not in self._matrices:
            packed = _pack(self._file, [name], self._num_threads)[name]
            self._matrices[name] = packed.dequantize(0, packed.rows)
        return self._matrices[name]
