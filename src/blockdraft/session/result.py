"""What a session gives back: text with its token ids, why it ended, and times."""

from dataclasses import asdict, dataclass
from typing import Any

from blockdraft.engine.logprobs import TokenLogprobs
from blockdraft.engine.request import FinishReason
from blockdraft.speculative.stats import SpeculationStats

__all__ = ["Result", "TextChunk", "Timings"]


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and times of one answer; the keys are those of ``blockdraft run --json``.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        prompt_s: From the first pass over the prompt until the first token was picked.
        predicted_tokens: Tokens in ``Result.token_ids``.
        predicted_s: From the first token until the end.
        tokens_per_s: Tokens picked after the first over ``predicted_s``; 0 when there is none.
        ttft_s: From the call until the first token, waiting for other requests included; 0 when
            there is no token.
        cached_tokens: Tokens of the prompt that were not read again, since their K/V were known.
    """

    prompt_tokens: int
    prompt_s: float
    predicted_tokens: int
    predicted_s: float
    tokens_per_s: float
    ttft_s: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of a streamed answer.

    Attributes:
        text: Whole characters; joined, the chunks give ``Result.text``.
        token_ids: Tokens picked since the chunk before; joined, they give ``Result.token_ids``.
        is_drafted: Whether the token that completed it is an accepted draft.
        logprobs: One for each of ``token_ids``, where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    is_drafted: bool = False
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One finished answer.

    Attributes:
        text: The answer, cut before a stop string.
        token_ids: Its tokens, without the end-of-generation token. After a stop string they end
            with the token that completed it, so they may decode to more than ``text``.
        finish_reason: "stop" (the model ended, or a stop string), "length", "cancelled", or
            "failed" (a rule of the answer's own raised an error).
        seed: Seed of the sampler, as given or as drawn.
        timings: Counts and times.
        stats: What drafting gained; None without it.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    timings: Timings
    stats: SpeculationStats | None = None

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-ready objects, with the keys of ``blockdraft run --json``."""
        found = asdict(self)
        del found["stats"]
        speculation = None if self.stats is None else self.stats.to_dict()
        return {**found, "token_ids": list(self.token_ids), "speculation": speculation}
