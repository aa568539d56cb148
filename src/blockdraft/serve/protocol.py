"""HTTP/1.1 that hangs up on clients that do not get on: silent, half-sent, unread, gone.

uvicorn's protocol with three clocks more. Knows no application.
"""

import asyncio
import socket
import struct

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Protocol"]

_HEADERS_S = 20.0
"""From a connection, or from the first byte of a later request, to the end of its headers."""

_STALL_S = 60.0
"""For a client to read what fills the buffer: 48 KiB."""

_DEAD_S = 60
"""Until the system gives up a peer that acknowledges nothing; it asks idle ones."""


class Protocol(H11Protocol):
    """One connection."""

    _headers_clock: asyncio.TimerHandle | None = None
    _stall_clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        super().connection_made(transport)
        _notice_death(transport.get_extra_info("socket"))
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        for clock in (self._headers_clock, self._stall_clock):
            if clock is not None:
                clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and see whether a request has begun or its headers are complete."""
        super().data_received(data)
        self._watch_headers()

    def pause_writing(self) -> None:
        """The buffer is full: give the client a while to read."""
        super().pause_writing()
        self._stall_clock = self.loop.call_later(_STALL_S, self._hang_up)

    def resume_writing(self) -> None:
        """The client has read."""
        if self._stall_clock is not None:
            self._stall_clock.cancel()
        super().resume_writing()

    def _hang_up(self) -> None:
        """Drop what was not read, here and in the system."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _watch_headers(self) -> None:
        cycle = getattr(self, "cycle", None)
        is_waiting = cycle is None or cycle.response_complete
        if is_waiting and self._headers_clock is None:
            self._headers_clock = self.loop.call_later(_HEADERS_S, self.transport.close)
        elif not is_waiting and self._headers_clock is not None:
            self._headers_clock.cancel()
            self._headers_clock = None


def _notice_death(connection: socket.socket) -> None:
    """Have the system ask an idle peer whether it is there, and give up one that is not."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 3}
    options["TCP_USER_TIMEOUT"] = 1000 * _DEAD_S
    for name, value in options.items():
        if hasattr(socket, name):  # not every system has them all
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
