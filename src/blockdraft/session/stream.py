"""An answer as an iterator of text chunks, with its result at the end."""

from collections.abc import Callable, Iterator
from types import TracebackType

from blockdraft.errors import ConfigError
from blockdraft.session.generation import Generation
from blockdraft.session.result import Result, TextChunk

__all__ = ["Stream"]


class Stream(Iterator[TextChunk]):
    """Chunks of one answer, made while they are asked for.

    Closing it early (``close``, leaving its ``with`` block, Ctrl-C, garbage collection) cancels
    the request and frees its memory; the result then says "cancelled".

    Args:
        generation: Text state of the answer.
        advance: Runs one step of the engine.
        cancel: Ends the request and finishes ``generation``.
    """

    def __init__(
        self,
        generation: Generation,
        *,
        advance: Callable[[], None],
        cancel: Callable[[], None],
    ) -> None:
        self._generation = generation
        self._advance = advance
        self._cancel = cancel

    def __next__(self) -> TextChunk:
        """The next piece of text; runs the engine until there is one.

        Raises:
            Exception: What a rule of the answer raised; at its place in the text.
        """
        generation = self._generation
        try:
            while not generation.chunks and generation.result is None:
                self._advance()
        except BaseException:
            self.close()
            raise
        if generation.chunks:
            return generation.chunks.popleft()
        if generation.error is not None:
            raise generation.error
        raise StopIteration

    def drain(self) -> list[TextChunk]:
        """The pieces that are there already; runs nothing."""
        chunks = list(self._generation.chunks)
        self._generation.chunks.clear()
        return chunks

    @property
    def has_ended(self) -> bool:
        """Whether there is a result; pieces may still wait to be read."""
        return self._generation.result is not None

    @property
    def error(self) -> Exception | None:
        """What ended the answer, when a rule of its own failed."""
        return self._generation.error

    @property
    def result(self) -> Result:
        """The finished answer.

        Raises:
            ConfigError: The stream has not ended yet.
        """
        if self._generation.result is None:
            raise ConfigError("the stream has not ended; read it to its end or close it first")
        return self._generation.result

    def close(self) -> None:
        """End the answer; after its end this does nothing."""
        if self._generation.result is None:
            self._cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
