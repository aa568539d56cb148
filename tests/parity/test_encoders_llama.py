"""Our encoders against llama.cpp's own quantizer: no more error than its codes have."""

import ctypes

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from blockdraft.weights.encoders import encode
from tests.parity.llama_vocab import _library

Floats = NDArray[np.float32]

MOST = 1.01
SHAPE = (64, 512)


def distributions() -> dict[str, Floats]:
    rng = np.random.default_rng(3)
    values = {
        "normal": rng.standard_normal(SHAPE),
        "heavy tails": rng.standard_t(4, SHAPE),
        "even": rng.uniform(-1, 1, SHAPE),
        "not centred": rng.standard_normal(SHAPE) + 0.5,
    }
    return {name: (0.03 * each).astype(np.float32) for name, each in values.items()}


def llama_encode(kind: Type, values: Floats) -> NDArray[np.uint8]:
    library = _library()
    quantize = library.ggml_quantize_chunk
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    quantize.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    quantize.restype = ctypes.c_size_t
    out = np.empty_like(encode(int(kind), values))
    rows, cols = values.shape
    written = quantize(int(kind), values.ctypes.data, out.ctypes.data, 0, rows, cols, None)
    assert written == out.nbytes
    return out


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0], ids=str)
@pytest.mark.parametrize(("name", "values"), distributions().items())
def test_same_bytes(kind: Type, name: str, values: Floats) -> None:
    assert np.array_equal(encode(int(kind), values), llama_encode(kind, values))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q5_0, Type.Q4_K, Type.Q6_K], ids=str)
@pytest.mark.parametrize(("name", "values"), distributions().items())
def test_no_more_error(kind: Type, name: str, values: Floats) -> None:
    ours, theirs = (
        float(np.square(gguf.quants.dequantize(data, kind) - values).sum())
        for data in (encode(int(kind), values), llama_encode(kind, values))
    )
    assert 0 < ours <= MOST * theirs
