"""Clients that leave, stall, send half of what they should, or too much."""

import json
import re
import select
import socket
import threading
from typing import Any

import httpx2
import pytest

from blockdraft.serve.engine_thread import EngineThread
from tests.fake_target import FakeTarget
from tests.serving import (
    ScriptSampler,
    connect,
    ids,
    live,
    plain_http,
    post_bytes,
    script_session,
    wait_for,
)

PATH = "/v1/completions"
PROMPT = {"prompt": "a", "max_tokens": 60}
# 200 KiB in small events: more than small sockets and the server's buffer hold.
FLOOD: dict[str, Any] = PROMPT | {"stream": True, "n": 16, "max_tokens": 58}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_costs_no_further_round(
    monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    has_left = threading.Event()
    cancel = EngineThread.cancel

    def told(engine: EngineThread, job: Any) -> None:
        cancel(engine, job)
        has_left.set()

    monkeypatch.setattr(EngineThread, "cancel", told)
    sampler = ScriptSampler(ids("x" * 500), num_prompt=2)
    session = script_session(sampler=sampler)
    target = session.engine.target
    assert isinstance(target, FakeTarget)
    sampler.hold.clear()
    with live(session) as url:
        with connect(url) as client:
            client.sendall(post_bytes(PATH, PROMPT | {"stream": stream, "n": 4}))
            wait_for(lambda: target.pass_rows)  # a round runs, until the sampler is released
        assert has_left.wait(10)
        num_passes = len(target.pass_rows)
        sampler.hold.set()
        wait_for(lambda: session.engine.used_cache_bytes == 0)
        assert len(target.pass_rows) == num_passes


@pytest.fixture
def small_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system hold little of what a server sends."""

    def shrink(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr("blockdraft.serve.protocol._notice_death", shrink)


def lazy_client(url: str) -> socket.socket:
    """A connection that asked for much and reads nothing."""
    client = socket.socket()
    client.settimeout(10)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    address = httpx2.URL(url)
    client.connect((address.host, address.port))
    client.sendall(post_bytes(PATH, FLOOD))
    return client


@pytest.mark.usefixtures("small_sockets")
def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    session = script_session("x" * 60)
    with live(session) as url, lazy_client(url):
        found = plain_http.post(f"{url}{PATH}", json=PROMPT | {"max_tokens": 58}, timeout=20)
        assert found.json()["usage"]["completion_tokens"] == 58
        wait_for(lambda: session.engine.used_cache_bytes == 0)


@pytest.mark.usefixtures("small_sockets")
def test_what_a_slow_client_leaves_unread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.serve.jobs._MAX_UNREAD", 5)
    session = script_session("x" * 60)
    with live(session) as url, lazy_client(url):
        wait_for(lambda: session.engine.num_running)
        wait_for(lambda: not session.engine.has_work)
        metrics = plain_http.get(f"{url}/metrics").text
    ended = re.findall(r'answers_total{finish_reason="length"} (\S+)', metrics)
    assert sum(map(float, ended)) < FLOOD["n"]


@pytest.mark.usefixtures("small_sockets")
def test_a_client_that_never_reads_again_is_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.serve.protocol._STALL_S", 0.2)
    session = script_session("x" * 60)
    with live(session) as url, lazy_client(url) as lazy:
        poll = select.poll()
        poll.register(lazy, 0)  # errors alone
        assert poll.poll(10_000)
        assert lazy.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        wait_for(lambda: session.engine.used_cache_bytes == 0)


def test_silent_connections_are_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.serve.protocol._HEADERS_S", 0.2)
    with live(script_session()) as url:
        with connect(url) as silent:
            assert silent.recv(1) == b""
        with connect(url) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
            assert half.recv(1) == b""


def test_a_half_sent_second_request_is_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.serve.protocol._HEADERS_S", 0.2)
    with live(script_session()) as url, connect(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(b"GET /hea")
        while client.recv(1000):
            pass


def test_a_long_answer_outlives_the_clock_of_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.serve.protocol._HEADERS_S", 0.1)
    sampler = ScriptSampler(ids("hello$"), num_prompt=2)
    sampler.hold.clear()
    with live(script_session(sampler=sampler)) as url:
        threading.Timer(0.3, sampler.hold.set).start()
        found = plain_http.post(f"{url}{PATH}", json=PROMPT, timeout=20)
    assert found.json()["choices"][0]["text"] == "hello"


def test_bodies_that_do_not_come_are_given_up() -> None:
    with live(script_session(), body_s=0.2) as url, connect(url) as half:
        half.sendall(post_bytes(PATH, PROMPT)[:-1])
        assert half.recv(12) == b"HTTP/1.1 408"


def test_bodies_that_are_too_large_are_not_read() -> None:
    with live(script_session()) as url, connect(url) as client:
        head = post_bytes(PATH, "").replace(b"Length: 2", b"Length: 9000000")
        client.sendall(head)
        assert client.recv(12) == b"HTTP/1.1 413"


def test_malformed_http_is_refused() -> None:
    with live(script_session()) as url, connect(url) as wild:
        wild.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert wild.recv(12) == b"HTTP/1.1 400"


def test_malformed_json_costs_nobody_else_anything() -> None:
    with live(script_session()) as url, plain_http.client(base_url=url) as client:
        kind = {"content-type": "application/json"}
        for body in (b"{", b'{"prompt": "a",}', b"\xff", b"[" * 100_000):
            assert client.post(PATH, content=body, headers=kind).status_code == 400
        found = client.post(PATH, content=json.dumps(PROMPT), headers=kind)
        assert found.status_code == 200
