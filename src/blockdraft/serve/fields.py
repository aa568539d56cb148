"""Fields that chat and text completions share, and how they become settings of an answer.

A field that is not here is refused by name; one that is null is as if it were absent. Names and
meanings are OpenAI's; where that API has none, llama.cpp's.
"""

from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from blockdraft.config import SamplingParams
from blockdraft.serve.failure import ApiError
from blockdraft.serve.settings import ServeSettings
from blockdraft.session import AnswerSettings

__all__ = [
    "AnswerFields",
    "SamplingFields",
    "Speculative",
    "StreamOptions",
    "Strict",
    "answer_settings",
]

_PARAMS = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty"),
)
_MAX_SEED = 2**64 - 1
_DRAFT_NAMES = {"draft-dflash": "dflash"}

_MAX_STOPS, _MAX_STOP_LENGTH, _MAX_BIASES = 16, 512, 1024
StopText = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_LENGTH)]


class Strict(BaseModel):
    """An object whose every key is known and of its type."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        found = {key: data[key] for key in data if key in known and data[key] is not None}
        # One unknown key is enough to refuse: an error for each of a million takes gigabytes.
        for key in islice((key for key in data if key not in known), 1):
            found[key] = data[key]
        return found


def _of_few(value: Any) -> Any:
    """Refuse a large mapping before an error is made for each of its values."""
    if isinstance(value, dict) and len(value) > _MAX_BIASES:
        raise PydanticCustomError(
            "too_long", "it has {count} keys; at most {most}",
            {"count": len(value), "most": _MAX_BIASES},
        )  # fmt: skip
    return value


class StreamOptions(Strict):
    """How a stream is sent."""

    include_usage: bool = Field(False, description="send token counts in a last chunk")


class Speculative(Strict):
    """How tokens of this answer are drafted; changes its speed, never a token."""

    type: str | None = Field(None, description="none, or the type that the server drafts with")
    n_max: int | None = Field(None, ge=1, le=63, description="most draft tokens of a round")


class SamplingFields(Strict):
    """What every kind of request may ask."""

    model: str | None = Field(None, description="name of the served model")
    seed: int | None = Field(None, ge=-1, le=_MAX_SEED, description="-1 draws one; it is reported")
    stop: (
        StopText | Annotated[list[StopText], Field(max_length=_MAX_STOPS, fail_fast=True)] | None
    ) = Field(None, description="texts that end the answer before them")
    stream: bool = Field(False, description="send server-sent events")
    temperature: float | None = Field(None, ge=0, le=100)
    top_k: int | None = Field(None, ge=0, lt=2**31)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, ge=1e-38, le=1e38)
    repeat_last_n: int | None = Field(None, ge=-1, lt=2**31)
    presence_penalty: float | None = Field(None, ge=-1e38, le=1e38)
    frequency_penalty: float | None = Field(None, ge=-1e38, le=1e38)
    logit_bias: Annotated[
        dict[str, float] | None, Field(max_length=_MAX_BIASES), BeforeValidator(_of_few)
    ] = Field(None, description="by token id")
    speculative: Speculative | bool | Literal["off"] | None = Field(
        None, description="how to draft; false or off writes without drafts"
    )
    user: str | None = Field(None, description="a label; without effect")
    metadata: dict[str, Any] | None = Field(None, description="a label; without effect")


class AnswerFields(SamplingFields):
    """What both kinds of completions may ask beyond that."""

    max_tokens: int | None = Field(None, ge=1, description="most tokens of an answer")
    n: int = Field(1, ge=1, le=128, description="answers to each prompt")
    stream_options: StreamOptions | None = None
    mark_drafts: bool = Field(False, description="say of every streamed piece if it was drafted")


def answer_settings(
    fields: SamplingFields, settings: ServeSettings, *, drafter: str | None, max_tokens: int | None
) -> AnswerSettings:
    """Settings of the first answer; its siblings differ in ``choice``.

    Args:
        fields: The request.
        settings: Values where it says nothing.
        drafter: What the server drafts with; None when it does not.
        max_tokens: Limit of the answer.

    Raises:
        ApiError: A field asks for what this server does not have.
        ConfigError: A value is out of range.
    """
    given = {name: getattr(fields, name) for name in _PARAMS}
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if fields.seed is not None:
        values["seed"] = None if fields.seed == -1 else fields.seed
    if fields.logit_bias is not None:
        values["logit_bias"] = _bias(fields.logit_bias)
    params: SamplingParams = replace(settings.params, **values)
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    draft, draft_n_max = _drafting(fields.speculative, drafter)
    return AnswerSettings(
        params,
        max_tokens,
        (*settings.stop, *stop),
        draft=draft,
        draft_n_max=draft_n_max,
    )


def _bias(by_text: dict[str, float]) -> tuple[tuple[int, float], ...]:
    pairs: list[tuple[int, float]] = []
    for text, bias in by_text.items():
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            message = f"logit_bias has the key {text[:20]!r}; keys are token ids"
            raise ApiError(400, message, param="logit_bias", code="invalid_value")
        pairs.append((int(text), bias))
    return tuple(pairs)


def _drafting(
    asked: Speculative | bool | str | None, drafter: str | None
) -> tuple[bool, int | None]:
    """Whether to draft, and K."""
    if asked is None or asked is True:
        return True, None
    if not isinstance(asked, Speculative):
        return False, None
    name = asked.type and _DRAFT_NAMES.get(asked.type, asked.type)
    if name == "none":
        return False, None
    if name is not None and name != drafter:
        have = f"with {drafter}" if drafter else "not at all"
        message = f"speculative.type is {name[:40]}, but this server drafts {have}"
        raise ApiError(400, message, param="speculative.type", code="unsupported_value")
    return True, asked.n_max
