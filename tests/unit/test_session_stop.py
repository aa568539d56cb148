import pytest

from blockdraft.errors import ConfigError
from blockdraft.session.stop import StopMatcher


def feed_all(stop: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stop)
    shown = []
    for piece in pieces:
        text, matched = matcher.feed(piece)
        shown.append(text)
        if matched:
            return shown, True
    return [*shown, matcher.flush()], False


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "matched"),
    [
        ([], ["ab", "c"], ["ab", "c", ""], False),
        (["x"], ["ab", "cxd"], ["ab", "c"], True),
        (["END"], ["a E", "N", "D b"], ["a ", "", ""], True),
        (["END"], ["a E", "N", "ough"], ["a ", "", "ENough", ""], False),
        (["END"], ["EEN", "D"], ["E", ""], True),
        (["aab"], ["aa", "ab"], ["", "a"], True),
        (["abc"], ["ab"], ["", "ab"], False),
        (["cd", "bcd"], ["abcd"], ["a"], True),
        (["\n\n"], ["one\n", "two\n", "\nthree"], ["one", "\ntwo", ""], True),
    ],
    ids=["none", "inside", "pieces", "false-start", "overlap", "self-overlap", "flush", "first",
         "newlines"],
)  # fmt: skip
def test_text_is_cut_before_the_first_stop_string(
    stop: list[str], pieces: list[str], shown: list[str], matched: bool
) -> None:
    assert feed_all(stop, pieces) == (shown, matched)


def test_shown_text_is_the_same_for_any_pieces() -> None:
    text = "abcabdabe-abf"
    for size in range(1, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        shown, matched = feed_all(["abe", "bf"], pieces)
        assert ("".join(shown), matched) == ("abcabd", True)


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        StopMatcher(["a", ""])
