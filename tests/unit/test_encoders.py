"""Our encoders against the `gguf` package: its decoder always, its encoder for what it has."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.weights.encoders import ENCODABLE, encode
from blockdraft.weights.ggml_types import SUPPORTED_TYPES, ggml_type_name

Floats = NDArray[np.float32]

BLOCK_TYPES = [Type.Q4_0, Type.Q5_0, Type.Q8_0, Type.Q4_K, Type.Q6_K]
# Root of the squared error over that of the values, of normal values.
ERRORS = {Type.Q4_0: 0.083, Type.Q5_0: 0.041, Type.Q8_0: 0.0058, Type.Q4_K: 0.071, Type.Q6_K: 0.018}


def normal(rows: int = 64, cols: int = 512, seed: int = 0) -> Floats:
    return 0.03 * np.random.default_rng(seed).standard_normal((rows, cols), np.float32)


VALUES = {
    "normal": normal(),
    "heavy tails": normal() ** 3 / 0.03**2,
    "not centred": normal() + np.float32(0.02),
    "all positive": np.abs(normal()),
    "even": np.linspace(-1, 1, 64 * 512, dtype=np.float32).reshape(64, 512),
    "one large": np.where(np.arange(64 * 512) % 32 == 5, 9, normal().ravel())
    .astype(np.float32)
    .reshape(64, 512),
}


def decode(data: NDArray[np.uint8], kind: Type) -> Floats:
    """What the bytes stand for, as the `gguf` package and the native core agree."""
    values: Floats = gguf.quants.dequantize(data, kind)
    matrix = _native.Matrix(int(kind), *values.shape)
    matrix.pack(0, np.ascontiguousarray(data).reshape(-1))
    assert np.array_equal(matrix.dequantize(0, matrix.rows), values)
    return values


def error(values: Floats, kind: Type) -> float:
    decoded = decode(encode(int(kind), values), kind)
    return float(np.linalg.norm(decoded - values) / np.linalg.norm(values))


def test_every_type_is_tested() -> None:
    plain = {Type.F32, Type.F16, Type.BF16}
    assert {Type(number) for number in ENCODABLE} == {*BLOCK_TYPES, *plain}


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0], ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_bytes_of_simple_types_are_the_oracles(kind: Type, name: str) -> None:
    expected = gguf.quants.quantize(VALUES[name], kind)
    assert np.array_equal(encode(int(kind), VALUES[name]), expected.view(np.uint8))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q5_0], ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_search_loses_no_more_than_the_oracles_fixed_scale(kind: Type, name: str) -> None:
    values = VALUES[name]
    theirs = decode(gguf.quants.quantize(values, kind), kind)
    weights = np.abs(values) + np.sqrt(np.square(values).mean(1, keepdims=True))

    def loss(decoded: Floats) -> float:
        return float((weights * np.square(decoded - values)).sum())

    assert loss(decode(encode(int(kind), values), kind)) <= 1.001 * loss(theirs)


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=str)
def test_error_of_normal_values(kind: Type) -> None:
    assert 0.9 * ERRORS[kind] < error(normal(), kind) < ERRORS[kind]


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_error_is_bounded_by_the_blocks_largest(kind: Type, name: str) -> None:
    blocks = VALUES[name].reshape(-1, SUPPORTED_TYPES[int(kind)].block_size)
    decoded = decode(encode(int(kind), blocks), kind)
    codes = {Type.Q4_0: 16, Type.Q5_0: 32, Type.Q8_0: 256, Type.Q4_K: 16, Type.Q6_K: 64}[kind]
    largest = np.abs(blocks).max(1, keepdims=True)
    assert (np.abs(decoded - blocks) <= 2.5 * largest / codes).all()


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q5_0, Type.Q8_0], ids=str)
def test_values_that_codes_stand_for_stay(kind: Type) -> None:
    once = decode(encode(int(kind), normal()), kind)
    assert error(once, kind) < 1e-3


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=str)
def test_zeros_stay_zeros(kind: Type) -> None:
    values = np.zeros((2, 512), np.float32)
    values[1, 300] = 1.0  # other blocks of the row, and small blocks beside it
    decoded = decode(encode(int(kind), values), kind)
    assert np.flatnonzero(decoded).tolist() == [812]
    assert decoded[1, 300] == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=str)
@pytest.mark.parametrize("value", [1.0, -1.0, 0.03, 6e4])
def test_equal_values_decode_close(kind: Type, value: float) -> None:
    values = np.full((1, 256), value, np.float32)
    decoded = decode(encode(int(kind), values), kind)
    assert decoded == pytest.approx(values, rel=0.08)


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=str)
def test_values_too_small_for_a_scale_become_zero(kind: Type) -> None:
    values = np.full((1, 256), 1e-40, np.float32)
    assert not decode(encode(int(kind), values), kind).any()


@pytest.mark.parametrize("number", sorted(ENCODABLE), ids=ggml_type_name)
def test_rows_do_not_depend_on_each_other(number: int) -> None:
    """Many rows go through in pieces, whose borders are no borders of the result."""
    values = normal(300, 1024)
    encoded = encode(number, values)
    assert encoded.shape == (
        300,
        1024 // SUPPORTED_TYPES[number].block_size * SUPPORTED_TYPES[number].block_bytes,
    )
    for row in (0, 127, 128, 299):
        assert np.array_equal(encoded[row], encode(number, values[row : row + 1])[0])
