"""The application: paths to functions, exceptions to responses."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blockdraft.errors import BlockdraftError
from blockdraft.serve.chat import ChatRequest, ChatWriter
from blockdraft.serve.completions import CompletionRequest, CompletionWriter
from blockdraft.serve.docs_page import docs_page
from blockdraft.serve.failure import ApiError, error_response
from blockdraft.serve.guard import Guard
from blockdraft.serve.invalid import about_invalid
from blockdraft.serve.openapi import describe
from blockdraft.serve.page_routes import PAGE_PATHS, page_router
from blockdraft.serve.plain import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    health,
    model_card,
    tokenize,
)
from blockdraft.serve.respond import json_response
from blockdraft.serve.responses import ResponsesRequest, ResponseWriter
from blockdraft.serve.service import Service
from blockdraft.serve.settings import ServeSettings
from blockdraft.session import Session

__all__ = ["create_app"]

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
}

OPEN_PATHS = frozenset({"/health"}) | PAGE_PATHS
"""What needs no key: nothing of a model or a user is behind it."""


def create_app(session: Session, settings: ServeSettings) -> FastAPI:
    """The application that serves a session; while it runs nobody else may use the session.

    Its lifespan starts the engine thread, and ends it when the last answer has ended.
    """
    service = Service(session, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        service.engine.start()
        yield
        await service.engine.close()

    app = FastAPI(
        title="blockdraft",
        version=version("blockdraft"),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=[
            Middleware(_Outermost, service=service),
            Middleware(Guard, settings=settings, open_paths=OPEN_PATHS),
        ],
        exception_handlers={
            ApiError: _on_error,
            BlockdraftError: _on_error,
            HTTPException: _on_http_error,
            RequestValidationError: _on_invalid,
        },
    )
    app.state.service = service
    app.include_router(_answers(service))
    app.include_router(_small(service))
    app.include_router(page_router())
    describe(app)
    return app


def _answers(service: Service) -> APIRouter:
    router = APIRouter(tags=["answers"])

    @router.post("/v1/chat/completions", response_class=Response)
    async def chat_completions(fields: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        service.check_model(fields.model)
        # Other clients' streams must not wait for a template or a tokenizer.
        writer = await asyncio.to_thread(ChatWriter.plan, fields, service)
        return await writer.respond(request)

    @router.post("/v1/completions", response_class=Response)
    async def completions(fields: CompletionRequest, request: Request) -> Response:
        """Continue one text or several."""
        service.check_model(fields.model)
        writer = await asyncio.to_thread(CompletionWriter.plan, fields, service)
        return await writer.respond(request)

    @router.post("/v1/responses", response_class=Response)
    async def responses(fields: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, in the shapes of the Responses API."""
        service.check_model(fields.model)
        writer = await asyncio.to_thread(ResponseWriter.plan, fields, service)
        return await writer.respond(request)

    return router


def _small(service: Service) -> APIRouter:
    router = APIRouter(tags=["server"])
    since_s = int(time.time())

    @router.get("/v1/models", response_class=Response)
    async def models() -> Response:
        """The served model."""
        return json_response({"object": "list", "data": [model_card(service, since_s=since_s)]})

    @router.get("/v1/models/{name:path}", response_class=Response)
    async def model(name: str) -> Response:
        """The served model by its name."""
        service.check_model(name)
        return json_response(model_card(service, since_s=since_s))

    @router.post("/tokenize", response_class=Response)
    async def tokenize_text(fields: TokenizeRequest) -> Response:
        """Ids of a text."""
        return json_response(await asyncio.to_thread(tokenize, fields, service))

    @router.post("/detokenize", response_class=Response)
    async def detokenize_ids(fields: DetokenizeRequest) -> Response:
        """The text of ids."""
        return json_response(await asyncio.to_thread(detokenize, fields, service))

    @router.get("/health", response_class=Response)
    async def healthy() -> Response:
        """Whether the server takes requests; needs no key."""
        return json_response(health(service))

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counters in Prometheus' format."""
        text = service.metrics.text(service.engine.state, service.engine.num_open)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/docs", response_class=HTMLResponse)
    async def docs(request: Request) -> HTMLResponse:
        """This interface as a page."""
        return HTMLResponse(docs_page(request.app.openapi()))

    return router


class _Outermost:
    """Counts responses by endpoint and status; lets no exception out.

    What nobody expected would otherwise be logged with its message, which may hold user text.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status: int | None = None

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                endpoint = getattr(scope.get("route"), "path", "none")
                self._service.metrics.count_response(endpoint, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except Exception as error:
            if scope["type"] != "http" or status is not None:
                raise
            await error_response(error)(scope, receive, counting)


async def _on_error(request: Request, error: Exception) -> Response:
    del request
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:80]
    messages = {
        404: f"there is no {request.method} {path}",
        405: f"{path} does not take {request.method}",
    }
    message = messages.get(error.status_code, str(error.detail))
    return error_response(ApiError(error.status_code, message, headers=error.headers))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = _BODIES.get(request.url.path)
    return error_response(about_invalid(error.errors(), () if body is None else body.model_fields))
