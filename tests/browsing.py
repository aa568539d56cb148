"""A browser and sessions for tests of the web page: a token is any piece of text."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.engine import Engine
from blockdraft.engine.sampling import SampleRow
from blockdraft.session import Session
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.fake_codec import FakeCodec
from tests.fake_target import VOCAB_SIZE, FakeTarget
from tests.serving import live

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Request, Route

__all__ = ["NEEDS_CHROMIUM", "Pieces", "Visit", "browser", "expect", "page_session", "visiting"]

CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("playwright") is None, reason="needs playwright"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian's package of that name)"),
]
END = 1
FIRST = 2


class PieceCodec(FakeCodec):
    """Every prompt is one token, whatever is in it; the others are pieces of an answer.

    Attributes:
        prompts: Texts that were encoded.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        super().__init__(has_template=True)
        self.prompts: list[str] = []
        self._pieces = ["", "", *pieces]

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.prompts.append(text)
        return [0]

    def stream_decoder(self) -> "PieceDecoder":  # type: ignore[override]
        return PieceDecoder(self._pieces)

    def decode(self, token_ids: Any, *, skip_special: bool = True) -> str:
        return "".join(self._pieces[idx] for idx in token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id].encode()


@dataclass
class PieceDecoder:
    """The pieces of ids."""

    pieces: Sequence[str]

    def feed(self, token_id: int) -> str:
        return self.pieces[token_id]

    def flush(self) -> str:
        return ""


class Pieces:
    """Samples an answer's pieces in turn, as fast as they are let.

    Attributes:
        codec: The text of the pieces.
        script: Their ids.
        drafter: Drafts that are right or wrong at random.
    """

    def __init__(self, pieces: Sequence[str], *, held: bool = False) -> None:
        known = list(dict.fromkeys(pieces))
        assert len(known) <= VOCAB_SIZE - FIRST
        self.codec = PieceCodec(known)
        self.script = [*(known.index(piece) + FIRST for piece in pieces), END]
        self.drafter = ScriptedDrafter(
            DRAFTERS["mixture"], 7, [[0, *self.script]] * 100, vocab_size=VOCAB_SIZE
        )
        self._held = held
        self._passes = threading.Semaphore(0)

    def let(self, count: int) -> None:
        """Let the target pick tokens in so many more passes."""
        self._passes.release(count)

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        if self._held:
            assert self._passes.acquire(timeout=20)
        places = [min(row.position - 1, len(self.script) - 1) for row in rows]
        return [self.script[place] for place in places]


def page_session(script: Pieces, *, with_drafter: bool = True) -> Session:
    """A session that answers everything with a script."""
    engine = Engine(
        FakeTarget(),
        max_cache_bytes=1 << 24,
        context_length=512,
        sampler=script,
        drafter=script.drafter if with_drafter else None,
    )
    return Session(engine, script.codec)


@dataclass
class Visit:
    """The page in a browser.

    Attributes:
        page: It.
        url: Where it came from.
        foreign: Addresses of other origins that it asked for.
        noise: Dialogs, errors and what went to the console.
    """

    page: "Page"
    url: str
    foreign: list[str] = field(default_factory=list)
    noise: list[str] = field(default_factory=list)

    def send(self, text: str) -> None:
        """Write a message and press Enter."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")


def expect(*actual: Any) -> Any:
    """What playwright says of a page or a part of it."""
    from playwright.sync_api import expect

    return expect(*actual)


@contextmanager
def browser() -> Iterator["Browser"]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def visiting(
    browser: "Browser", session: Session, *, context: dict[str, Any] | None = None, **changes: Any
) -> Iterator[Visit]:
    """The page of a server on a session; other origins cannot be reached, but are noted."""
    with live(session, **changes) as url:
        found = browser.new_context(**(context or {}))
        found.set_default_timeout(10_000)
        page = found.new_page()
        visit = Visit(page, url)

        def route(route: "Route", request: "Request") -> None:
            if request.url.startswith(f"{url}/"):
                route.continue_()
            else:
                visit.foreign.append(request.url)
                route.abort()

        def refuse(dialog: "Dialog") -> None:
            visit.noise.append(dialog.message)
            dialog.dismiss()

        found.route("**/*", route)
        page.on("dialog", refuse)
        page.on("pageerror", lambda error: visit.noise.append(str(error)))
        page.on("console", lambda message: visit.noise.append(message.text))
        page.on("popup", lambda popup: visit.noise.append(popup.url))
        page.goto(url)
        try:
            yield visit
        finally:
            found.close()
