"""The body of ``/v1/responses``, and the chat request that asks for the same."""

from typing import Annotated, Any, Literal

from pydantic import Field

from blockdraft.serve.chat import ChatRequest
from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import SamplingFields, Strict
from blockdraft.serve.formats import JsonSchema, ResponseFormat
from blockdraft.serve.messages import MAX_TURNS
from blockdraft.serve.responses.items import InputItem, as_messages
from blockdraft.serve.tools import MAX_TOOLS, Function, NamedFunction, NamedTool, Tool

__all__ = ["ResponsesRequest", "as_chat"]


class FunctionTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(Strict):
    """The function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Strict):
    """What an answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = Field(None, description="the schema is always followed strictly")


class TextConfig(Strict):
    """How text is written."""

    format: TextFormat | None = None


class ResponsesRequest(SamplingFields):
    """Body of ``/v1/responses``."""

    input: (
        str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_TURNS, fail_fast=True)]
    )
    instructions: str | None = Field(None, description="a system turn before the input")
    max_output_tokens: int | None = Field(None, ge=1, description="most tokens of the answer")
    text: TextConfig | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool = Field(True, description="false ends the answer at its first call")
    include: (
        Annotated[list[Literal["message.output_text.logprobs"]], Field(fail_fast=True)] | None
    ) = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="more names that the model's template knows, such as enable_thinking"
    )
    store: Literal[False] | None = Field(None, description="nothing is stored")
    background: Literal[False] | None = Field(None, description="answers are written at once")
    truncation: Literal["disabled"] | None = Field(None, description="no input is dropped")
    service_tier: Literal["auto", "default"] | None = Field(None, description="there is one")
    prompt_cache_key: str | None = Field(None, description="a label; without effect")
    safety_identifier: str | None = Field(None, description="a label; without effect")


def as_chat(fields: ResponsesRequest) -> ChatRequest:
    """The chat request that has the same answer.

    Raises:
        ApiError: An item, the format or the log-probabilities asked for do not fit together.
    """
    has_logprobs = bool(fields.include)
    if fields.top_logprobs is not None and not has_logprobs:
        message = "top_logprobs needs include: message.output_text.logprobs"
        raise ApiError(400, message, param="top_logprobs", code="invalid_value")
    wanted = _format(fields)
    if wanted is not None and fields.tools and fields.tool_choice != "none":
        message = "an answer cannot follow text.format and call tools; give tool_choice: none"
        raise ApiError(400, message, param="text.format", code="invalid_value")
    shared = {name: getattr(fields, name) for name in SamplingFields.model_fields}
    # Everything was validated above, by other names.
    return ChatRequest.model_construct(
        **shared,
        messages=as_messages(fields.input, fields.instructions),
        max_completion_tokens=fields.max_output_tokens,
        logprobs=has_logprobs,
        top_logprobs=fields.top_logprobs,
        tools=None if fields.tools is None else [_tool(tool) for tool in fields.tools],
        tool_choice=_choice(fields),
        response_format=wanted,
        parallel_tool_calls=fields.parallel_tool_calls,
        chat_template_kwargs=fields.chat_template_kwargs,
    )


def _format(fields: ResponsesRequest) -> ResponseFormat | None:
    found = None if fields.text is None else fields.text.format
    if found is None or found.type == "text":
        return None
    if found.type == "json_object":
        return ResponseFormat(type="json_object")
    if found.schema_ is None:
        message = "text.format of type json_schema needs a schema"
        raise ApiError(400, message, param="text.format.schema", code="missing_field")
    schema = JsonSchema.model_construct(schema_=found.schema_)
    return ResponseFormat.model_construct(type="json_schema", json_schema=schema)


def _tool(tool: FunctionTool) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.parameters)
    return Tool(type="function", function=function)


def _choice(fields: ResponsesRequest) -> Literal["none", "auto", "required"] | NamedTool | None:
    chosen = fields.tool_choice
    if isinstance(chosen, ChosenFunction):
        return NamedTool(type="function", function=NamedFunction(name=chosen.name))
    return chosen
