"""A real server with clients that behave badly, faults in the middle, and its own end."""

import json
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.engine.sampling import SampleRow
from tests.fake_codec import ALPHABET
from tests.serving import ScriptSampler, live, script_session

PROMPT = {"prompt": "a", "max_tokens": 60}


def ids(text: str) -> list[int]:
    return [ALPHABET.index(letter) for letter in text]


def connect(url: str) -> socket.socket:
    address = httpx2.URL(url)
    return socket.create_connection((address.host, address.port or 80), timeout=10)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_full_queue_answers_with_retry_after() -> None:
    sampler = ScriptSampler(ids("hello$"), num_prompt=2)
    sampler.hold.clear()
    session = script_session(sampler=sampler)
    with live(session, max_running=1, max_waiting=1) as url:
        found: list[int] = []

        def post() -> None:
            found.append(httpx2.post(f"{url}/v1/completions", json=PROMPT, timeout=20).status_code)

        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: httpx2.get(f"{url}/health").json()["waiting"] == 2)
        refused = httpx2.post(f"{url}/v1/completions", json=PROMPT)
        sampler.hold.set()
        for thread in threads:
            thread.join()
    assert (refused.status_code, found) == (429, [200, 200])
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"


def test_stopping_lets_streams_end() -> None:
    sampler = ScriptSampler(ids("hello there$"), num_prompt=2)
    session = script_session(sampler=sampler)
    with live(session) as url:
        sampler.hold.clear()
        stream = httpx2.stream("POST", f"{url}/v1/completions", json=PROMPT | {"stream": True})
        response = stream.__enter__()
        release = threading.Timer(0.3, sampler.hold.set)
        release.start()
    # The server was told to stop before the first token; `live` waited for its end.
    text = "".join(response.iter_text())
    stream.__exit__(None, None, None)
    assert text.endswith("data: [DONE]\n\n")
    parts = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
    assert "".join(part["choices"][0]["text"] for part in parts) == "hello there"


class Failing(ScriptSampler):
    """Fails where the script has no more tokens."""

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        try:
            return super().pick(logits, rows)
        except IndexError:
            raise ArithmeticError("a secret of the user") from None


def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = script_session(sampler=Failing(ids("hel"), num_prompt=2))
    with live(session) as url:
        text = httpx2.post(f"{url}/v1/completions", json=PROMPT | {"stream": True}).text
        whole = httpx2.post(f"{url}/v1/completions", json=PROMPT)
        assert httpx2.get(f"{url}/health").json()["running"] == 0
    last = text.strip().rpartition("\n\n")[2]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert "[DONE]" not in text
    assert whole.status_code == 500
    assert "ArithmeticError" in caplog.text
    assert "secret" not in text + whole.text + caplog.text


def test_silent_connections_are_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdraft.serve.server._HEADERS_S", 0.2)
    with live(script_session()) as url:
        with connect(url) as silent:
            assert silent.recv(1) == b""
        with connect(url) as half:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: local")
            assert half.recv(1) == b""


def test_bodies_that_do_not_come_are_given_up() -> None:
    with live(script_session(), body_s=0.2) as url, connect(url) as half:
        half.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        assert half.recv(12) == b"HTTP/1.1 408"


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    session = script_session("x" * 60)
    with live(session) as url, connect(url) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        body = json.dumps(PROMPT | {"stream": True, "n": 8, "max_tokens": 58}).encode()
        lazy.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        found = httpx2.post(f"{url}/v1/completions", json=PROMPT | {"max_tokens": 58}, timeout=20)
        assert found.json()["usage"]["completion_tokens"] == 58
        wait_for(lambda: session.engine.used_cache_bytes == 0)


def test_malformed_http_is_refused() -> None:
    with live(script_session()) as url, connect(url) as wild:
        wild.sendall(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert wild.recv(12) == b"HTTP/1.1 400"
