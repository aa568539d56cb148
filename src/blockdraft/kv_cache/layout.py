"""Shape of the K/V memory of one network: what a page holds, and how many bytes a sequence needs.

A page holds 64 consecutive positions of one *class* of layers (full attention or windowed): for
each layer of the class, each K/V head, K as float16 [head_dim, 64], then V as float16
[64, head_dim]. Knows no memory.
"""

from dataclasses import dataclass

from blockdraft.config import DrafterConfig, ModelConfig

__all__ = ["LARGEST_BLOCK", "PAGE_POSITIONS", "KVLayout", "ceil_pages"]

PAGE_POSITIONS = 64
"""Positions per page; also the attention chunk of the numeric specification."""

LARGEST_BLOCK = 64
"""Rows that a rollback may take back without losing what a window still needs."""


def ceil_pages(num_positions: int) -> int:
    """Pages that hold ``num_positions`` positions."""
    return (num_positions + PAGE_POSITIONS - 1) // PAGE_POSITIONS


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the K/V memory of one network.

    Attributes:
        num_kv_heads: K/V heads per layer.
        head_dim: Width of a head.
        full_layers: Layer indices with full attention; a layer's ordinal is its place here.
        windowed_layers: Layer indices with a sliding window; the same.
        window: Tokens a windowed layer sees; None when no layer is windowed.
        largest_block: Rows that a rollback may take back, window or not.
    """

    num_kv_heads: int
    head_dim: int
    full_layers: tuple[int, ...]
    windowed_layers: tuple[int, ...] = ()
    window: int | None = None
    largest_block: int = LARGEST_BLOCK

    def __post_init__(self) -> None:
        """Check that windowed layers come with a window.

        Raises:
            ValueError: Only one of ``windowed_layers`` and ``window`` is given.
        """
        if bool(self.windowed_layers) != (self.window is not None):
            raise ValueError(
                f"{len(self.windowed_layers)} windowed layers with window {self.window}"
            )

    @classmethod
    def from_config(
        cls, config: ModelConfig | DrafterConfig, *, largest_block: int = LARGEST_BLOCK
    ) -> "KVLayout":
        """The layout of a decoder or a drafter."""
        windowed = tuple(i for i, flag in enumerate(config.windowed_layers) if flag)
        full = tuple(i for i in range(config.num_layers) if i not in set(windowed))
        window = config.window if windowed else None
        return cls(config.num_kv_heads, config.head_dim, full, windowed, window, largest_block)

    @property
    def full_page_bytes(self) -> int:
        """Bytes of a page of the full layers; 0 when there are none."""
        return len(self.full_layers) * self._layer_page_bytes

    @property
    def window_page_bytes(self) -> int:
        """Bytes of a page of the windowed layers; 0 when there are none."""
        return len(self.windowed_layers) * self._layer_page_bytes

    @property
    def bytes_per_token(self) -> int:
        """K/V bytes of one position over all layers, while no window has passed it."""
        return (self.full_page_bytes + self.window_page_bytes) // PAGE_POSITIONS

    @property
    def _layer_page_bytes(self) -> int:
        return self.num_kv_heads * 2 * PAGE_POSITIONS * self.head_dim * 2

    def max_bytes(self, num_positions: int, *, rows_per_pass: int) -> int:
        """The most page bytes a sequence holds on its way to ``num_positions`` positions.

        Args:
            num_positions: Slots ever reserved.
            rows_per_pass: The most rows it reserves at once.
        """
        pages = ceil_pages(num_positions)
        window_pages = pages
        if self.window is not None:
            # The kept span starts anywhere in a page, hence one page more than its length needs.
            span = self.window + self.largest_block + rows_per_pass
            window_pages = min(pages, ceil_pages(span) + 1)
        return pages * self.full_page_bytes + window_pages * self.window_page_bytes
