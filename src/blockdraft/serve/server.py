"""Runs the application until it is told to stop: sockets, signals, draining."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from blockdraft.errors import ConfigError
from blockdraft.serve.app import create_app
from blockdraft.serve.settings import ServeSettings
from blockdraft.session import Session

__all__ = ["make_server", "serve"]

_LOG = logging.getLogger(__name__)

_HEADERS_S = 20.0


class _Protocol(H11Protocol):
    """HTTP/1.1 that hangs up on connections that never send a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(_HEADERS_S, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _expire(self) -> None:
        if getattr(self, "cycle", None) is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Ends after SIGINT or SIGTERM as a program that was asked to, not as one that was killed."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready(_address(self))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may listen to signals
            return
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        if self.should_exit:  # the second time: do not wait for answers
            self.force_exit = True
        else:
            _LOG.info("stopping once the running answers have ended; again stops at once")
        self.should_exit = True


def make_server(
    session: Session,
    settings: ServeSettings,
    *,
    on_ready: Callable[[str], None],
    access_log: bool = False,
) -> uvicorn.Server:
    """A server that is ready to run; setting its ``should_exit`` drains it.

    Args:
        session: Nobody else may use it meanwhile.
        settings: How to listen.
        on_ready: Told the address when requests are taken.
        access_log: Log a line for each request, without what is in it.
    """
    config = uvicorn.Config(
        create_app(session, settings),
        host=settings.host,
        port=settings.port,
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
    )
    return _Server(config, on_ready)


def serve(
    session: Session,
    settings: ServeSettings,
    *,
    on_ready: Callable[[str], None],
    access_log: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM; then no new requests are taken and running answers end.

    Arguments are those of `make_server`.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    server = make_server(session, settings, on_ready=on_ready, access_log=access_log)
    try:
        server.run()
    except SystemExit:  # how uvicorn ends when it cannot bind
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}") from None


def _address(server: uvicorn.Server) -> str:
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
