"""The description of the interface: FastAPI's, with our errors and our key in it."""

from typing import Any

from fastapi import FastAPI

__all__ = ["describe"]

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "a field, a value or the JSON is wrong; the message names it",
    "401": "the API key is missing or wrong",
    "403": "the Host or Origin is not allowed",
    "404": "there is no such model",
    "408": "the body came too slowly",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "429": "the queue is full; Retry-After says when to try again",
    "500": "a fault of the server",
    "503": "the server is going down",
}
_READ_STATUSES = ("401", "403", "404", "500", "503")


def describe(app: FastAPI) -> None:
    """Give the application its description, made when first asked for."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(made())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's shape, not ours
        schemas.pop(name, None)
    for found in schemas.values():
        _allow_nulls(found)
    schemas["Error"] = _ERROR
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            responses = operation["responses"]
            responses.pop("422", None)
            for status in _STATUSES if method == "post" else _READ_STATUSES:
                responses[status] = {
                    "description": _STATUSES[status],
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                }
            if path != "/health":
                operation["security"] = [{}, {"key": []}]
    return schema


def _allow_nulls(schema: dict[str, Any]) -> None:
    """Say that optional fields may be null, which counts as absent."""
    fields = schema.get("properties", {})
    for name in fields.keys() - schema.get("required", ()):
        field = fields[name]
        options = field.get("anyOf", [])
        if {"type": "null"} in options:
            continue
        notes = {key: field.pop(key) for key in ("default", "description", "title") if key in field}
        fields[name] = {"anyOf": [*(options or [field]), {"type": "null"}], **notes}
