"""Packed and float weights: the gguf package's values, bounded memory, errors that name tensors."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.errors import FileFormatError
from blockdraft.weights import packed
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.packed import FloatWeights, PackedWeights
from tests.raw_gguf import build, tensor
from tests.tiny import TENSOR_TYPES

MATRICES = ("token_embd.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight")


def save(tmp_path: Path, sizes: tuple[int, ...], kind: int, values: NDArray[np.generic]) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(build((), (tensor("w", sizes, kind),), data=values.tobytes()))
    return path


def oracle(path: Path, name: str) -> NDArray[np.float32]:
    theirs = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    values = gguf.dequantize(theirs.data, theirs.tensor_type)
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_float_weights_equal_the_gguf_package(
    tiny_model: Callable[..., Path], tensor_type: str
) -> None:
    path = tiny_model("llama", tensor_type)
    with GGUFFile.open(path) as file:
        weights = FloatWeights(file)
        for name in MATRICES:
            np.testing.assert_allclose(
                weights.matrix(name), oracle(path, name), rtol=1e-6, atol=1e-7
            )


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("tensor_type", ["Q4_1", "Q6_K"])
def test_pieces_and_threads_do_not_matter(
    tiny_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tensor_type: str,
    num_threads: int,
) -> None:
    with GGUFFile.open(tiny_model("llama", tensor_type)) as file:
        expected = {name: FloatWeights(file).matrix(name) for name in MATRICES}
        monkeypatch.setattr(packed, "_PIECE_BYTES", 1)  # one tile per piece
        weights = PackedWeights(file, num_threads)
        weights.load_all(MATRICES)
        for name in MATRICES:
            matrix = weights.matrix(name)
            assert (matrix.dequantize(0, matrix.rows) == expected[name]).all()


def test_a_matrix_is_packed_once(tiny_model: Callable[..., Path]) -> None:
    with GGUFFile.open(tiny_model()) as file:
        weights = PackedWeights(file)
        assert weights.nbytes == 0
        first = weights.matrix("token_embd.weight")
        weights.load_all(["token_embd.weight", "blk.0.attn_q.weight"])
        assert weights.matrix("token_embd.weight") is first
        assert weights.nbytes == first.nbytes + weights.matrix("blk.0.attn_q.weight").nbytes
        assert weights.has("blk.0.attn_q.weight")
        assert not weights.has("blk.9.attn_q.weight")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_vector_keeps_the_values(tmp_path: Path, dtype: str) -> None:
    values = np.array([1.5, -2, 0, 0.25], np.float32)
    kind = gguf.GGMLQuantizationType[dtype]
    stored: dict[str, NDArray[np.generic]] = {
        "F32": values,
        "F16": values.astype(np.float16),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
    }
    with GGUFFile.open(save(tmp_path, (4,), kind, stored[dtype])) as file:
        for weights in (PackedWeights(file), FloatWeights(file)):
            vector = weights.vector("w")
            assert (vector == values).all()
            assert vector.dtype == np.float32
            assert weights.vector("w") is vector


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_vector_that_is_not_finite_is_refused(tmp_path: Path, bad: float) -> None:
    path = save(tmp_path, (4,), 0, np.array([0, 1, bad, 2], np.float32))
    with (
        GGUFFile.open(path) as file,
        pytest.raises(FileFormatError, match=f"tensor w has the value {bad} at index 2"),
    ):
        PackedWeights(file).vector("w")


@pytest.mark.parametrize(("sizes", "kind"), [((32, 1), 0), ((32,), 8)], ids=["matrix", "Q8_0"])
def test_vector_of_another_form_is_refused(
    tmp_path: Path, sizes: tuple[int, ...], kind: int
) -> None:
    path = save(tmp_path, sizes, kind, np.zeros(32, np.float32))
    with (
        GGUFFile.open(path) as file,
        pytest.raises(FileFormatError, match=r"tensor w has type .* must be one row of F32, F16"),
    ):
        PackedWeights(file).vector("w")


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_scale_that_is_not_finite_is_refused(tmp_path: Path, scale: float) -> None:
    blocks = np.zeros((17, 18), np.uint8)
    blocks[16, :2] = np.array([scale], "<f2").view(np.uint8)
    path = save(tmp_path, (32, 17), 2, blocks)
    with (
        GGUFFile.open(path) as file,
        pytest.raises(FileFormatError, match=r"model\.gguf: tensor w: .*"),
    ):
        PackedWeights(file).matrix("w")


@pytest.mark.parametrize("sizes", [(32,), (32, 2, 2)], ids=["vector", "cube"])
def test_matrix_of_another_rank_is_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    path = save(tmp_path, sizes, 0, np.zeros(128, np.float32))
    with (
        GGUFFile.open(path) as file,
        pytest.raises(FileFormatError, match=r"tensor w has shape \(.*\), not 2 sizes"),
    ):
        PackedWeights(file).matrix("w")


def test_missing_tensor_is_named(tiny_model: Callable[..., Path]) -> None:
    with (
        GGUFFile.open(tiny_model()) as file,
        pytest.raises(FileFormatError, match="has no tensor 'none'"),
    ):
        PackedWeights(file).load_all(["none"])
