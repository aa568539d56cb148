"""Random damage to GGUF files: blind (bits, lengths, splices) and aimed at fields and scales.

All randomness comes from the generator given, so that a seed names a damaged file.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryFile

from blockdraft.weights.header import read_header

__all__ = ["Original", "mutate"]

_INTEGERS = (
    *(0, 1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 255, 256),
    *(2**15, 2**16 - 1, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1),
)
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-12, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
# f16: infinities, quiet and signalling NaN, the largest and smallest numbers.
_HALVES = (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF, 0x7BFF, 0xFBFF, 0x0001, 0x8000)


@dataclass(frozen=True)
class Original:
    """A sound file and where its fields are.

    Attributes:
        raw: The whole file.
        fields: (offset, size) of counts, lengths, types, scalar values, sizes and offsets.
        data_start: Where tensor data begins.
    """

    raw: bytes
    fields: tuple[tuple[int, int], ...]
    data_start: int

    @classmethod
    def of(cls, raw: bytes) -> "Original":
        """Find the fields of a sound file that has tensors."""
        with TemporaryFile() as file:
            file.write(raw)
            file.flush()
            header = read_header(file.fileno(), len(raw), Path("original"))
        fields = [(4, 4), (8, 8), (16, 8)]
        end = 24
        for key, (start, end) in header.spans.items():
            kind = start + 8 + len(key.encode())
            fields += [(start, 8), (kind, 4), (kind + 4, min(end - kind - 4, 8))]
            if raw[kind] == 9:
                fields += [(kind + 4, 4), (kind + 8, 8), (kind + 16, 8)]
        for name, tensor in header.tensors.items():
            dims = end + 8 + len(name.encode())
            sizes = [(dims + 4 + 8 * i, 8) for i in range(len(tensor.shape))]
            kind = dims + 4 + 8 * len(sizes)
            fields += [(end, 8), (dims, 4), *sizes, (kind, 4), (kind + 4, 8)]
            end = kind + 12
        start = min(tensor.offset for tensor in header.tensors.values())
        return cls(raw, tuple(field for field in fields if field[1]), start)


def mutate(original: Original, rng: Random) -> bytes:
    """One to three random kinds of damage."""
    raw = bytearray(original.raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_DAMAGES)(raw, original, rng)
    return bytes(raw)


def _put(raw: bytearray, offset: int, value: bytes) -> None:
    if offset + len(value) <= len(raw):
        raw[offset : offset + len(value)] = value


def _flip_bits(raw: bytearray, original: Original, rng: Random) -> None:
    limit = min(len(raw), rng.choice((original.data_start, len(raw))))
    for _ in range(rng.randint(1, 8) if limit else 0):
        raw[rng.randrange(limit)] ^= 1 << rng.randrange(8)


def _overwrite_field(raw: bytearray, original: Original, rng: Random) -> None:
    offset, size = rng.choice(original.fields)
    if size == 4 and rng.random() < 0.3:
        _put(raw, offset, struct.pack("<f", rng.choice(_FLOATS)))
    else:
        _put(raw, offset, rng.choice(_INTEGERS).to_bytes(8, "little")[:size])


def _nudge_field(raw: bytearray, original: Original, rng: Random) -> None:
    offset, size = rng.choice(original.fields)
    value = int.from_bytes(raw[offset : offset + size], "little") + rng.choice((-32, -1, 1, 32))
    _put(raw, offset, (value % 2**64).to_bytes(8, "little")[:size])


def _copy_field(raw: bytearray, original: Original, rng: Random) -> None:
    source, size = rng.choice(original.fields)
    target, _ = rng.choice([field for field in original.fields if field[1] == size])
    _put(raw, target, bytes(raw[source : source + size]))


def _truncate(raw: bytearray, original: Original, rng: Random) -> None:
    del raw[rng.randrange(len(raw) + 1) :]


def _extend(raw: bytearray, original: Original, rng: Random) -> None:
    raw += rng.randbytes(rng.randint(1, 4096))


def _cut(raw: bytearray, original: Original, rng: Random) -> None:
    start = rng.randrange(len(raw) + 1)
    del raw[start : start + rng.choice((1, 4, 8, 32, 1000))]


def _splice(raw: bytearray, original: Original, rng: Random) -> None:
    limit = rng.choice((original.data_start, len(original.raw)))
    start, target = rng.randrange(limit), rng.randrange(limit)
    piece = original.raw[start : start + rng.choice((1, 8, 64, 1000))]
    if rng.random() < 0.5:
        raw[target:target] = piece
    else:
        _put(raw, target, piece)


def _poison_halves(raw: bytearray, original: Original, rng: Random) -> None:
    for _ in range(rng.choice((1, 4, 64))):
        offset = rng.randrange(original.data_start, len(original.raw) - 1) & ~1
        _put(raw, offset, rng.choice(_HALVES).to_bytes(2, "little"))


def _poison_floats(raw: bytearray, original: Original, rng: Random) -> None:
    offset = rng.randrange(original.data_start, len(original.raw) - 3) & ~3
    _put(raw, offset, struct.pack("<f", rng.choice(_FLOATS)))


_DAMAGES: tuple[Callable[[bytearray, Original, Random], None], ...] = (
    _flip_bits,
    _overwrite_field,
    _overwrite_field,
    _overwrite_field,
    _nudge_field,
    _copy_field,
    _truncate,
    _extend,
    _cut,
    _splice,
    _poison_halves,
    _poison_halves,
    _poison_floats,
)
