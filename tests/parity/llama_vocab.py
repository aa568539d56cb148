"""llama.cpp's tokenizer through the C functions that the ``xllamacpp`` extension exports."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Self

import xllamacpp

# Where `vocab_only` sits in the pinned build's parameters: the first of the flags at the end.
_FLAGS = 72
_DEFAULT_FLAGS = bytes([0, 0, 1, 0, 0])


class _ModelParams(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint8 * 80),)


# Kept alive here, for llama.cpp calls it whenever it logs.
_SILENCE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
    lambda level, text, data: None
)


def _library() -> ctypes.CDLL:
    folder = Path(xllamacpp.__file__).parent
    library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    library.llama_model_default_params.restype = _ModelParams
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _ModelParams]
    library.llama_model_load_from_file.restype = ctypes.c_void_p
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    library.llama_model_free.argtypes = [ctypes.c_void_p]
    library.llama_tokenize.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int32),
        ctypes.c_int32,
        ctypes.c_bool,
        ctypes.c_bool,
    ]
    library.llama_token_to_piece.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_bool,
    ]
    for name in ("eos", "bos", "n_tokens"):
        getattr(library, f"llama_vocab_{name}").argtypes = [ctypes.c_void_p]
    library.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.llama_vocab_is_eog.restype = ctypes.c_bool
    library.llama_log_set(_SILENCE, None)
    return library


class LlamaVocab:
    """The vocabulary of one GGUF file, loaded by llama.cpp without its weights."""

    def __init__(self, path: Path) -> None:
        self._library = _library()
        params = self._library.llama_model_default_params()
        flags = bytes(params.data)[_FLAGS : _FLAGS + len(_DEFAULT_FLAGS)]
        assert flags == _DEFAULT_FLAGS, "llama_model_params has another layout"
        params.data[_FLAGS] = 1
        self._model = self._library.llama_model_load_from_file(str(path).encode(), params)
        assert self._model, f"llama.cpp cannot load {path}"
        self._vocab = self._library.llama_model_get_vocab(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.llama_model_free(self._model)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        buffer = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocab, data, len(data), buffer, room, add_special, parse_special
        )
        assert count >= 0
        return buffer[:count]

    def token_bytes(self, token_id: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(4096)
        count = self._library.llama_token_to_piece(
            self._vocab, token_id, buffer, len(buffer), 0, special
        )
        assert count >= 0
        return buffer.raw[:count]

    @property
    def bos_id(self) -> int:
        return self._library.llama_vocab_bos(self._vocab)

    @property
    def end_ids(self) -> frozenset[int]:
        is_end: Callable[[object, int], bool] = self._library.llama_vocab_is_eog
        count = self._library.llama_vocab_n_tokens(self._vocab)
        return frozenset(idx for idx in range(count) if is_end(self._vocab, idx))
