"""A tokenizer of 48 characters, for tests of what lies above one."""

from collections.abc import Iterable, Mapping, Sequence

from blockdraft.session.prompt import ChatTemplate, Message

BOS = "^"
EOS = "$"
# Two thirds of a character: complete only with the token after it.
HALF = "%"
ALPHABET = BOS + EOS + HALF + "abcdefghijklmnopqrstuvwxyz <>.,:;!?-+*/=()[]_"
assert len(ALPHABET) == 48


def text_of(token_ids: Sequence[int]) -> str:
    """One character per id, special ones included."""
    return "".join(ALPHABET[token_id] for token_id in token_ids)


class FakeDecoder:
    """Holds a half character back until the next token."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, token_id: int) -> str:
        """The character of an id."""
        text = self._held + ALPHABET[token_id]
        self._held = text if text.endswith(HALF) else ""
        return "" if self._held else text

    def flush(self) -> str:
        """The half character left."""
        held, self._held = self._held, ""
        return held


class FakeTemplate:
    """Writes ``<role>content``."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The turns one after another."""
        turns = "".join(f"<{turn['role']}>{turn['content']}" for turn in messages)
        return self._prefix + turns + ("<model>" if add_generation_prompt else "")


class FakeCodec:
    """Satisfies the session's `TextCodec`."""

    def __init__(self, *, has_template: bool = False, template_writes_bos: bool = False) -> None:
        self.bos_id: int | None = 0
        self.vocab_size = len(ALPHABET)
        self.eos_ids = frozenset({1})
        self.chat_template: ChatTemplate | None = None
        if has_template:
            self.chat_template = FakeTemplate(BOS if template_writes_bos else "")

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """One id per character, after the first token."""
        ids = [ALPHABET.index(character) for character in text]
        return [0, *ids] if add_special else ids

    def stream_decoder(self) -> FakeDecoder:
        """A fresh decoder."""
        return FakeDecoder()

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """One character per id."""
        return text_of([idx for idx in token_ids if not (skip_special and idx in (0, 1))])

    def token_bytes(self, token_id: int) -> bytes:
        """The character of an id."""
        return ALPHABET[token_id].encode()

    def is_special(self, token_id: int) -> bool:
        """The first and the last token of a text."""
        return token_id in (0, 1)
