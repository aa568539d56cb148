"""Who takes part in a comparison of drafting: sessions of ours and servers of llama.cpp.

Knows how to ask for one greedy answer and what it cost; llama.cpp's seconds are those its server
reports, so that HTTP costs it nothing. Every side reads the same token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from blockdraft.bench.server_process import ServerProcess
from blockdraft.bench.ways import GREEDY
from blockdraft.session import AnswerSettings, Session

__all__ = ["Answer", "LlamaSide", "OurSide", "Side"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of one side.

    Attributes:
        num_tokens: Tokens after the first.
        seconds: For them.
        num_drafted: Drafts proposed.
        num_accepted: Drafts kept.
    """

    num_tokens: int
    seconds: float
    num_drafted: int = 0
    num_accepted: int = 0


class Side(Protocol):
    """One program with one way to draft."""

    @property
    def name(self) -> str:
        """Unique among the sides."""
        ...

    def answer(self, token_ids: Sequence[int], max_tokens: int) -> Answer:
        """Write the greedy answer."""
        ...


@dataclass(frozen=True, slots=True)
class OurSide:
    """A session of ours.

    Attributes:
        name: Of the side.
        session: What writes.
        draft: Whether it drafts.
    """

    name: str
    session: Session
    draft: bool

    def answer(self, token_ids: Sequence[int], max_tokens: int) -> Answer:
        """Write the greedy answer."""
        settings = AnswerSettings(GREEDY, max_tokens, draft=self.draft)
        with self.session.start(token_ids, settings) as stream:
            for _ in stream:
                pass
            result = stream.result
        timings, stats = result.timings, result.stats
        num_tokens = round(timings.tokens_per_s * timings.predicted_s)
        if stats is None:
            return Answer(num_tokens, timings.predicted_s)
        return Answer(num_tokens, timings.predicted_s, stats.num_drafted, stats.num_accepted)


@dataclass(frozen=True, slots=True)
class LlamaSide:
    """A server of llama.cpp.

    Attributes:
        name: Of the side.
        server: What writes.
    """

    name: str
    server: ServerProcess

    def answer(self, token_ids: Sequence[int], max_tokens: int) -> Answer:
        """Write the greedy answer.

        Raises:
            ConfigError: The server refuses.
        """
        body = {
            "prompt": list(token_ids),
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": False,
        }
        timings = self.server.ask("/completion", body)["timings"]
        return Answer(
            max(timings["predicted_n"] - 1, 0),
            timings["predicted_ms"] / 1000,
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
        )
