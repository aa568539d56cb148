"""Packed weights: every tensor type against the gguf package, and what a matrix refuses."""

from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft._native import Matrix
from tests.tiny import TENSOR_TYPES, is_superblock, random_blocks

FLOAT_TYPES = ("F32", "F16", "BF16")
SMALL_BLOCKS = tuple(t for t in TENSOR_TYPES if not is_superblock(t) and t not in FLOAT_TYPES)
SUPERBLOCKS = tuple(t for t in TENSOR_TYPES if is_superblock(t))
ROWS = 37  # two full tiles and five rows of a third

# Byte offsets of the f16 scales and minima in a block.
HALF_FIELDS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
FINITE_HALVES = np.array([bits for bits in range(0x10000) if bits & 0x7C00 != 0x7C00], np.uint16)
SHAPES = [
    *((t, cols) for t in FLOAT_TYPES for cols in (1, 37, 256)),
    *((t, cols) for t in SMALL_BLOCKS for cols in (32, 96, 320)),
    *((t, cols) for t in SUPERBLOCKS for cols in (256, 768)),
]


def type_number(tensor_type: str) -> int:
    return int(gguf.GGMLQuantizationType[tensor_type])


def block_bytes(tensor_type: str) -> int:
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor_type]][1]


def block_cols(tensor_type: str) -> int:
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor_type]][0]


def oracle(tensor_type: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[tensor_type])


def packed(tensor_type: str, rows: int, cols: int, data: NDArray[np.uint8]) -> Matrix:
    matrix = Matrix(type_number(tensor_type), rows, cols)
    matrix.pack(0, data.reshape(-1))
    return matrix


def blocks_with_any_bits(tensor_type: str, rows: int, cols: int) -> NDArray[np.uint8]:
    """Random bytes, any finite f16 where a block keeps one: also zeros, subnormals and 65504."""
    rng = np.random.default_rng(type_number(tensor_type))
    num_blocks = rows * cols // block_cols(tensor_type)
    blocks = rng.integers(0, 256, (num_blocks, block_bytes(tensor_type)), np.uint8)
    if tensor_type == "MXFP4":
        blocks[:, 0] = rng.integers(0, 253, num_blocks)  # from 253 on 12 * 2^(e - 128) overflows
    for offset in HALF_FIELDS.get(tensor_type, ()):
        halves = rng.choice(FINITE_HALVES, num_blocks)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize(("tensor_type", "cols"), SHAPES)
def test_values_equal_the_oracle(tensor_type: str, cols: int) -> None:
    data = random_blocks(np.random.default_rng(1), tensor_type, ROWS, cols)
    matrix = packed(tensor_type, ROWS, cols, data)
    np.testing.assert_array_equal(matrix.dequantize(0, ROWS), oracle(tensor_type, data))


@pytest.mark.parametrize("tensor_type", SMALL_BLOCKS + SUPERBLOCKS)
def test_any_finite_block_equals_the_oracle(tensor_type: str) -> None:
    data = blocks_with_any_bits(tensor_type, 256, 512)
    matrix = packed(tensor_type, 256, 512, data)
    np.testing.assert_array_equal(matrix.dequantize(0, 256), oracle(tensor_type, data))


@pytest.mark.parametrize("tensor_type", ["F16", "Q4_0"])
def test_every_finite_half_is_exact(tensor_type: str) -> None:
    halves = FINITE_HALVES.reshape(-1, 1).view(np.uint8)
    if tensor_type == "Q4_0":
        ones = np.full((len(halves), 16), 0x99, np.uint8)  # q - 8 = 1
        halves = np.concatenate([halves, ones], axis=1)
    cols = block_cols(tensor_type)
    values = packed(tensor_type, len(halves), cols, halves).dequantize(0, len(halves))
    expected = np.repeat(FINITE_HALVES.view(np.float16).astype(np.float32)[:, None], cols, axis=1)
    np.testing.assert_array_equal(values, expected)


def test_the_smallest_and_largest_mxfp4_scales() -> None:
    data = np.full((253, 17), 0x77, np.uint8)  # 12 in every column
    data[:, 0] = np.arange(253)
    values = packed("MXFP4", 253, 32, data).dequantize(0, 253)
    expected = np.ldexp(np.float32(12), np.arange(253) - 128)
    np.testing.assert_array_equal(values, np.repeat(expected[:, None], 32, axis=1))


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_a_range_of_rows_is_a_slice(tensor_type: str) -> None:
    data = random_blocks(np.random.default_rng(2), tensor_type, ROWS, 256)
    matrix = packed(tensor_type, ROWS, 256, data)
    whole = matrix.dequantize(0, ROWS)
    for start, count in [(0, 1), (5, 3), (14, 5), (15, 18), (31, 6), (36, 1), (37, 0)]:
        np.testing.assert_array_equal(matrix.dequantize(start, count), whole[start : start + count])


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_threads_may_pack_disjoint_rows(tensor_type: str) -> None:
    rows = 16 * 12 + 5
    data = random_blocks(np.random.default_rng(3), tensor_type, rows, 256)
    matrix = Matrix(type_number(tensor_type), rows, 256)
    with ThreadPoolExecutor(4) as threads:
        parts = [(start, data[start : start + 48].reshape(-1)) for start in range(0, rows, 48)]
        list(threads.map(lambda part: matrix.pack(*part), reversed(parts)))
    expected = packed(tensor_type, rows, 256, data).dequantize(0, rows)
    np.testing.assert_array_equal(matrix.dequantize(0, rows), expected)


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_rows_never_packed_are_zero(tensor_type: str) -> None:
    assert not Matrix(type_number(tensor_type), ROWS, 256).dequantize(0, ROWS).any()


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_a_matrix_knows_its_shape_and_bytes(tensor_type: str) -> None:
    matrix = Matrix(type_number(tensor_type), ROWS, 256)
    assert (matrix.rows, matrix.cols) == (ROWS, 256)
    assert matrix.ggml_type == type_number(tensor_type)
    in_file = 48 * 256 // block_cols(tensor_type) * block_bytes(tensor_type)
    # The 6-bit scales of these types take a byte each here.
    growth = {"Q3_K": 114 / 110, "Q4_K": 148 / 144, "Q5_K": 180 / 176, "IQ4_XS": 138 / 136}
    assert matrix.nbytes == round(in_file * growth.get(tensor_type, 1.0))


