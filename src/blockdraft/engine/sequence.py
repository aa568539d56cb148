"""The state of one running request: its tokens, its K/V, its clock readings."""

import numpy as np
from numpy.typing import NDArray

from blockdraft.engine.batching import RowSlice
from blockdraft.engine.request import Request, RequestStats
from blockdraft.engine.sampling import PreparedSampling, SampleRow
from blockdraft.kv_cache import SequenceCache

__all__ = ["SequenceState"]


class SequenceState:
    """Prompt and output of one request with their K/V.

    *Pending* tokens are those whose K/V are not committed yet: the rest of the prompt, or the
    one token that was picked last.

    Attributes:
        request_id: Its number in the engine.
        request: What was asked.
        cache: K/V of the committed tokens.
        added_s: Clock reading of ``Engine.add``.
        started_s: Clock reading of the admission; None while it waits.
        first_token_s: Clock reading of the first token; None before.
        num_picked: Tokens picked, a stop token included.
    """

    def __init__(
        self,
        request_id: int,
        request: Request,
        *,
        cache: SequenceCache,
        sampling: PreparedSampling,
        added_s: float,
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.cache = cache
        self.added_s = added_s
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.num_picked = 0
        self._sampling = sampling
        self._num_prompt = len(request.token_ids)
        self._num_tokens = self._num_prompt
        self._token_ids = np.empty(self._num_prompt + request.max_tokens, np.int32)
        self._token_ids[: self._num_prompt] = request.token_ids

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """Prompt and output so far, int32 [tokens], a view."""
        return self._token_ids[: self._num_tokens]

    @property
    def max_positions(self) -> int:
        """Tokens it can have at its end."""
        return len(self._token_ids)

    @property
    def num_output(self) -> int:
        """Tokens written."""
        return self._num_tokens - self._num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens whose K/V are not committed."""
        return self._num_tokens - self.cache.length

    @property
    def is_full(self) -> bool:
        """Whether ``max_tokens`` are written."""
        return self._num_tokens == len(self._token_ids)

    def append(self, token_id: int) -> None:
        """Add a token to the output; it becomes pending."""
        self._token_ids[self._num_tokens] = token_id
        self._num_tokens += 1

    def next_rows(self, num_rows: int) -> RowSlice:
        """The first ``num_rows`` pending tokens as rows; logits only after the last pending one."""
        start = self.cache.length
        stop = start + num_rows
        return RowSlice(self.cache, self._token_ids[start:stop], int(stop == self._num_tokens))

    def sample_row(self) -> SampleRow:
        """What picking its next token needs."""
        num_tokens = self._num_tokens
        return SampleRow(
            self._sampling, num_tokens, self._sampling.recent(self._token_ids[:num_tokens])
        )

    def stats(self, now_s: float) -> RequestStats:
        """Counts and times if it ended at ``now_s``."""
        started_s = now_s if self.started_s is None else self.started_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        predicted_s = now_s - first_s
        num_later = max(self.num_picked - 1, 0)
        return RequestStats(
            prompt_tokens=self._num_prompt,
            prompt_s=first_s - started_s,
            predicted_tokens=self.num_output,
            predicted_s=predicted_s,
            tokens_per_s=num_later / predicted_s if num_later and predicted_s > 0 else 0.0,
            ttft_s=0.0 if self.first_token_s is None else first_s - self.added_s,
        )
