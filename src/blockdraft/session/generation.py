"""One answer in the making: tokens and events in, chunks of text and a result out.

Knows no engine. The engine asks it after each token whether the answer ends there, so that a stop
string ends a request inside a round as it would between two; the events follow.
"""

from collections import deque
from collections.abc import Sequence

from blockdraft.engine.logprobs import TokenLogprobs
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

    Attributes:
        chunks: Text that nobody has read yet.
        result: The finished answer; None before.
        error: What ended it, when its finish reason is "failed".
        before_s: Seconds between the caller's call and the request's arrival at the engine.
    """

    def __init__(self, decoder: TextDecoder, *, stop: Sequence[str], seed: int) -> None:
        self.chunks: deque[TextChunk] = deque()
        self.result: Result | None = None
        self.error: Exception | None = None
        self.before_s = 0.0
        self._decoder = decoder
        self._matcher = StopMatcher(stop)
        self._seed = seed
        self._decoded: deque[str] = deque()  # of tokens whose event has not come yet
        self._is_matched = False
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._num_shown = 0

    def ends_with(self, token_id: int) -> bool:
        """Take the next token of the answer; whether a stop string ends the answer with it."""
        text, self._is_matched = self._matcher.feed(self._decoder.feed(token_id))
        self._decoded.append(text)
        return self._is_matched

    def feed(self, event: TokenEvent) -> None:
        """Take the event of a token, or of the end."""
        if event.token_id is not None:
            self._token_ids.append(event.token_id)
            if event.logprobs is not None:
                self._logprobs.append(event.logprobs)
            self._show(self._decoded.popleft(), is_drafted=event.is_drafted)
        self.error = event.error
        if event.finish_reason is not None and event.stats is not None:
            self.finish(event.finish_reason, event.stats)

    def finish(self, reason: FinishReason, stats: RequestStats) -> None:
        """Close the answer; text held back belongs to it, but not after a stop string."""
        if not self._is_matched:
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
            ttft_s=stats.ttft_s + self.before_s if stats.ttft_s else 0.0,
            cached_tokens=stats.cached_tokens,
        )
        text = "".join(self._texts)
        self.result = Result(
            text, tuple(self._token_ids), reason, self._seed, timings, stats.speculation
        )

    def _show(self, text: str, *, is_drafted: bool = False) -> None:
        if text:
            self._texts.append(text)
            self._put_chunk(text, is_drafted=is_drafted)

    def _put_chunk(self, text: str, *, is_drafted: bool = False) -> None:
        token_ids = tuple(self._token_ids[self._num_shown :])
        logprobs = tuple(self._logprobs[self._num_shown :])
        self.chunks.append(TextChunk(text, token_ids, is_drafted, logprobs))
        self._num_shown = len(self._token_ids)
