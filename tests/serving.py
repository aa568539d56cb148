"""Servers for tests: sessions that write a script, and ways to reach them."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import uvicorn
from numpy.typing import NDArray
from starlette.testclient import TestClient

from blockdraft.engine import Engine
from blockdraft.engine.sampling import SampleRow
from blockdraft.serve import ServeSettings, create_app
from blockdraft.serve.server import make_server
from blockdraft.session import Session
from tests.fake_codec import ALPHABET, FakeCodec
from tests.fake_target import FakeTarget

if TYPE_CHECKING:
    import openai

__all__ = [
    "LOCAL",
    "ScriptSampler",
    "async_openai_client",
    "client_of",
    "connect",
    "ids",
    "live",
    "live_server",
    "openai_client",
    "plain_http",
    "post_bytes",
    "script_session",
    "settings_of",
    "wait_for",
]

LOCAL = "http://localhost:8080"


class ScriptSampler:
    """Writes the same tokens after every prompt, whatever the logits.

    Attributes:
        hold: While it is not set, no token is picked.
    """

    def __init__(self, token_ids: Sequence[int], *, num_prompt: int) -> None:
        self.hold = threading.Event()
        self.hold.set()
        self._token_ids = token_ids
        self._num_prompt = num_prompt

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        assert self.hold.wait(20)
        return [self._token_ids[row.position - self._num_prompt] for row in rows]


class Failing(ScriptSampler):
    """Fails where the script has no more tokens."""

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        try:
            return super().pick(logits, rows)
        except IndexError:
            raise ArithmeticError("a secret of the user") from None


def ids(text: str) -> list[int]:
    """What a script of this text consists of."""
    return [ALPHABET.index(letter) for letter in text]


def connect(url: str) -> socket.socket:
    """A connection to a live server, on which nothing was sent."""
    address = httpx2.URL(url)
    return socket.create_connection((address.host, address.port or 80), timeout=10)


def post_bytes(path: str, body: Any) -> bytes:
    """A whole request, for a connection of its own."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def wait_for(condition: Callable[[], Any]) -> None:
    """Return once it holds; it must within ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def script_session(
    text: str = "hello there$", *, num_prompt: int = 2, context_length: int = 512, **options: Any
) -> Session:
    """A session on no model: ``text`` is written after prompts of ``num_prompt`` tokens."""
    sampler = options.pop("sampler", None) or ScriptSampler(ids(text), num_prompt=num_prompt)
    engine = Engine(
        FakeTarget(),
        max_cache_bytes=1 << 24,
        context_length=context_length,
        sampler=sampler,
        **options,
    )
    return Session(engine, FakeCodec(has_template=True))


def settings_of(**changes: Any) -> ServeSettings:
    """Settings of a server for the model "tiny" on a free port."""
    values: dict[str, Any] = {"model_id": "tiny", "port": 0, "drain_s": 5.0, **changes}
    return ServeSettings(**values)


@contextmanager
def client_of(session: Session, **changes: Any) -> Iterator[TestClient]:
    """A client of an application in this process."""
    app = create_app(session, settings_of(**changes))
    with TestClient(app, base_url=LOCAL) as client:
        yield client


plain_http = SimpleNamespace(
    client=partial(httpx2.Client, verify=False),
    get=partial(httpx2.get, verify=False),
    post=partial(httpx2.post, verify=False),
    stream=partial(httpx2.stream, verify=False),
)
"""Requests of servers without TLS: a client that loads certificates takes 40 ms more."""


def openai_client(base_url: str, api_key: str = "none") -> "openai.OpenAI":
    """The official client, without certificates as well."""
    import openai

    http_client = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, http_client=http_client)


def async_openai_client(base_url: str, api_key: str = "none") -> "openai.AsyncOpenAI":
    """The official client for coroutines."""
    import openai

    http_client = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key, max_retries=0, http_client=http_client
    )


@contextmanager
def live(session: Session, **changes: Any) -> Iterator[str]:
    """The address of a server on a free port; it is drained at the end."""
    with live_server(session, **changes) as (url, _server):
        yield url


@contextmanager
def live_server(session: Session, **changes: Any) -> Iterator[tuple[str, uvicorn.Server]]:
    """As `live`, with the server itself; setting its ``should_exit`` drains it."""
    ready = threading.Event()
    found: list[str] = []

    def on_ready(url: str) -> None:
        found.append(url)
        ready.set()

    server = make_server(session, settings_of(**changes), on_ready=on_ready)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(20)
        yield found[0], server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
