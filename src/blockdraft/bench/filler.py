"""Text that stands before a prompt, to measure at a depth of context.

The language reference that comes with Python: natural prose and code, on every machine, without a
download. Another version of Python has a slightly other text.
"""

from pydoc_data.topics import topics

from blockdraft.errors import ConfigError
from blockdraft.session.prompt import TextCodec

__all__ = ["with_filler"]

_CHARACTERS_PER_TOKEN = 8  # more than any tokenizer reaches on this text
_FRAME = "Here are pages of a handbook that you need not answer.\n\n{}\n\nNow the question.\n\n{}"


def with_filler(prompt: str, num_tokens: int, codec: TextCodec) -> str:
    """``prompt`` after about ``num_tokens`` tokens of other text; 0 is ``prompt`` itself.

    Raises:
        ConfigError: There is not so much text.
    """
    if num_tokens == 0:
        return prompt
    text = "\n".join(text for _, text in sorted(topics.items()))
    known = text[: num_tokens * _CHARACTERS_PER_TOKEN]
    token_ids = codec.encode(known, add_special=False, parse_special=False)
    if len(token_ids) < num_tokens:
        raise ConfigError(
            f"a depth of {num_tokens} tokens is asked for; the text for it has {len(token_ids)}"
        )
    decoder = codec.stream_decoder()
    filler = "".join(decoder.feed(token_id) for token_id in token_ids[:num_tokens])
    return _FRAME.format(filler, prompt)
