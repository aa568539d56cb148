"""A report as one HTML file."""

import re
from base64 import b64decode
from html.parser import HTMLParser

from blockdraft.bench.page import Page
from blockdraft.bench.report import Table

EVIL = '<script>alert("x")</script>'


class Reader(HTMLParser):
    """Collects tags, their attributes and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: Page) -> Reader:
    reader = Reader()
    reader.feed(page.to_html())
    return reader


PAGE = Page(EVIL, [EVIL], b"PNG", [Table([EVIL, "b"], [["1", EVIL]])], EVIL)


def test_every_text_is_escaped() -> None:
    reader = read(PAGE)
    assert "script" not in reader.tags
    assert reader.texts.count(EVIL) == 6  # title, heading, line, two cells, command


def test_it_loads_nothing() -> None:
    (source,) = read(PAGE).sources
    assert b64decode(source.removeprefix("data:image/png;base64,")) == b"PNG"
    assert not re.search(r"https?:|url\(|@import", PAGE.to_html())


def test_a_table_has_a_row_for_each_row() -> None:
    page = Page("t", [], b"", [Table(["a", "b"], [["1", "2"], ["3", "4"]])], "c")
    assert read(page).tags.count("tr") == 3
