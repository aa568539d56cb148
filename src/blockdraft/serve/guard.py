"""Who may talk to the server: checked before anything of a request is looked at.

Pure ASGI; knows no endpoint but the open ones. A web page that a user has open must not be able to
drive a server on the same machine: its requests carry an ``Origin``, or after DNS rebinding a
foreign ``Host``, and are refused. Source: https://fetch.spec.whatwg.org (Origin, CORS).
"""

import asyncio
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blockdraft.serve.failure import ApiError, error_response
from blockdraft.serve.settings import ServeSettings, is_loopback

__all__ = ["Guard"]

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Guard:
    """Checks Host, Origin, API key and body, then calls the application.

    Args:
        app: The application.
        settings: What is allowed.
        open_paths: Paths that need no key.
    """

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, *, open_paths: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._settings = settings
        self._open_paths = frozenset(open_paths)
        self._names = {name.lower() for name in settings.allowed_hosts} | {settings.host.lower()}
        self._takes_addresses = not is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        extra = [*_ALWAYS]
        try:
            self._check_host(headers)
            extra += self._cors(headers)
            guarded = _adding(send, extra)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight(headers)(scope, receive, guarded)
                return
            self._check_key(scope["path"], headers)
            if scope["method"] in _WRITES:
                receive = await self._with_body(headers, receive)
        except ApiError as error:
            await error_response(error)(scope, receive, _adding(send, extra))
            return
        await self._app(scope, receive, guarded)

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        name = _host_name(host)
        if name is None:
            raise ApiError(400, "the request has no valid Host header", code="bad_host")
        if is_loopback(name) or name in self._names:
            return
        # An address cannot be rebound to another machine, a name can.
        if self._takes_addresses and _is_address(name):
            return
        raise ApiError(
            403, f"this server does not answer to the host {name}; see --allowed-host",
            code="host_not_allowed",
        )  # fmt: skip

    def _cors(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Headers that let an allowed web page read the response.

        Raises:
            ApiError: The request comes from another web page.
        """
        origin = headers.get("origin")
        if origin is None or _is_same(origin, headers["host"]):
            return []
        allowed = self._settings.cors_origins
        if "*" in allowed or origin in allowed:
            return [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"vary", b"Origin"),
            ]
        raise ApiError(
            403, "web pages of other origins may not use this server; see --cors-origin",
            code="origin_not_allowed",
        )  # fmt: skip

    def _check_key(self, path: str, headers: Headers) -> None:
        key = self._settings.api_key
        if key is None or path in self._open_paths:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        # Equal time, whatever is right about it; digests hide the length.
        if not hmac.compare_digest(_digest(given.strip()), _digest(key)):
            what = "the API key is wrong" if given else "an API key is needed"
            challenge = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, what, code="invalid_api_key", headers=challenge)

    async def _with_body(self, headers: Headers, receive: Receive) -> Receive:
        """The whole body, read now; what follows it still comes from the client."""
        settings = self._settings
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > settings.max_body_bytes:
            raise _too_large(settings.max_body_bytes)
        try:
            async with asyncio.timeout(settings.body_s):
                body = await _read_body(receive, settings.max_body_bytes)
        except TimeoutError:
            message = f"the request body did not come within {settings.body_s:g} s"
            raise ApiError(408, message, headers={"Connection": "close"}) from None
        if body:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json" and not kind.endswith("+json"):
                raise ApiError(415, f"the body is {kind or 'untyped'}; it must be application/json")
        return _replaying(body, receive)


async def _read_body(receive: Receive, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client left before its request was complete")
        piece = message.get("body", b"")
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _replaying(body: bytes, receive: Receive) -> Receive:
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _adding(send: Send, extra: Iterable[tuple[bytes, bytes]]) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return adding


def _preflight(headers: Mapping[str, str]) -> Response:
    """The answer to a browser that asks before it sends; its origin is allowed."""
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": headers.get(
            "access-control-request-headers", "authorization, content-type"
        ),
        "Access-Control-Max-Age": "600",
    }
    if "access-control-request-private-network" in headers:
        allowed["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=allowed)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the request body exceeds {max_bytes} bytes"
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})


def _host_name(host: str) -> str | None:
    """The name or address in a ``Host`` header, without port; None where it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    is_bare = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    return parts.hostname.rstrip(".") if parts.hostname and is_bare else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: str) -> bool:
    scheme, _, netloc = origin.partition("://")
    return scheme in ("http", "https") and netloc.lower() == host.lower()


def _digest(text: str) -> bytes:
    return hmac.digest(b"blockdraft", text.encode("utf-8", "surrogateescape"), "sha256")
