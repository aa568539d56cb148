"""Runs the application until it is told to stop: signals, draining."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import socket

import uvicorn

from blockdraft.errors import ConfigError
from blockdraft.serve.app import create_app
from blockdraft.serve.engine_thread import EngineThread
from blockdraft.serve.protocol import Protocol
from blockdraft.serve.settings import ServeSettings
from blockdraft.session import Session

__all__ = ["make_server", "serve"]

_LOG = logging.getLogger(__name__)

_POLL_S = 0.05
_FLUSH_S = 5  # at least, for the last bytes of responses once no answer is written any more


class _Server(uvicorn.Server):
    """Ends after SIGINT or SIGTERM as a program that was asked to, not as one that was killed.

    Args:
        config: uvicorn's settings.
        engine: What writes answers.
        drain_s: Seconds that running answers have to end.
        on_ready: Told the address when requests are taken.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        engine: EngineThread,
        *,
        drain_s: float,
        on_ready: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._drain_s = drain_s
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready(_address(self))

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Refuse new answers with 503 while the others end, then close all connections."""
        self._engine.drain()
        deadline_s = time.monotonic() + self._drain_s
        while self._engine.num_open and not self.force_exit and time.monotonic() < deadline_s:
            await asyncio.sleep(_POLL_S)
        if self._engine.num_open and not self.force_exit:
            _LOG.warning("%d answers did not end within %g s", self._engine.num_open, self._drain_s)
            self._engine.abandon()
        left_s = round(deadline_s - time.monotonic())
        self.config.timeout_graceful_shutdown = max(_FLUSH_S, left_s)
        await super().shutdown(sockets)

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
    app = create_app(session, settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
    )
    return _Server(config, app.state.service.engine, drain_s=settings.drain_s, on_ready=on_ready)


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
