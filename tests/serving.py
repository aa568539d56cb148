"""Servers for tests: sessions that write a script, and ways to reach them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.testclient import TestClient

from blockdraft.engine import Engine
from blockdraft.engine.sampling import SampleRow
from blockdraft.serve import ServeSettings, create_app
from blockdraft.serve.server import make_server
from blockdraft.session import Session
from tests.fake_codec import ALPHABET, FakeCodec
from tests.fake_target import FakeTarget

__all__ = ["LOCAL", "ScriptSampler", "client_of", "live", "script_session", "settings_of"]

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


def script_session(
    text: str = "hello there$", *, num_prompt: int = 2, context_length: int = 512, **options: Any
) -> Session:
    """A session on no model: ``text`` is written after prompts of ``num_prompt`` tokens."""
    token_ids = [ALPHABET.index(letter) for letter in text]
    sampler = options.pop("sampler", ScriptSampler(token_ids, num_prompt=num_prompt))
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


@contextmanager
def live(session: Session, **changes: Any) -> Iterator[str]:
    """The address of a server on a free port; it is drained at the end."""
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
        yield found[0]
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
