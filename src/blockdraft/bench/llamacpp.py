"""llama.cpp through the C interface of ``llama-cpp-python``, timed.

Its own defaults except: threads, 512 tokens per batch, windowed layers that keep only their window
(as its programs choose), no logs. Knows nothing of ours but the sizes to make room for.
"""

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import UnsupportedError

__all__ = ["LlamaCpp"]

_BATCH_TOKENS = 512
_CACHE_STEP = 256  # llama.cpp sizes its cache in these steps


def _import_api() -> Any:
    try:
        import llama_cpp
    except ImportError as error:
        raise UnsupportedError(
            "comparing needs llama-cpp-python, built for this machine:"
            " CMAKE_ARGS=-DGGML_NATIVE=ON"
            " pip install --no-binary llama-cpp-python 'blockdraft[peers]'"
        ) from error
    return llama_cpp


class _Context:
    """One llama.cpp context with one sequence."""

    def __init__(self, api: Any, model: Any, settings: Any) -> None:
        self._api = api
        self._handle = api.llama_init_from_model(model, settings)
        if not self._handle:
            raise UnsupportedError("llama.cpp cannot make a context for this model")
        self._memory = api.llama_get_memory(self._handle)
        self._batch = api.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self.length = 0

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._handle)

    def truncate(self, length: int) -> None:
        if not self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise UnsupportedError(f"llama.cpp cannot go back to {length} tokens")
        self.length = length

    def decode(self, tokens: Sequence[int], *, all_logits: bool) -> float:
        """Append tokens; the seconds it took, until the logits could be read."""
        batch, count = self._batch, len(tokens)
        batch.n_tokens = count
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self.length + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_logits or i == count - 1
        start = time.perf_counter()
        code = self._api.llama_decode(self._handle, batch)
        self._api.llama_get_logits(self._handle)
        elapsed = time.perf_counter() - start
        if code != 0:
            raise UnsupportedError(f"llama.cpp could not decode {count} tokens: code {code}")
        self.length += count
        return elapsed

    def extend(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), _BATCH_TOKENS):
            self.decode(tokens[start : start + _BATCH_TOKENS], all_logits=False)

    def last_logits(self, vocab_size: int) -> NDArray[np.float32]:
        logits = self._api.llama_get_logits_ith(self._handle, -1)
        return np.ctypeslib.as_array(logits, shape=(vocab_size,))


class LlamaCpp:
    """A model loaded by llama.cpp; close it after use.

    Args:
        path: The model file.
        num_threads: Threads of every pass.
        max_positions: The most tokens of a sequence.
        max_rows: The most rows of a pass with logits.
        context_tokens: What stands before the rows of `time_rows`.

    Raises:
        UnsupportedError: llama-cpp-python is not installed or cannot load the model.
    """

    def __init__(
        self,
        path: Path,
        *,
        num_threads: int,
        max_positions: int,
        max_rows: int,
        context_tokens: Sequence[int],
    ) -> None:
        self._api = api = _import_api()
        self._log = api.llama_log_callback(lambda *_: None)  # must live as long as the library
        api.llama_log_set(self._log, ctypes.c_void_p(0))
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            str(path).encode(), api.llama_model_default_params()
        )
        if not self._model:
            raise UnsupportedError(f"llama.cpp cannot load {path}")
        settings = api.llama_context_default_params()
        settings.n_ctx = -(-max_positions // _CACHE_STEP) * _CACHE_STEP
        settings.n_batch = settings.n_ubatch = _BATCH_TOKENS
        settings.n_outputs_max = max_rows
        settings.n_outputs_max_per_seq = max_rows
        settings.n_threads = settings.n_threads_batch = num_threads
        settings.swa_full = False
        self._rows = _Context(api, self._model, settings)
        self._scratch = _Context(api, self._model, settings)
        self._num_context = len(context_tokens)
        self._rows.extend(context_tokens)

    @property
    def name(self) -> str:
        """Program and version."""
        return f"llama.cpp (llama-cpp-python {self._api.__version__})"

    @property
    def system(self) -> str:
        """Instruction sets and options of its build."""
        text: bytes = self._api.llama_print_system_info()
        return text.decode().strip(" |")

    def close(self) -> None:
        """Free the model."""
        self._rows.close()
        self._scratch.close()
        self._api.llama_model_free(self._model)

    def time_rows(self, tokens: Sequence[int], num_repeats: int) -> list[float]:
        """Seconds of each of ``num_repeats`` passes over ``tokens``, all with logits."""
        seconds = []
        for _ in range(num_repeats):
            seconds.append(self._rows.decode(tokens, all_logits=True))
            self._rows.truncate(self._num_context)
        return seconds

    def time_prefill(self, tokens: Sequence[int]) -> float:
        """Seconds to read ``tokens``, at most one batch, from no context."""
        self._scratch.truncate(0)
        return self._scratch.decode(tokens, all_logits=False)

    def time_decode(self, prompt: Sequence[int], num_tokens: int) -> float:
        """Seconds per token of greedy decoding after ``prompt``."""
        context = self._scratch
        context.truncate(0)
        context.extend(prompt)
        vocab_size = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))
        token = int(np.argmax(context.last_logits(vocab_size)))
        start = time.perf_counter()
        for _ in range(num_tokens):
            context.decode([token], all_logits=True)
            token = int(np.argmax(context.last_logits(vocab_size)))
        return (time.perf_counter() - start) / num_tokens
