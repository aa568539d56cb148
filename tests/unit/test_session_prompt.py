import pytest

from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.session.prompt import encode_prompt
from tests.fake_codec import FakeCodec, text_of

CHAT = FakeCodec(has_template=True)
BASE = FakeCodec(has_template=False)
TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("codec", "raw", "expected"),
    [
        (CHAT, None, "^<user>hi<model>"),
        (CHAT, True, "^hi"),
        (CHAT, False, "^<user>hi<model>"),
        (BASE, None, "^hi"),
        (BASE, True, "^hi"),
    ],
    ids=["chat", "chat-raw", "chat-forced", "base", "base-raw"],
)
def test_text_is_one_turn_where_there_is_a_template(
    codec: FakeCodec, raw: bool | None, expected: str
) -> None:
    assert text_of(encode_prompt(codec, "hi", raw=raw)) == expected


def test_conversation_keeps_its_turns() -> None:
    turns = [TURN, {"role": "model", "content": "yo"}, TURN]
    ids = encode_prompt(CHAT, turns, raw=None)
    assert text_of(ids) == "^<user>hi<model>yo<user>hi<model>"


def test_first_token_is_there_once_when_the_template_writes_it() -> None:
    codec = FakeCodec(has_template=True, template_writes_bos=True)
    assert text_of(encode_prompt(codec, "hi", raw=None)) == "^<user>hi<model>"


@pytest.mark.parametrize("raw", [None, False])
def test_conversation_without_a_template_is_refused(raw: bool | None) -> None:
    with pytest.raises(UnsupportedError, match="no chat template"):
        encode_prompt(BASE, [TURN], raw=raw)


def test_text_as_chat_without_a_template_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no chat template"):
        encode_prompt(BASE, "hi", raw=False)


def test_raw_conversation_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a conversation"):
        encode_prompt(CHAT, [TURN], raw=True)


def test_conversation_without_turns_is_refused() -> None:
    with pytest.raises(ConfigError, match="no turns"):
        encode_prompt(CHAT, [], raw=None)
