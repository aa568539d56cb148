"""One answer in the making: token events in, chunks of text and a result out.

Knows no engine: whoever feeds it cancels the request when it is done early.
"""

from collections import deque
from collections.abc import Sequence

from blockdraft.engine.request import FinishReason, RequestStats, TokenEvent
from blockdraft.session.prompt import TextDecoder
from blockdraft.session.result import Result, TextChunk, Timings
from blockdraft.session.stop import StopMatcher

__all__ = ["Generation"]


class Generation:
    """Text state of one request.

    Args:
        decoder: Incremental decoder of the answer.
        stop: Stop strings.
        seed: Seed of the request, for the result.
        before_s: Seconds between the caller's call and the request's arrival at the engine.
    """

    def __init__(
        self, decoder: TextDecoder, *, stop: Sequence[str], seed: int, before_s: float
    ) -> None:
        self.chunks: deque[TextChunk] = deque()
        self.result: Result | None = None
        self._decoder = decoder
        self._matcher = StopMatcher(stop)
        self._seed = seed
        self._before_s = before_s
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._num_shown = 0

    def feed(self, event: TokenEvent) -> bool:
        """Take one event; True when a stop string ended the answer before the engine did."""
        matched = False
        if event.token_id is not None:
            self._token_ids.append(event.token_id)
            text, matched = self._matcher.feed(self._decoder.feed(event.token_id))
            self._show(text)
        if event.finish_reason is None or event.stats is None:
            return matched
        self.finish("stop" if matched else event.finish_reason, event.stats, flush=not matched)
        return False

    def finish(self, reason: FinishReason, stats: RequestStats, *, flush: bool) -> None:
        """Close the answer.

        Args:
            reason: Why it ended.
            stats: Counts and times of the request.
            flush: Whether text held back belongs to the answer (not after a stop string).
        """
        if flush:
            text, matched = self._matcher.feed(self._decoder.flush())
            self._show(text if matched else text + self._matcher.flush())
            reason = "stop" if matched else reason
        if self._num_shown < len(self._token_ids):
            self._put_chunk("")
        timings = Timings(
            prompt_tokens=stats.prompt_tokens,
            prompt_s=stats.prompt_s,
            predicted_tokens=stats.predicted_tokens,
            predicted_s=stats.predicted_s,
            tokens_per_s=stats.tokens_per_s,
            ttft_s=stats.ttft_s + self._before_s if stats.ttft_s else 0.0,
        )
        text = "".join(self._texts)
        self.result = Result(text, tuple(self._token_ids), reason, self._seed, timings)

    def _show(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._put_chunk(text)

    def _put_chunk(self, text: str) -> None:
        self.chunks.append(TextChunk(text, tuple(self._token_ids[self._num_shown :])))
        self._num_shown = len(self._token_ids)
