"""llama.cpp drafting with a GGUF drafter, through the C functions of the ``xllamacpp`` extension.

Its own driver does the same: target features of every committed token go in as an embedding
batch, then the block is decoded as tokens. The functions for features have C++ names.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.parity.llama_context import LlamaContext, _ContextParams

__all__ = ["LlamaDrafter", "LlamaTarget"]

Floats = NDArray[np.float32]

# Of `others_4` in the pinned build's parameters: five flags, then the target's context.
_FLAGS, _CTX_OTHER = 3, 6
_LAYER_IDS = "_Z28llama_model_target_layer_idsPK11llama_model"
_NUM_LAYER_IDS = "_Z30llama_model_target_layer_ids_nPK11llama_model"
_TOP_K = "_Z33llama_model_dflash_selector_top_kPK11llama_model"
_TAP = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_TAPPED = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
_SET_LATTICE = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_LATTICE = "_Z30llama_get_embeddings_nextn_ithP13llama_contexti"


class LlamaTarget(LlamaContext):
    """A target whose features can be read."""

    def features(self, token_ids: Sequence[int], layers: Sequence[int], width: int) -> Floats:
        """Inputs of ``layers`` for every token of one sequence, "tokens layers*width"."""
        tap, tapped = self._library[_TAP], self._library[_TAPPED]
        tap.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
        tapped.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        tapped.restype = ctypes.POINTER(ctypes.c_float)
        for layer in layers:
            tap(self._context, layer, True)
        for _ in self.logits(token_ids, [len(token_ids) - 1]):
            pass
        shape = (len(token_ids), width)
        rows = [np.ctypeslib.as_array(tapped(self._context, layer), shape) for layer in layers]
        return np.concatenate(rows, axis=1)


class LlamaDrafter(LlamaContext):
    """A drafter beside a target, whose embedding and head it uses.

    Attributes:
        target_layers: Layers whose inputs are features, as llama.cpp read them from the file.
        top_k: Candidates of DFlash 2; 0 for DFlash 1.
    """

    def __init__(self, path: Path, target: LlamaTarget, *, max_tokens: int) -> None:
        self._target = target
        super().__init__(path, max_tokens=max_tokens)
        ids, count, top_k = (self._library[name] for name in (_LAYER_IDS, _NUM_LAYER_IDS, _TOP_K))
        for function in (ids, count, top_k):
            function.argtypes = [ctypes.c_void_p]
        ids.restype = ctypes.POINTER(ctypes.c_int32)
        self.target_layers: list[int] = ids(self._model)[: count(self._model)]
        self.top_k: int = top_k(self._model)

    def _params(self, max_tokens: int) -> _ContextParams:
        params = super()._params(max_tokens)
        is_known = params.others_4[_FLAGS] == 0x101010100 and not params.others_4[_CTX_OTHER]
        assert is_known, "llama_context_params has another layout"
        params.others_4[_CTX_OTHER] = self._target._context
        return params

    def inject(self, features: Floats) -> None:
        """Add features of the first positions."""
        count, width = features.shape
        batch = self._library.llama_batch_init(count, width, 1)
        try:
            batch.n_tokens = count
            ctypes.memmove(batch.embd, np.ascontiguousarray(features).ctypes.data, features.nbytes)
            for idx in range(count):
                batch.pos[idx] = idx
                batch.n_seq_id[idx] = 1
                batch.seq_id[idx][0] = 0
                batch.logits[idx] = 0
            status = self._library.llama_decode(self._context, batch)
            assert status == 0, f"llama_decode of features failed with {status}"
        finally:
            self._library.llama_batch_free(batch)

    def draft(self, block: Sequence[int], start: int) -> Floats:
        """Logits of the rows of a block after its anchor, "drafts vocab"."""
        if self.top_k:
            set_lattice = self._library[_SET_LATTICE]
            set_lattice.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]
            set_lattice(self._context, True, True)
        rows = frozenset(range(start, start + len(block)))
        with self._batch(block, start, rows) as batch:
            status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode of a block failed with {status}"
        return np.stack([self._row(idx) for idx in range(1, len(block))])

    def lattice(self, block_size: int) -> tuple[NDArray[np.int64], Floats]:
        """Candidates "drafts top_k" of the last block and their scores "drafts top_k top_k"."""
        read = self._library[_LATTICE]
        read.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        read.restype = ctypes.POINTER(ctypes.c_float)
        size = self.top_k * (self.top_k + 1)
        rows = np.stack(
            [
                np.ctypeslib.as_array(read(self._context, idx), (size,)).copy()
                for idx in range(1, block_size)
            ]
        )
        scores = rows[:, self.top_k :].reshape(-1, self.top_k, self.top_k)
        return rows[:, : self.top_k].astype(np.int64), scores
