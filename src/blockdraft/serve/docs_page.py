"""The interface as one static page: no script, nothing from elsewhere."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["docs_page"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid #8884; }
"""


def docs_page(schema: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI description."""
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    body = "".join(_operations(schema))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
        '<p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>'
        f"{body}</body></html>"
    )


def _operations(schema: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', ''))}</p>"
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if body:
                yield from _fields(_resolved(body["schema"], schema), schema)


def _fields(found: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    required = found.get("required", ())
    yield "<table><tr><th>field</th><th>type</th><th>default</th><th></th></tr>"
    for name, field in found.get("properties", {}).items():
        default = "required" if name in required else field.get("default")
        about = escape(field.get("description", ""))
        shown = "" if default is None else escape(str(default).lower())
        yield (
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field, schema))}</td>"
            f"<td>{shown}</td><td>{about}</td></tr>"
        )
    yield "</table>"


def _kind(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        kinds = (_kind(option, schema) for option in options)
        return " or ".join(kind for kind in kinds if kind != "null")
    if "const" in field or "enum" in field:
        return ", ".join(str(value).lower() for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}), schema)}"
    return str(field.get("type", "any"))


def _resolved(found: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in found:
        return found
    name = str(found["$ref"]).rpartition("/")[2]
    return dict(schema["components"]["schemas"][name])