@pytest.mark.parametrize(
    ("tensor_type", "offset"),
    [(t, offset) for t, fields in HALF_FIELDS.items() for offset in fields],
)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01], ids=["inf", "-inf", "nan"])
def test_a_scale_that_is_not_finite_is_refused(tensor_type: str, offset: int, bits: int) -> None:
    data = random_blocks(np.random.default_rng(4), tensor_type, 21, 512)
    last_block = data[18, -block_bytes(tensor_type) :]
    last_block[offset : offset + 2] = np.array([bits], np.uint16).view(np.uint8)
    with pytest.raises(ValueError, match=r"non-finite scale in row 18$"):
        packed(tensor_type, 21, 512, data)


def test_the_row_of_a_bad_scale_counts_from_the_start_of_the_matrix() -> None:
    data = random_blocks(np.random.default_rng(4), "MXFP4", 16, 64)
    data[12, 17] = 255
    with pytest.raises(ValueError, match=r"non-finite scale in row 44$"):
        Matrix(type_number("MXFP4"), 64, 64).pack(32, data.reshape(-1))


@pytest.mark.parametrize(
    ("tensor_type", "bits"),
    [
        ("F32", 0x7F800000),
        ("F32", 0xFFC00000),
        ("F16", 0xFC00),
        ("F16", 0x7C01),
        ("BF16", 0x7F80),
        ("BF16", 0xFFFF),
    ],
)
def test_a_float_weight_that_is_not_finite_is_refused(tensor_type: str, bits: int) -> None:
    data = random_blocks(np.random.default_rng(5), tensor_type, 21, 33)
    word = np.uint32 if tensor_type == "F32" else np.uint16
    data.view(word)[17, 32] = bits
    with pytest.raises(ValueError, match=r"non-finite weight in row 17$"):
        packed(tensor_type, 21, 33, data)


@pytest.mark.parametrize(
    ("ggml_type", "rows", "cols", "message"),
    [
        (12, 16, 896, "Q4_K needs a multiple of 256 columns, not 896"),
        (2, 16, 48, "Q4_0 needs a multiple of 32 columns, not 48"),
        (99, 16, 32, "tensor type 99 is not supported"),
        (-1, 16, 32, "tensor type -1 is not supported"),
        (2, 0, 32, "at least one row and one column, not 0 x 32"),
        (2, 16, -32, "at least one row and one column, not 16 x -32"),
        (0, 2**62, 2**62, "too large to address"),
        (0, 2**62, 1, "too large to address"),
        (0, 1, 2**62, "too large to address"),
        (0, 2**63 - 1, 2**63 - 1, "too large to address"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    ggml_type: int, rows: int, cols: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Matrix(ggml_type, rows, cols)


@pytest.mark.parametrize(
    ("row_start", "num_bytes", "message"),
    [
        (0, 17, "17 bytes are not whole rows of 18"),
        (8, 18, "packing starts at a multiple of 16 up to 40, not at 8"),
        (-16, 18, "packing starts at a multiple of 16 up to 40, not at -16"),
        (48, 18, "packing starts at a multiple of 16 up to 40, not at 48"),
        (32, 9 * 18, "9 rows do not fit: 8 are left from row 32"),
        (0, 17 * 18, "17 rows are no multiple of 16 and 40 are left"),
    ],
)
def test_rows_that_do_not_fit_are_refused(row_start: int, num_bytes: int, message: str) -> None:
    matrix = Matrix(type_number("Q4_0"), 40, 32)
    with pytest.raises(ValueError, match=message):
        matrix.pack(row_start, np.zeros(num_bytes, np.uint8))


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, 41), (40, 1), (2**63 - 1, 2), (0, -1)])
def test_rows_outside_the_matrix_are_refused(start: int, count: int) -> None:
    matrix = Matrix(type_number("Q4_0"), 40, 32)
    with pytest.raises(
        ValueError, match=f"{count} rows from row {start} are not in a matrix of 40"
    ):
        matrix.dequantize(start, count)
