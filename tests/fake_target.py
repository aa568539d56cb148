"""A target without a network: its logits are a hash of what it reads through the K/V pages.

A wrong page, slot, position or parent changes the hash and so the tokens.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blockdraft.config import Activation, ModelConfig, RopeConfig
from blockdraft.engine.sampling import SampleRow
from blockdraft.kv_cache import PAGE_POSITIONS, KVLayout, KVPool, SequenceCache, page_view
from blockdraft.ops.batch import Batch, PassResult

VOCAB_SIZE = 48
HEAD_DIM = 16


def fake_config(
    *, windowed_layers: Sequence[bool] = (False, True), window: int = 40, context_length: int = 512
) -> ModelConfig:
    """Two layers, one of them windowed, unless said otherwise."""
    rope = RopeConfig(theta=10000.0, dims=HEAD_DIM)
    any_window = any(windowed_layers)
    return ModelConfig(
        architecture="llama",
        name="fake",
        num_layers=len(windowed_layers),
        hidden_size=32,
        ffn_size=64,
        num_heads=2,
        num_kv_heads=2,
        head_dim=HEAD_DIM,
        vocab_size=VOCAB_SIZE,
        context_length=context_length,
        norm_eps=1e-5,
        rope=rope,
        local_rope=rope if any_window else None,
        window=window if any_window else None,
        windowed_layers=tuple(windowed_layers),
        activation=Activation.SILU,
        embedding_scale=1.0,
        attention_scale=0.25,
        attention_softcap=None,
        logit_softcap=None,
        logit_scale=1.0,
        qk_norm=False,
        attention_bias=False,
        post_norms=False,
        tied_head=True,
    )


def class_view(layout: KVLayout, address: int, *, windowed: bool) -> NDArray[np.float16]:
    """A page as float16 [layers, heads, 2, 64 * head_dim]."""
    layers = layout.windowed_layers if windowed else layout.full_layers
    nbytes = layout.window_page_bytes if windowed else layout.full_page_bytes
    shape = (len(layers), layout.num_kv_heads, 2, PAGE_POSITIONS * layout.head_dim)
    return page_view(address, nbytes).view(np.float16).reshape(shape)


def write_slots(
    layout: KVLayout,
    addresses: NDArray[np.uint64],
    start: int,
    values: Sequence[tuple[int, int]],
    *,
    windowed: bool,
) -> None:
    """Store (token, position) pairs in every layer, head and part of slots from ``start`` on."""
    pairs = np.array(values)
    while len(pairs):
        number, first = divmod(start, PAGE_POSITIONS)
        part, pairs = np.split(pairs, [PAGE_POSITIONS - first])
        columns = slice(first, first + len(part))
        page = class_view(layout, int(addresses[number]), windowed=windowed)
        num_layers, num_heads = page.shape[:2]
        keys = page[:, :, 0].reshape(num_layers, num_heads, layout.head_dim, PAGE_POSITIONS)
        rows = page[:, :, 1].reshape(num_layers, num_heads, PAGE_POSITIONS, layout.head_dim)
        layers = np.arange(num_layers)[:, None, None, None]
        dims = np.arange(layout.head_dim)[:, None]
        keys[..., columns] = part[:, 0] + layers + dims
        rows[:, :, columns] = part[:, 1:] + np.arange(num_heads)[:, None, None]
        start += len(part)


def read_slots(
    layout: KVLayout, addresses: NDArray[np.uint64], slots: Sequence[int], *, windowed: bool
) -> NDArray[np.int64]:
    """What `write_slots` stored, read from the last layer and head, "slots 2"."""
    numbers, columns = np.divmod(np.array(slots), PAGE_POSITIONS)
    found = np.empty((len(columns), 2), np.int64)
    for number in set(numbers.tolist()):
        page = class_view(layout, int(addresses[number]), windowed=windowed)
        keys, values = page[-1, -1]
        here = numbers == number
        found[here, 0] = keys[columns[here]]
        found[here, 1] = values[columns[here] * layout.head_dim]
    layers = layout.windowed_layers if windowed else layout.full_layers
    return found - (len(layers) - 1, layout.num_kv_heads - 1)


def write_cache_slots(
    cache: SequenceCache, layout: KVLayout, start: int, token_ids: Sequence[int]
) -> None:
    """Store tokens at positions from ``start`` on, in both classes of layers."""
    values = list(zip(token_ids, range(start, start + len(token_ids)), strict=True))
    for windowed, addresses in ((False, cache.full_pages()), (True, cache.window_pages())):
        if layout.windowed_layers if windowed else layout.full_layers:
            write_slots(layout, addresses, start, values, windowed=windowed)


class FakeTarget:
    """Satisfies the engine's `Target`; counts passes and keeps the row count of each."""

    def __init__(self, config: ModelConfig | None = None, *, max_rows: int = 16) -> None:
        self.config = config or fake_config()
        self.max_rows = max_rows
        self.layout = KVLayout.from_config(self.config, largest_block=8)
        self.pass_rows: list[int] = []

    def new_cache_pool(self, max_bytes: int) -> KVPool:
        """K/V memory of this layout."""
        return KVPool(self.layout, max_bytes)

    def forward(self, batch: Batch) -> PassResult:
        """Write every row, then hash what each wanted row sees."""
        assert batch.num_rows <= self.max_rows
        self.pass_rows.append(batch.num_rows)
        for sequence in range(batch.num_sequences):
            self._write(batch, sequence)
        owners = np.searchsorted(batch.row_starts, batch.logit_rows, side="right") - 1
        rows = zip(batch.logit_rows.tolist(), owners.tolist(), strict=True)
        logits = [self._logits(batch, row, owner) for row, owner in rows]
        return PassResult(np.array(logits, np.float32).reshape(len(logits), VOCAB_SIZE))

    def _write(self, batch: Batch, sequence: int) -> None:
        rows = slice(*batch.row_starts[sequence : sequence + 2].tolist())
        values = list(zip(batch.token_ids[rows], batch.positions[rows], strict=True))
        base = int(batch.base_lengths[sequence])
        if self.layout.full_layers:
            write_slots(self.layout, batch.full_pages[sequence], base, values, windowed=False)
        if self.layout.windowed_layers:
            write_slots(self.layout, batch.window_pages[sequence], base, values, windowed=True)

    def _logits(self, batch: Batch, row: int, sequence: int) -> NDArray[np.float64]:
        base = int(batch.base_lengths[sequence])
        start = int(batch.row_starts[sequence])
        slots: list[int] = []
        while row >= 0:
            slots.insert(0, base + row - start)
            row = int(batch.parents[row])
        slots = [*range(base), *slots]
        digest = hashlib.sha256()
        if self.layout.full_layers:
            pages = batch.full_pages[sequence]
            digest.update(read_slots(self.layout, pages, slots, windowed=False).tobytes())
        if self.layout.window is not None:
            pages = batch.window_pages[sequence]
            visible = slots[-self.layout.window :]
            digest.update(read_slots(self.layout, pages, visible, windowed=True).tobytes())
        return np.random.default_rng(list(digest.digest()[:8])).standard_normal(VOCAB_SIZE)


class FakeSampler:
    """Adds noise keyed by everything a sampler may depend on, and takes the largest."""

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        """One id per row."""
        assert logits.shape == (len(rows), VOCAB_SIZE)
        return [self._pick(values, row) for values, row in zip(logits, rows, strict=True)]

    def _pick(self, values: NDArray[np.float32], row: SampleRow) -> int:
        params = row.sampling.params
        if params.temperature == 0:
            return int(values.argmax())
        key = (params.seed, row.sampling.choice, row.position, row.recent.tolist())
        digest = hashlib.sha256(repr(key).encode()).digest()
        noise = np.random.default_rng(list(digest[:8])).standard_normal(VOCAB_SIZE)
        return int((values + noise).argmax())
