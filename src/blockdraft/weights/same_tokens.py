"""Whether two model files cut text into the same tokens, by what their metadata says.

Knows no tokenizer and no text. A small model may draft for a large one only then: its drafts are
ids of the other's vocabulary.
"""

from pathlib import Path

from blockdraft.errors import ConfigError
from blockdraft.weights.gguf import GGUFFile, StringArray

__all__ = ["TOKENS", "check_same_table", "check_same_tokenizer"]

TOKENS = "tokenizer.ggml.tokens"

_FACTS = {
    "tokenizer.ggml.model": "tokenizer",
    "tokenizer.ggml.pre": "pre-tokenizer",
    "tokenizer.ggml.bos_token_id": "first token",
    "tokenizer.ggml.eos_token_id": "last token",
    "tokenizer.ggml.add_bos_token": "add_bos_token",
    "tokenizer.ggml.add_eos_token": "add_eos_token",
}


def check_same_table(path: Path, tokens: StringArray, target: GGUFFile) -> None:
    """Refuse a drafter whose tokens are not the target's.

    Args:
        path: The drafter, for messages.
        tokens: Its tokens.
        target: The target; one without tokens is not compared.

    Raises:
        ConfigError: They disagree; the message has both tokens, or both counts.
    """
    theirs = target.metadata.get(TOKENS)
    if not isinstance(theirs, StringArray) or tokens.is_same(theirs):
        return
    if len(tokens) != len(theirs):
        raise ConfigError(
            f"{path}: has {len(tokens)} tokens, the target has {len(theirs)}: {target.path}"
        )
    for token_id, (one, other) in enumerate(zip(tokens, theirs, strict=True)):
        if one != other:
            raise ConfigError(
                f"{path}: token {token_id} is {one!r}, the target's is {other!r}: {target.path}"
            )


def check_same_tokenizer(drafter: GGUFFile, target: GGUFFile) -> None:
    """Refuse a model that cuts text in another way than ``target``.

    Raises:
        ConfigError: They disagree; the message has both facts.
    """
    for key, what in _FACTS.items():
        ours, theirs = drafter.metadata.get(key), target.metadata.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            raise ConfigError(
                f"{drafter.path}: its {what} is {ours!r}, the target's is {theirs!r}: {target.path}"
            )
    tokens = drafter.metadata.get(TOKENS)
    if not isinstance(tokens, StringArray):
        raise ConfigError(f"{drafter.path}: has no tokens to compare with those of {target.path}")
    check_same_table(drafter.path, tokens, target)
