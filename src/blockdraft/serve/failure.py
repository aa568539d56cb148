"""Errors as clients of the OpenAI API expect them: a status, and one JSON object.

The only place that turns an exception into a status.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from blockdraft.errors import (
    BlockdraftError,
    CapacityError,
    ConfigError,
    FileFormatError,
    UnsupportedError,
)

__all__ = ["ApiError", "as_api_error", "error_response", "to_json"]

_LOG = logging.getLogger(__name__)

_CODES: dict[type[BlockdraftError], str] = {
    ConfigError: "invalid_value",
    CapacityError: "context_length_exceeded",
    UnsupportedError: "unsupported_value",
    FileFormatError: "template_error",
}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ApiError(Exception):
    """A refusal with its HTTP status.

    Attributes:
        status: HTTP status.
        message: One sentence for the user.
        param: The field of the request that it is about, or None.
        code: What programs may look at, or None.
        headers: More response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        fields = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


def as_api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception; says nothing of those that are bugs of ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BlockdraftError):
        return ApiError(400, str(error), code=_CODES.get(type(error)))
    # The message may hold a piece of the request, which logs must not.
    _LOG.error("a request failed: %s", type(error).__name__)
    _LOG.debug("its traceback", exc_info=error)
    return ApiError(500, "the server failed at this request; its log says more")


def error_response(error: BaseException) -> Response:
    """The response for an exception."""
    failure = as_api_error(error)
    return Response(to_json(failure.body), failure.status, failure.headers, "application/json")


def to_json(value: object) -> bytes:
    """Compact JSON in ASCII, so that no text of a model can break its frame."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
