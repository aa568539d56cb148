"""`Ops` by the numeric specification: a forward of one sequence that the native core must equal."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blockdraft.config import Activation
from blockdraft.models.decoder import build_decoder
from blockdraft.ops.protocol import AttentionSpec, Linear, Norm
from blockdraft.weights.ggml_types import ggml_type_name
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from tests.spec import (
    Floats,
    SpecMatrix,
    attention,
    capped,
    decode,
    gelu,
    matmul,
    rms_norm,
    rotate,
    silu,
    stored,
)

__all__ = ["SpecOps", "SpecWeights", "spec_forward"]

f32 = np.float32


class SpecWeights:
    """`WeightSource` of a file whose matrices are of `SPEC_TYPES`."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._matrices: dict[str, SpecMatrix] = {}

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def vector(self, name: str) -> Floats:
        return self._file.read(name).view(np.float32)

    def matrix(self, name: str) -> SpecMatrix:
        if name not in self._matrices:
            info = self._file.tensor(name)
            data = self._file.read(name).reshape(-1)
            self._matrices[name] = decode(ggml_type_name(info.ggml_type), data, info.rows)
        return self._matrices[name]


class SpecOps:
    """`Ops` for one sequence from position 0, logits for every row; handles are one-item lists."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)

    def embed(self, table: SpecMatrix, *, scale: float) -> list[Floats]:
        rows = table.values()[self._token_ids]
        return [rows if scale == 1 else rows * f32(scale)]

    def project(
        self,
        x: list[Floats],
        linears: Sequence[Linear[SpecMatrix, Floats]],
        norm: Norm[Floats] | None,
    ) -> list[list[Floats]]:
        y = x[0] if norm is None else rms_norm(x[0], norm.weight, norm.eps)
        return [[_linear(y, linear)] for linear in linears]

    def attend(
        self, q: list[Floats], k: list[Floats], v: list[Floats], spec: AttentionSpec[Floats]
    ) -> list[Floats]:
        def heads(x: Floats, norm: Norm[Floats] | None) -> Floats:
            x = x.reshape(len(x), -1, spec.head_dim)
            return rotate(x if norm is None else rms_norm(x, norm.weight, norm.eps), spec.rope)

        queries = heads(q[0], spec.q_norm)
        queries = queries if spec.scale == 1 else queries * f32(spec.scale)
        keys = stored(heads(k[0], spec.k_norm))
        values = stored(v[0].reshape(keys.shape))
        group = spec.num_heads // spec.num_kv_heads
        keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
        out = attention(queries, keys, values, spec.window, spec.softcap)
        return [out.reshape(len(out), -1)]

    def project_add(
        self,
        x: list[Floats],
        linear: Linear[SpecMatrix, Floats],
        residual: list[Floats],
        post_norm: Norm[Floats] | None,
    ) -> None:
        y = _linear(x[0], linear)
        y = y if post_norm is None else rms_norm(y, post_norm.weight, post_norm.eps)
        residual[0] = residual[0] + y

    def gated_project_add(
        self,
        gate: list[Floats],
        up: list[Floats],
        activation: Activation,
        linear: Linear[SpecMatrix, Floats],
        residual: list[Floats],
        post_norm: Norm[Floats] | None,
    ) -> None:
        act = silu if activation is Activation.SILU else gelu
        self.project_add([act(gate[0]) * up[0]], linear, residual, post_norm)

    def tap(self, x: list[Floats]) -> None:
        raise NotImplementedError("the reference taps nothing")

    def logits(
        self,
        x: list[Floats],
        norm: Norm[Floats],
        head: Linear[SpecMatrix, Floats],
        *,
        scale: float,
        softcap: float | None,
    ) -> list[Floats]:
        y = self.project(x, [head], norm)[0][0]
        if scale == 1 and softcap is None:
            return [y]
        return [capped(y * f32(scale), softcap)]


def _linear(x: Floats, linear: Linear[SpecMatrix, Floats]) -> Floats:
    y = matmul(linear.weight, x)
    return y if linear.bias is None else y + linear.bias


def spec_forward(path: Path, token_ids: Sequence[int]) -> Floats:
    """Logits "n vocab" of a sequence from its first token."""
    with GGUFFile.open(path) as file:
        decoder = build_decoder(read_model_config(file), SpecWeights(file))
        return decoder.forward(SpecOps(token_ids))[0]
