"""Matrix products alone: extreme weights and activations, every type, row count and path.

Models in other tests have tame values; here sums reach what the narrow integer steps of a path
can hold, and activations what their scale can.
"""

from collections.abc import Sequence
from itertools import product as product_of

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.weights.ggml_types import SUPPORTED_TYPES, ggml_type_number
from tests.spec import SPEC_TYPES, decode, matmul
from tests.tiny import FLOAT_TYPES, TENSOR_TYPES, random_blocks

ISAS = _native.isa_names()
OUT, COLS = 104, 512  # tiles: four side by side, two more, and a broken one
# Bytes of a block that hold f16 scales, or MXFP4's exponent: they must stay finite.
SCALE_BYTES = {
    "Q4_0": (0, 2),
    "Q4_1": (0, 4),
    "Q5_0": (0, 2),
    "Q5_1": (0, 4),
    "Q8_0": (0, 2),
    "IQ4_NL": (0, 2),
    "MXFP4": (0, 1),
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q4_K": (0, 4),
    "Q5_K": (0, 4),
    "Q6_K": (208, 210),
    "IQ4_XS": (0, 2),
}
Floats = NDArray[np.float32]


def weight_bytes(tensor_type: str, fill: int | None, seed: int = 0) -> NDArray[np.uint8]:
    """Random weights; with ``fill`` every byte that is no scale is that."""
    data = random_blocks(np.random.default_rng(seed), tensor_type, OUT, COLS)
    if fill is not None and tensor_type not in FLOAT_TYPES:
        nbytes = SUPPORTED_TYPES[ggml_type_number(tensor_type)].block_bytes
        blocks = data.reshape(-1, nbytes)
        first, last = SCALE_BYTES[tensor_type]
        blocks[:, :first] = blocks[:, last:] = fill
    return data


def matrix(tensor_type: str, rows: int, cols: int, data: NDArray[np.uint8]) -> _native.Matrix:
    packed = _native.Matrix(ggml_type_number(tensor_type), rows, cols)
    packed.pack(0, np.ascontiguousarray(data).reshape(-1))
    return packed


class Product:
    """``table[ids] * scale @ weight.T`` as a plan of its own."""

    def __init__(
        self,
        weight: _native.Matrix,
        table: Floats,
        isa: str,
        *,
        scale: float = 1.0,
        side_by_side: bool = False,
    ) -> None:
        self._plan = _native.Plan(64, isa)
        self._plan.side_by_side = side_by_side
        x, self._out = self._plan.buffer(COLS), self._plan.buffer(OUT)
        self._plan.embed(matrix("F32", len(table), COLS, table.view(np.uint8)), x, scale)
        self._plan.project(
            x=x,
            weights=[weight],
            outs=[self._out],
            biases=[None],
            norm=None,
            eps=0.0,
            up=-1,
            gate="silu",
            accumulate=False,
        )

    def __call__(self, ids: Sequence[int], *, threads: int = 1) -> Floats:
        count = len(ids)
        row_starts = np.array([0, count], np.int32)
        rows = np.arange(count, dtype=np.int32)
        pages = np.zeros((1, 1), np.uint64)
        self._plan.run(
            _native.Pool(threads),
            np.array(ids, np.int32),
            rows,
            rows - 1,
            row_starts,
            np.zeros(1, np.int32),
            pages,
            pages,
            rows,
        )
        return self._plan.view(self._out)[:count, :OUT].copy()


def extreme_rows() -> Floats:
    """Activations at the ends of what quantization does."""
    rng = np.random.default_rng(7)
    noise = rng.standard_normal((6, COLS)).astype(np.float32)
    signs = np.where(rng.integers(0, 2, COLS), 1.0, -1.0)
    rows = [
        np.full(COLS, 3.0),
        np.full(COLS, -3.0),
        np.where(np.arange(COLS) % 2, 1.0, -1.0),
        signs * 5,
        np.zeros(COLS),
        np.full(COLS, -0.0),
        np.eye(1, COLS, 17)[0] * 1e30,
        signs * 2.0**-100,  # the smallest that is not taken for zero
        signs * np.nextafter(np.float32(2.0**-100), np.float32(0)),
        signs * 1e-42,
        (np.arange(COLS) % 255 - 127) / 2,  # ties of rounding: 127 / 63.5 is exact
        signs * np.exp(rng.uniform(-40, 40, COLS)),
    ]
    return np.vstack([*noise, *rows]).astype(np.float32)


TABLE = extreme_rows()
ALL = list(range(len(TABLE)))


@pytest.mark.parametrize("fill", [None, 0x00, 0xFF, 0x80, 0x7F], ids=str)
@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_extremes(tensor_type: str, fill: int | None) -> None:
    data = weight_bytes(tensor_type, fill)
    weight = matrix(tensor_type, OUT, COLS, data)
    with np.errstate(over="ignore"):
        reference = Product(weight, TABLE, "scalar")(ALL)
    assert np.isfinite(reference).all()
    if tensor_type in SPEC_TYPES:
        expected = matmul(decode(tensor_type, data.reshape(-1), OUT), TABLE)
        assert np.array_equal(reference, expected)
    for isa, side_by_side in product_of(ISAS[1:], (False, True)):
        product = Product(weight, TABLE, isa, side_by_side=side_by_side)
        assert product(ALL).tobytes() == reference.tobytes()
        for count in (1, 2, 3, 4, 7):
            pieces = [product(ALL[start : start + count]) for start in ALL[::count]]
            assert np.vstack(pieces).tobytes() == reference.tobytes()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    tensor_type=st.sampled_from(TENSOR_TYPES),
    isa=st.sampled_from(ISAS),
    threads=st.sampled_from([1, 2]),
    ids=st.lists(st.sampled_from(ALL), min_size=1, max_size=64),
)
def test_rows_do_not_see_each_other(
    tensor_type: str, isa: str, threads: int, ids: list[int]
) -> None:
    """Any rows in any order, as many as a pass may have."""
    weight = matrix(tensor_type, OUT, COLS, weight_bytes(tensor_type, None))
    together = Product(weight, TABLE, isa)(ids, threads=threads)
    alone = Product(weight, TABLE, "scalar")
    rows = {i: alone([i]) for i in set(ids)}
    assert together.tobytes() == np.vstack([rows[i] for i in ids]).tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tensor_type", [*TENSOR_TYPES])
def test_infinite_rows_spoil_no_other(tensor_type: str, isa: str) -> None:
    """A row that overflows gives NaN or infinity and leaves its neighbours alone."""
    table = TABLE * np.float32(2.0**-100)
    table[3, 5] = 1e30  # overflows once it is scaled
    weight = matrix(tensor_type, OUT, COLS, weight_bytes(tensor_type, None))
    product = Product(weight, table, isa, scale=2.0**100)
    together = product([0, 1, 2, 3, 4, 5])
    assert not np.isfinite(together[3]).any()
    kept = [0, 1, 2, 4, 5]
    assert together[kept].tobytes() == np.vstack([product([i]) for i in kept]).tobytes()
