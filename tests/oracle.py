"""The float oracle of a GGUF file: `Decoder` with torch ops over exactly dequantized weights."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from blockdraft.models.decoder import build_decoder
from blockdraft.ops.torch import TorchOps, TorchPass, TorchWeights
from blockdraft.weights.ggml_types import SUPPORTED_TYPES
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights

__all__ = ["FloatModel", "float_forward"]


class FloatModel:
    """A GGUF file as float tensors; needs 4 bytes per weight (8 in float64)."""

    def __init__(self, path: Path, *, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        with GGUFFile.open(path) as file:
            self.config = read_model_config(file)

            def is_quantized(name: str) -> bool:
                return SUPPORTED_TYPES[file.tensor(name).ggml_type].block_size > 1

            source = TorchWeights(FloatWeights(file), dtype=dtype, is_quantized=is_quantized)
            self.decoder = build_decoder(self.config, source)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        *,
        taps: Sequence[int] = (),
        parents: Sequence[int] | None = None,
        quantize_activations: bool = False,
        store_f16: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Logits "n vocab" and features "n taps*hidden" of one sequence from its first token."""
        batch = TorchPass([token_ids], dtype=self.dtype, parents=[parents])
        ops = TorchOps(batch, quantize_activations=quantize_activations, store_f16=store_f16)
        logits = self.decoder.forward(ops, taps).values
        features = torch.cat(ops.features, dim=1) if taps else logits.new_empty(len(logits), 0)
        return logits, features


def float_forward(
    path: Path,
    token_ids: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    taps: Sequence[int] = (),
    quantize_activations: bool = False,
    store_f16: bool = False,
) -> tuple[Tensor, Tensor]:
    """`FloatModel.forward` of a file that is used once."""
    return FloatModel(path, dtype=dtype).forward(
        token_ids,
        taps=taps,
        quantize_activations=quantize_activations,
        store_f16=store_f16,
    )
