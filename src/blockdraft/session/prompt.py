"""From a prompt or a conversation to the ids that the model reads.

Knows the tokenizer through a protocol and nothing of models or requests.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from blockdraft.errors import ConfigError, UnsupportedError

__all__ = ["ChatTemplate", "Message", "Prompt", "TextCodec", "TextDecoder", "encode_prompt"]

Message = Mapping[str, object]
"""One turn of a conversation: ``role``, ``content`` and what else the template reads."""

Prompt = str | Sequence[Message]
"""A text, or a conversation that the model continues."""


class TextDecoder(Protocol):
    """Turns ids into text piece by piece, never a broken character."""

    def feed(self, token_id: int, /) -> str:
        """Whole characters that ``token_id`` completes."""
        ...

    def flush(self) -> str:
        """What is left when no more comes."""
        ...


class ChatTemplate(Protocol):
    """Writes a conversation as one text."""

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The conversation in the model's format."""
        ...


class TextCodec(Protocol):
    """What a session needs of a tokenizer."""

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end generation."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's conversation format; None for a base model."""
        ...

    def encode(self, text: str, /, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of ``text``."""
        ...

    def stream_decoder(self) -> TextDecoder:
        """A fresh incremental decoder."""
        ...

    def decode(self, token_ids: Iterable[int], /, *, skip_special: bool = True) -> str:
        """The text of ``token_ids``."""
        ...

    def token_bytes(self, token_id: int, /) -> bytes:
        """The bytes that a token stands for."""
        ...

    def is_special(self, token_id: int, /) -> bool:
        """Whether a token steers and is no part of the text."""
        ...


def encode_prompt(
    codec: TextCodec,
    prompt: Prompt,
    *,
    raw: bool | None,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
) -> list[int]:
    """Ids of a prompt.

    Args:
        codec: The model's tokenizer.
        prompt: A text (with a chat template: one user turn) or a conversation.
        raw: True uses no chat template; None uses one where the model has it.
        tools: Descriptions of functions that the template shows to the model.
        variables: More names that the template knows, such as ``enable_thinking``.

    Raises:
        ConfigError: ``raw`` with a conversation, or a conversation without turns.
        UnsupportedError: A chat template is needed and the model has none.
    """
    template = codec.chat_template
    if raw is None:
        raw = template is None and isinstance(prompt, str)
    if raw:
        if not isinstance(prompt, str):
            raise ConfigError("raw takes a text, not a conversation")
        return codec.encode(prompt, add_special=True, parse_special=True)
    if template is None:
        raise UnsupportedError("the model has no chat template; give a text with raw=True")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not messages:
        raise ConfigError("the conversation has no turns")
    text = template.render(messages, add_generation_prompt=True, tools=tools, variables=variables)
    token_ids = codec.encode(text, add_special=True, parse_special=True)
    # Some templates write the first token themselves; a text has it once.
    if codec.bos_id is not None and token_ids[:2] == [codec.bos_id, codec.bos_id]:
        del token_ids[0]
    return token_ids
