"""Logits of llama.cpp on given tokens, through the C functions of the ``xllamacpp`` extension."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tests.parity.llama_vocab import _library

_NUM_THREADS = 2
_BATCH_TOKENS = 512  # llama.cpp's own choice for a physical batch
_DEFAULT_THREADS = 4
_AUTO = -1
_TYPE_F16 = 1


class _ContextParams(ctypes.Structure):
    """The fields that are read or set, at their places in the pinned build."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("others_1", ctypes.c_uint32 * 4),
        ("n_threads", ctypes.c_int32),
        ("n_threads_batch", ctypes.c_int32),
        ("others_2", ctypes.c_uint32 * 4),
        ("flash_attn_type", ctypes.c_int32),
        ("others_3", ctypes.c_uint32 * 12),
        ("type_k", ctypes.c_int32),
        ("type_v", ctypes.c_int32),
        ("others_4", ctypes.c_uint64 * 16),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def _context_library() -> ctypes.CDLL:
    library = _library()
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    library.llama_context_default_params.restype = _ContextParams
    library.llama_init_from_model.argtypes = [pointer, _ContextParams]
    library.llama_init_from_model.restype = pointer
    library.llama_free.argtypes = [pointer]
    library.llama_get_memory.argtypes = [pointer]
    library.llama_get_memory.restype = pointer
    library.llama_memory_clear.argtypes = [pointer, ctypes.c_bool]
    library.llama_batch_init.argtypes = [int32, int32, int32]
    library.llama_batch_init.restype = _Batch
    library.llama_batch_free.argtypes = [_Batch]
    library.llama_decode.argtypes = [pointer, _Batch]
    library.llama_get_logits_ith.argtypes = [pointer, int32]
    library.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    library.llama_vocab_n_tokens.argtypes = [pointer]
    return library


class LlamaContext:
    """One GGUF file in llama.cpp: 2 threads, f16 K/V, flash attention as it comes."""

    def __init__(self, path: Path, *, max_tokens: int) -> None:
        self._library = _context_library()
        model_params = self._library.llama_model_default_params()
        self._model = self._library.llama_model_load_from_file(str(path).encode(), model_params)
        assert self._model, f"llama.cpp cannot load {path}"
        self._context = self._library.llama_init_from_model(self._model, self._params(max_tokens))
        assert self._context, "llama.cpp cannot make a context"
        vocab = self._library.llama_model_get_vocab(self._model)
        self.vocab_size = int(self._library.llama_vocab_n_tokens(vocab))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def logits(
        self, token_ids: Sequence[int], rows: Sequence[int]
    ) -> Iterator[NDArray[np.float32]]:
        """Logits of each of the ascending ``rows`` of one sequence, "vocab" each."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        wanted = frozenset(rows)
        for start in range(0, len(token_ids), _BATCH_TOKENS):
            stop = min(start + _BATCH_TOKENS, len(token_ids))
            with self._batch(token_ids[start:stop], start, wanted) as batch:
                status = self._library.llama_decode(self._context, batch)
                assert status == 0, f"llama_decode failed with {status}"
            for row in range(start, stop):
                if row in wanted:
                    yield self._row(row - start)

    def _params(self, max_tokens: int) -> _ContextParams:
        params: _ContextParams = self._library.llama_context_default_params()
        found = (params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch)
        types = (params.flash_attn_type, params.type_k, params.type_v)
        is_known = found == (2048, _BATCH_TOKENS, _DEFAULT_THREADS, _DEFAULT_THREADS)
        assert is_known, "llama_context_params has another layout"
        assert types == (_AUTO, _TYPE_F16, _TYPE_F16), "llama_context_params has another layout"
        params.n_ctx = max_tokens
        params.n_batch = _BATCH_TOKENS
        params.n_threads = params.n_threads_batch = _NUM_THREADS
        return params

    @contextmanager
    def _batch(
        self, token_ids: Sequence[int], start: int, wanted: frozenset[int]
    ) -> Iterator[_Batch]:
        batch: _Batch = self._library.llama_batch_init(len(token_ids), 0, 1)
        try:
            batch.n_tokens = len(token_ids)
            for idx, token_id in enumerate(token_ids):
                batch.token[idx] = token_id
                batch.pos[idx] = start + idx
                batch.n_seq_id[idx] = 1
                batch.seq_id[idx][0] = 0
                batch.logits[idx] = start + idx in wanted
            yield batch
        finally:
            self._library.llama_batch_free(batch)

    def _row(self, idx: int) -> NDArray[np.float32]:
        values = self._library.llama_get_logits_ith(self._context, idx)
        assert values, f"llama.cpp has no logits of row {idx}"
        return np.ctypeslib.as_array(values, (self.vocab_size,)).copy()
