"""A session without a model: answers are lists of chunks, a token is a character."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.session import Prompt, Result, TextChunk, Timings

__all__ = ["FakeSession", "FakeStream"]

BOS = 1

Chunk = str | TextChunk | BaseException


class FakeStream:
    """Gives its chunks; a chunk that is an exception is raised in its place."""

    def __init__(self, chunks: Sequence[Chunk], seed: int) -> None:
        self._chunks = chunks
        self._seed = seed
        self._text = ""
        self._reason: Any = "cancelled"

    def __enter__(self) -> "FakeStream":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def __iter__(self) -> Iterator[TextChunk]:
        for chunk in self._chunks:
            if isinstance(chunk, BaseException):
                raise chunk
            piece = chunk if isinstance(chunk, TextChunk) else TextChunk(chunk, (7,))
            self._text += piece.text
            yield piece
        self._reason = "stop"

    @property
    def result(self) -> Result:
        timings = Timings(3, 0.5, 2, 0.25, 8.0, 0.625)
        return Result(self._text, (7, 8), self._reason, self._seed, timings)


class FakeSession:
    """Stands for `blockdraft.session.Session`.

    Attributes:
        answers: Chunks of the coming answers; without one the answer is "ok".
        calls: Prompt and options of every `stream`.
        kept_bytes: What was given to ``Engine.keep_prefixes``.
    """

    def __init__(self, *, context_length: int = 100, has_template: bool = True) -> None:
        self.answers: list[Sequence[Chunk]] = []
        self.calls: list[tuple[Prompt, dict[str, Any]]] = []
        self.loads: list[tuple[Any, dict[str, Any]]] = []
        self.tokenizer = SimpleNamespace(
            bos_id=BOS, chat_template=object() if has_template else None, encode=self._encode_text
        )
        self.kept_bytes: list[int] = []
        self.engine = SimpleNamespace(
            context_length=context_length, score=self.score, keep_prefixes=self.kept_bytes.append
        )

    def load(self, path: Any, **options: Any) -> "FakeSession":
        """Takes the place of ``Session.load``."""
        self.loads.append((path, options))
        if options.get("ctx_size"):
            self.engine.context_length = options["ctx_size"]
        return self

    def stream(self, prompt: Prompt, *, params: SamplingParams, **options: Any) -> FakeStream:
        copy = prompt if isinstance(prompt, str) else list(prompt)
        self.calls.append((copy, {"params": params, **options}))
        chunks: Sequence[Chunk] = self.answers.pop(0) if self.answers else ["ok"]
        return FakeStream(chunks, 4242 if params.seed is None else params.seed)

    def encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return [ord(letter) for letter in prompt]
        return [ord(letter) for turn in prompt for letter in str(turn["content"])]

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Token t has probability 1/t."""
        return -np.log(np.array(token_ids[1:], np.float64))

    def _encode_text(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert add_special
        assert not parse_special
        return [BOS, *(ord(letter) for letter in text)]
