"""What is wrong with a request body, in one sentence that names the field."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from blockdraft.serve.failure import ApiError

__all__ = ["about_invalid"]

_MAX_NAME = 100
_BRANCHES = ("str", "int", "bool")


def about_invalid(findings: Sequence[Any], known: Iterable[str]) -> ApiError:
    """The refusal for what pydantic found.

    Args:
        findings: As ``errors()`` of a validation error lists them.
        known: Names of fields, of which a misspelt one may have been meant.
    """
    # Where a field may be of several types, each of them complains; the one that fits best
    # complains of more than the type, or of the type of something deeper.
    found = min(findings, key=lambda each: (each["type"].endswith("_type"), -len(each["loc"])))
    if found["type"] == "json_invalid":
        what = found.get("ctx", {}).get("error", "malformed")
        return ApiError(400, f"the body is not valid JSON: {what}", code="invalid_json")
    # The first place is "body". Others may name a branch of a union, which the body has not.
    place = [part for part in found["loc"][1:] if isinstance(part, int) or str(part).isidentifier()]
    if found["type"].endswith("_type") and place[-1:] and place[-1] in _BRANCHES:
        place.pop()
    name = _spelled(place)[:_MAX_NAME]
    if found["type"] == "extra_forbidden":
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return _refused(name, f"the field {name} is not supported{hint}", "unsupported_field")
    if found["type"] == "missing":
        what = f"the field {name} is missing" if name else "the request has no body"
        return _refused(name, what, "missing_field")
    about = str(found["msg"])
    return _refused(name, f"{name or 'the body'}: {about[0].lower()}{about[1:]}", "invalid_value")


def _refused(name: str, message: str, code: str) -> ApiError:
    return ApiError(400, message, param=name or None, code=code)


def _spelled(place: Sequence[Any]) -> str:
    """``messages[0].content``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
