"""What the system is asked to notice of a connection."""

import socket
import sys

import pytest

from blockdraft.serve.protocol import _notice_death


@pytest.mark.skipif(sys.platform != "linux", reason="the options have other names elsewhere")
def test_dead_peers_are_noticed() -> None:
    with socket.socket() as connection:
        _notice_death(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_other_sockets_are_left_alone() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        _notice_death(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
