"""What every response says of its answers: why they ended, token counts, times, drafts."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from blockdraft.engine.logprobs import TokenLogprobs
from blockdraft.errors import ConfigError
from blockdraft.session import Result, TextChunk
from blockdraft.session.prompt import TextCodec

__all__ = [
    "Envelope",
    "TextLogprobs",
    "chat_logprobs",
    "finish_reason",
    "merged",
    "timings",
    "usage",
]

_LEAST_LOGPROB = -9999.0  # what OpenAI's API says in place of -inf, which JSON has not


@dataclass(frozen=True, slots=True)
class Envelope:
    """Keys that all objects of one response share.

    Attributes:
        kind: "chat.completion" or "text_completion".
        model: Name of the model.
        id: Number of the response.
        created: Unix time in seconds.
    """

    kind: str
    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, kind: str, model: str, prefix: str) -> "Envelope":
        """A fresh one, with a random id."""
        return cls(kind, model, f"{prefix}-{uuid4().hex}")

    def wrap(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An object with these choices."""
        head = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model}
        return {**head, "choices": list(choices), **more}


def finish_reason(result: Result) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "length" if result.finish_reason == "length" else "stop"


def usage(results: Sequence[Result], num_prompt: int) -> dict[str, Any]:
    """Token counts of a response; of several answers to a prompt the mean had so many cached."""
    predicted = sum(result.timings.predicted_tokens for result in results)
    cached = sum(result.timings.cached_tokens for result in results)
    read = sum(result.timings.prompt_tokens for result in results)
    return {
        "prompt_tokens": num_prompt,
        "prompt_tokens_details": {"cached_tokens": cached * num_prompt // max(read, 1)},
        "completion_tokens": predicted,
        "total_tokens": num_prompt + predicted,
    }


def timings(results: Sequence[Result]) -> dict[str, Any]:
    """Counts and times with the keys of llama.cpp's server; counts add up, times are the longest.

    ``prompt_n`` are tokens of prompts that were read, ``cache_n`` those whose K/V were known.
    ``draft_n``, ``draft_n_accepted``, ``tau`` and ``accepted_by_position`` only where there were
    rounds with a drafter.
    """
    times = [result.timings for result in results]
    cache_n = sum(time.cached_tokens for time in times)
    prompt_n = sum(time.prompt_tokens for time in times) - cache_n
    prompt_ms = 1e3 * max(time.prompt_s for time in times)
    predicted_n = sum(time.predicted_tokens for time in times)
    predicted_ms = 1e3 * max(time.predicted_s for time in times)
    found: dict[str, Any] = {
        "cache_n": cache_n,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / max(prompt_n, 1),
        "prompt_per_second": 1e3 * prompt_n / prompt_ms if prompt_ms else 0.0,
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / max(predicted_n, 1),
        "predicted_per_second": sum(time.tokens_per_s for time in times),
        "ttft_ms": 1e3 * max(time.ttft_s for time in times),
    }
    stats = [result.stats for result in results if result.stats and result.stats.num_rounds]
    if stats:
        found["draft_n"] = sum(each.num_drafted for each in stats)
        found["draft_n_accepted"] = sum(each.num_accepted for each in stats)
        found["tau"] = sum(each.num_tokens for each in stats) / sum(
            each.num_rounds for each in stats
        )
    if len(stats) == 1:
        found["accepted_by_position"] = list(stats[0].accepted_by_position)
    return found


def merged(chunks: Iterable[TextChunk], *, by_origin: bool) -> list[TextChunk]:
    """Neighbouring chunks as one; with ``by_origin`` only those that are drafted alike."""
    found: list[TextChunk] = []
    for chunk in chunks:
        last = found[-1] if found else None
        if last is None or (by_origin and last.is_drafted != chunk.is_drafted):
            found.append(chunk)
        else:
            found[-1] = TextChunk(
                last.text + chunk.text,
                last.token_ids + chunk.token_ids,
                last.is_drafted,
                last.logprobs + chunk.logprobs,
            )
    return found


def chat_logprobs(chunk: TextChunk, codec: TextCodec) -> dict[str, Any] | None:
    """``logprobs`` of a chat choice; None where they were not asked for."""
    if not chunk.logprobs:
        return None
    pairs = zip(chunk.token_ids, chunk.logprobs, strict=True)
    return {"content": [_token(codec, *pair) for pair in pairs], "refusal": None}


def _token(codec: TextCodec, token_id: int, found: TokenLogprobs) -> dict[str, Any]:
    top = [_entry(codec, token, logprob) for token, logprob in found.top]
    return {**_entry(codec, token_id, found.logprob), "top_logprobs": top}


def _entry(codec: TextCodec, token_id: int, logprob: float) -> dict[str, Any]:
    try:
        data = codec.token_bytes(token_id)
    except ConfigError:  # a row of the head that pads the vocabulary
        data = b""
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, _LEAST_LOGPROB),
        "bytes": list(data),
    }


class TextLogprobs:
    """``logprobs`` of a text completion, whose places count from the beginning of the answer."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._offset = 0

    def of(self, chunk: TextChunk) -> dict[str, Any] | None:
        """The object for the next piece; None where they were not asked for."""
        if not chunk.logprobs:
            return None
        pairs = list(zip(chunk.token_ids, chunk.logprobs, strict=True))
        entries = [_token(self._codec, *pair) for pair in pairs]
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries
            ],
            "text_offset": offsets,
        }
