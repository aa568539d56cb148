"""Which tensor type each tensor of a drafter gets in a GGUF file.

The mixes and what happens to rows that are no whole number of blocks follow llama.cpp's quantizer,
so that a file from here and one from there differ only in the codes. Knows no value.

Source: llama.cpp's quantizer, as of build b11312.
"""

from dataclasses import dataclass

from blockdraft.config import DrafterConfig
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter_names import VOCAB_MAP, expected_tensors
from blockdraft.weights.ggml_types import SUPPORTED_TYPES, ggml_type_name, ggml_type_number
from blockdraft.weights.tensors import EMBEDDING, HEAD, layer_tensor

__all__ = ["FILE_TYPES", "TensorType", "choose_types"]

FILE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 7, "q5_0": 8, "q4_k_m": 15}
"""Names of the mixes, and llama.cpp's numbers of them in ``general.file_type``."""

_F32, _I64 = 0, 27
_F16, _Q4_0, _Q5_0, _Q8_0, _Q4_K, _Q6_K = map(
    ggml_type_number, ("F16", "Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
)
_MATRICES = {"f16": _F16, "q4_0": _Q4_0, "q5_0": _Q5_0, "q8_0": _Q8_0, "q4_k_m": _Q4_K}
_FALLBACKS = {_Q4_K: _Q5_0, _Q6_K: _Q8_0, _Q4_0: _F16, _Q5_0: _F16, _Q8_0: _F16}


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of one tensor.

    Attributes:
        name: The tensor.
        shape: Its shape, the last size contiguous.
        wanted: GGML's number of the type that the mix has for it.
        ggml_type: GGML's number of the type that it gets.
    """

    name: str
    shape: tuple[int, ...]
    wanted: int
    ggml_type: int

    @property
    def fallback(self) -> str | None:
        """Why the type is not the wanted one, or None."""
        if self.ggml_type == self.wanted:
            return None
        size = SUPPORTED_TYPES[self.wanted].block_size
        return (
            f"rows of {self.shape[-1]} are no multiple of {size}: {ggml_type_name(self.ggml_type)}"
            f" instead of {ggml_type_name(self.wanted)}"
        )


def choose_types(config: DrafterConfig, type_name: str) -> list[TensorType]:
    """A type for every tensor of a drafter.

    Args:
        config: The drafter.
        type_name: One of `FILE_TYPES`.

    Raises:
        ConfigError: There is no such mix.
    """
    if type_name not in FILE_TYPES:
        raise ConfigError(f"type is {type_name!r}; it must be one of {', '.join(FILE_TYPES)}")
    richer = _richer(config, type_name)
    chosen = []
    for each in expected_tensors(config):
        wanted = _F32  # vectors, and tables of kernels
        if each.name == VOCAB_MAP:
            wanted = _I64
        elif len(each.shape) == 2:
            wanted = _Q6_K if each.name in richer else _MATRICES[type_name]
        chosen.append(TensorType(each.name, each.shape, wanted, _fitting(wanted, each.shape[-1])))
    return chosen


def _fitting(wanted: int, cols: int) -> int:
    number = wanted
    while number in _FALLBACKS and cols % SUPPORTED_TYPES[number].block_size:
        number = _FALLBACKS[number]
    return number


def _richer(config: DrafterConfig, type_name: str) -> set[str]:
    """Matrices that get six bits: the head, and under q4_k_m those that feel it most.

    These are in the layers of the first and the last eighth and in every third between.
    """
    if type_name in ("f16", "q8_0"):
        return set()
    has_head = config.own_head or config.draft_vocab_size is not None
    names = {HEAD if has_head else EMBEDDING}
    if type_name == "q4_k_m":
        first, last = config.num_layers // 8, 7 * config.num_layers // 8
        for layer_idx in range(config.num_layers):
            if layer_idx < first or layer_idx >= last or (layer_idx - first) % 3 == 2:
                names |= {layer_tensor(layer_idx, "attn_v"), layer_tensor(layer_idx, "ffn_down")}
    return names
