"""The web page at ``/``: its files as they are in the package, under a policy that trusts no text.

Knows no endpoint of the interface. The page shows what a model wrote; should a fault of the page
ever make an element of it, the browser still runs, loads and sends nothing. Source:
https://w3c.github.io/webappsec-csp/ and https://w3c.github.io/trusted-types/.
"""

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

__all__ = ["PAGE_PATHS", "page_router"]

_FOLDER = Path(__file__).parent / "page"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",  # the page's icon; answers have no images
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        # No text becomes HTML or a script's address, not even by a mistake of ours.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Links in answers must not be looked up before they are followed.
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-cache",
}

_NAMES = frozenset(path.name for path in _FOLDER.iterdir() if path.suffix in _KINDS)
PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _NAMES)})
"""What the page consists of; nothing of a model or a user is in it."""


def page_router() -> APIRouter:
    """Routes of the page."""
    router = APIRouter(include_in_schema=False)
    responses = {name: (_FOLDER / name).read_bytes() for name in _NAMES}

    @router.get("/")
    async def index() -> Response:
        return _response("index.html")

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        if name not in responses:
            raise HTTPException(404)
        return _response(name)

    def _response(name: str) -> Response:
        kind = _KINDS[Path(name).suffix]
        return Response(responses[name], media_type=kind, headers=_HEADERS)

    return router
