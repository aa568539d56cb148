"""``response_format``: answers that must be JSON. Knows the wire, not how grammars work."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from blockdraft.engine.rules import TokenRule
from blockdraft.errors import CapacityError
from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import Strict
from blockdraft.session.grammar import Grammars

__all__ = ["JsonSchema", "ResponseFormat", "compiled", "format_rule"]


class JsonSchema(Strict):
    """A schema with its name."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="the schema is always followed strictly")


class ResponseFormat(Strict):
    """What an answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def format_rule(wanted: ResponseFormat | None, grammars: Grammars) -> TokenRule | None:
    """A fresh rule for one answer; None where any text will do.

    Raises:
        ApiError: The type and the schema do not fit together.
        BlockdraftError: The schema cannot be honoured.
    """
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return grammars.json()
    schema = wanted.json_schema
    if schema is None:
        what = "response_format of type json_schema needs a json_schema"
        raise ApiError(400, what, param="response_format.json_schema", code="missing_field")
    return compiled(lambda: grammars.json(schema.schema_))


def compiled(compile_rule: Callable[[], TokenRule]) -> TokenRule:
    """What ``compile_rule`` gives; a schema that is too much says so in its code.

    Raises:
        ApiError: It is.
        BlockdraftError: It cannot be honoured.
    """
    try:
        return compile_rule()
    except CapacityError as error:  # elsewhere this is a prompt that exceeds the context
        raise ApiError(400, str(error), code="schema_too_complex") from error
