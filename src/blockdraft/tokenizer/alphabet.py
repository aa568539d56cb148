"""The GPT-2 alphabet: one printable character for each byte.

Byte-level vocabularies are stored in it. Knows no vocabulary.

Source: Radford et al., 2019, "Language Models are Unsupervised Multitask Learners", 2.2, as
published with the model: bytes that print in Latin-1 stand for themselves, the other 68 follow
from U+0100 in order.
"""

__all__ = ["BYTE_TO_CHAR", "CHAR_TO_BYTE", "from_alphabet"]


def _byte_to_char() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


BYTE_TO_CHAR = _byte_to_char()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def from_alphabet(text: str) -> bytes:
    """The bytes that ``text`` stands for; a character outside the alphabet stands for itself."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in text])
    except KeyError:
        pieces = [
            bytes([CHAR_TO_BYTE[char]]) if char in CHAR_TO_BYTE else char.encode() for char in text
        ]
        return b"".join(pieces)
