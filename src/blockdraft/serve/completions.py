"""``/v1/completions``: text or ids as they are, without a chat template."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from blockdraft.serve.answers import Envelope, TextLogprobs, finish_reason
from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import AnswerFields, answer_settings
from blockdraft.serve.jobs import Part
from blockdraft.serve.service import Service
from blockdraft.serve.writer import AnswerWriter
from blockdraft.session import Result, TextChunk

__all__ = ["CompletionRequest", "CompletionWriter"]

_DEFAULT_TOKENS = 16  # OpenAI's
_MAX_PROMPTS = 128
Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]


class CompletionRequest(AnswerFields):
    """Body of ``/v1/completions``."""

    prompt: (
        str
        | Ids
        | Annotated[list[str], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[Ids], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)]
    )
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] | None = Field(None, description="the prompt is not repeated")
    best_of: int | None = Field(None, description="only as n: all answers are given back")


class CompletionWriter(AnswerWriter):
    """Writes the continuations of prompts."""

    stream_kind = "text_completion"

    def __init__(
        self,
        fields: CompletionRequest,
        service: Service,
        parts: Sequence[Part],
        num_prompt: int,
    ) -> None:
        super().__init__(fields, service, parts, num_prompt)
        self.envelope = Envelope.of("text_completion", service.settings.model_id, "cmpl")
        self._logprobs = [TextLogprobs(service.codec) for _ in parts]

    @classmethod
    def plan(cls, fields: CompletionRequest, service: Service) -> "CompletionWriter":
        """What writes the answers to a request; takes the time of the tokenizer.

        Raises:
            ApiError: A field asks for what this server does not have.
            BlockdraftError: A value or the prompt cannot be honoured.
        """
        if fields.best_of not in (None, fields.n):
            message = f"best_of is {fields.best_of} and n is {fields.n}; this server picks no best"
            raise ApiError(400, message, param="best_of", code="unsupported_value")
        settings = answer_settings(
            fields,
            service.settings,
            drafter=service.drafter_name,
            max_tokens=fields.max_tokens or service.settings.max_tokens or _DEFAULT_TOKENS,
        )
        settings = service.with_seed(replace(settings, num_logprobs=fields.logprobs))
        prompts = [_ids(prompt, service) for prompt in _prompts(fields)]
        parts = [
            Part(token_ids, replace(settings, choice=i))
            for token_ids in prompts
            for i in range(fields.n)
        ]
        return cls(fields, service, parts, sum(map(len, prompts)))

    def choice(self, index: int, result: Result, chunk: TextChunk | None) -> dict[str, Any]:
        """A whole answer."""
        return {
            "index": index,
            "text": result.text,
            "logprobs": None if chunk is None else self._logprobs[index].of(chunk),
            "finish_reason": finish_reason(result),
        }

    def pieces(self, index: int, chunk: TextChunk) -> Iterable[dict[str, Any]]:
        """A piece of an answer."""
        logprobs = self._logprobs[index].of(chunk)
        yield {"index": index, "text": chunk.text, "logprobs": logprobs, "finish_reason": None}

    def ending(self, index: int, result: Result) -> Iterable[dict[str, Any]]:
        """Why the answer ended."""
        reason = finish_reason(result)
        yield {"index": index, "text": "", "logprobs": None, "finish_reason": reason}


def _prompts(fields: CompletionRequest) -> list[str | list[int]]:
    prompt = fields.prompt
    if isinstance(prompt, str):
        return [prompt]
    found: list[str | list[int]] = []
    ids: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            ids.append(part)
        else:
            found.append(part)
    return found or [ids]


def _ids(prompt: str | list[int], service: Service) -> list[int]:
    return service.session.encode(prompt, raw=True) if isinstance(prompt, str) else prompt
