"""Responses that end with their client: a stream of server-sent events, or one JSON object.

Knows no wire format. A client that leaves is noticed at once, and its job is cancelled.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blockdraft.serve.failure import as_api_error, to_json

__all__ = ["PING", "EventStream", "event", "json_response", "while_connected"]

PING = b": waiting\n\n"
"""A comment that shows proxies and dead clients' machines that the stream lives."""

_LEFT = 499  # as nginx logs a client that left; nobody reads it


def event(value: object, *, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return head + b"data: " + to_json(value) + b"\n\n"


def json_response(value: object) -> Response:
    """A JSON object as response."""
    return Response(to_json(value), media_type="application/json")


async def while_connected(
    request: Request, work: Coroutine[Any, Any, Response], *, cancel: Callable[[], None]
) -> Response:
    """What ``work`` makes; when the client leaves before, ``cancel`` is called instead."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=_LEFT)
    finally:
        cancel()
        await _stop(task, watcher)


class EventStream(Response):
    """Server-sent events from an iterator.

    Args:
        events: Encoded events. An exception becomes an event with the error.
        done: What follows the last event, unless it was an error.
        cancel: Called when the response ends, however it ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, done: bytes, cancel: Callable[[], None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._done = done
        self._cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client leaves."""
        del scope
        sender = asyncio.create_task(self._send(send))
        watcher = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sender, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            self._cancel()
            await _stop(sender, watcher)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)

        async def body(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            async for data in self._events:
                await body(data)
                await asyncio.sleep(0)  # others' turn; a lost connection is noticed before the next
        except Exception as error:  # noqa: BLE001 - the status is sent; the client learns it here
            await body(event(as_api_error(error).body))
        else:
            await body(self._done)
        await body(b"", more=False)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
