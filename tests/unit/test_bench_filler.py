"""Other text before a prompt."""

from pydoc_data.topics import topics

import pytest

from blockdraft.bench import filler
from blockdraft.bench.filler import with_filler
from blockdraft.errors import ConfigError
from tests.fake_codec import FakeCodec


def test_no_depth_changes_nothing() -> None:
    assert with_filler("why?", 0, FakeCodec()) == "why?"


def test_a_depth_puts_so_many_tokens_before_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler, "topics", {"a": "abcd dbca"})
    text = with_filler("why?", 6, FakeCodec())
    assert text.endswith("\n\nwhy?")
    assert "\n\nabcd d\n\n" in text  # a token is a letter here


def test_more_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler, "topics", {"a": "abcd"})
    with pytest.raises(ConfigError, match=r"a depth of 5 tokens is asked for; .* has 4"):
        with_filler("why?", 5, FakeCodec())


def test_the_real_text_is_long_enough_for_long_contexts() -> None:
    assert sum(len(text) for text in topics.values()) > 100_000
