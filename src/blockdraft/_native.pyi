"""Types of the native core; what each does is said in csrc/."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class Matrix:
    """Packed weights: csrc/pack.h."""

    def __init__(self, ggml_type: int, rows: int, cols: int) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def ggml_type(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def pack(self, row_start: int, data: NDArray[np.uint8]) -> None: ...
    def dequantize(self, row_start: int, count: int) -> NDArray[np.float32]: ...

class Pool:
    """Threads of passes: csrc/pool.h."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...

class Plan:
    """A recorded pass: csrc/plan.h."""

    def __init__(self, max_rows: int, isa: str | None) -> None: ...
    @property
    def isa(self) -> str: ...
    side_by_side: bool
    def buffer(self, cols: int) -> int: ...
    def rope(
        self, inverse_frequencies: Sequence[float], factor: float, interleaved: bool
    ) -> int: ...
    def embed(
        self,
        table: Matrix,
        out: int,
        scale: float,
        mask_token: int = -1,
        mask: NDArray[np.float32] | None = None,
    ) -> None: ...
    def project(
        self,
        x: int,
        weights: Sequence[Matrix],
        outs: Sequence[int],
        biases: Sequence[NDArray[np.float32] | None],
        norm: NDArray[np.float32] | None,
        eps: float,
        up: int,
        gate: str,
        accumulate: bool,
    ) -> None: ...
    def attend(
        self,
        q: int,
        k: int,
        v: int,
        out: int,
        layer: int,
        windowed_pages: bool,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        softcap: float,
        rope: int,
        window: int,
        causal: bool,
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        norm_eps: float,
    ) -> None: ...
    def store(
        self,
        k: int,
        v: int,
        layer: int,
        windowed_pages: bool,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rope: int,
        window: int,
        k_norm: NDArray[np.float32] | None,
        norm_eps: float,
    ) -> None: ...
    def norm(self, x: int, weight: NDArray[np.float32], eps: float, out: int) -> None: ...
    def convolve(
        self,
        x: int,
        kernels: int,
        out: int,
        base: NDArray[np.float32],
        taps: int,
        side: int,
        group_size: int,
        accumulate: bool,
    ) -> None: ...
    def rank(
        self,
        logits: int,
        ids: int,
        values: int,
        probs: int,
        top_k: int,
        tokens: NDArray[np.int32] | None = None,
    ) -> None: ...
    def transitions(
        self,
        gates: int,
        ids: int,
        values: int,
        scores: int,
        before: Matrix,
        after: Matrix,
        top_k: int,
    ) -> None: ...
    def norm_add(self, y: int, weight: NDArray[np.float32], eps: float, h: int) -> None: ...
    def copy(self, source: int, target: int, column: int) -> None: ...
    def select(self, source: int, target: int) -> None: ...
    def scale_cap(self, x: int, scale: float, softcap: float) -> None: ...
    def run(
        self,
        pool: Pool,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        parents: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        base_lengths: NDArray[np.int32],
        full_pages: NDArray[np.uint64],
        window_pages: NDArray[np.uint64],
        logit_rows: NDArray[np.int32],
    ) -> None: ...
    def view(self, buffer: int) -> NDArray[np.float32]: ...

class SamplerParams:
    """Processors of one row: csrc/sample.h."""

    def __init__(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repeat_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        seed: int,
    ) -> None: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repeat_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def seed(self) -> int: ...

def sample(
    logits: NDArray[np.float32],
    params: Sequence[SamplerParams],
    choices: Sequence[int],
    positions: Sequence[int],
    penalty_tokens: Sequence[NDArray[np.int32]],
    biases: Sequence[tuple[NDArray[np.int32], NDArray[np.float32]] | None],
    isa: str,
    masks: Sequence[NDArray[np.uint32] | None] | None = None,
) -> list[int]: ...
def gumbel(seed: int, choice: int, position: int, token_id: int) -> float: ...

class SuffixAutomaton:
    """All runs of a text: csrc/automaton.h.

    Token ids are int32 and not negative, or ValueError; then nothing was added.

    Attributes:
        BYTES_PER_TOKEN: Memory for each token, at most; a few KiB come on top.
    """

    BYTES_PER_TOKEN: int
    def __init__(self, depth: int) -> None: ...
    @property
    def depth(self) -> int:
        """Tokens of a context at most."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the text, separators included."""

    @property
    def num_states(self) -> int:
        """States: at most two for each token, and the root."""

    @property
    def nbytes(self) -> int:
        """Memory that is held."""

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Add tokens to the end of the text."""

    def separate(self) -> None:
        """End a text: what follows is another one, and nothing is drafted across."""

    def end(self) -> Cursor:
        """The end of the text itself, as it is now."""

    def count(self, run: NDArray[np.int32]) -> int:
        """How often a run occurred; ValueError beyond ``depth`` + 1 tokens."""

class RecentText:
    """The automaton of the latest tokens of a text without end: csrc/automaton.h."""

    def __init__(self, depth: int, max_tokens: int) -> None: ...
    @property
    def automaton(self) -> SuffixAutomaton:
        """What is known; another object after a rotation."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole text, the forgotten ones and separators included."""

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Add tokens to the end of the text."""

    def separate(self) -> None:
        """End a text: what follows is another one."""

class ChainRule:
    """How probable drafts are, and which are worth it: csrc/chain.h."""

    def __init__(
        self,
        min_match: int,
        min_prob: float,
        min_path_prob: float,
        num_cheap: int,
        cheap_min_path_prob: float,
        discounts: Sequence[float],
    ) -> None: ...

class Cursor:
    """The end of some text in one automaton, which may grow: csrc/lookup_bind.cpp.

    A new one knows nothing of its text.
    """

    def __init__(self, automaton: SuffixAutomaton) -> None: ...
    @property
    def automaton(self) -> SuffixAutomaton: ...
    @property
    def length(self) -> int:
        """Tokens of the longest end that occurred, up to one more than the depth."""

    def follow(self, token_ids: NDArray[np.int32]) -> None:
        """Go on by tokens of its text."""

    def contexts(self) -> list[tuple[int, int, int | None]]:
        """Ends that were followed by something, longest first.

        Of each its length, how often it was followed, and by what token most often, the latest of
        equals; None where only the end of a text followed.
        """

    def best_chain(
        self, max_drafts: int, rule: ChainRule
    ) -> tuple[tuple[int, ...], tuple[float, ...], float]:
        """Drafts, their ``q``, and how many of them are expected to be kept."""

class OrderedText:
    """A text that grows no more, with its suffixes in order: csrc/suffix_order.h.

    The arrays are int32 of one length, kept alive and not copied; they must not change. -1 stands
    between texts. ValueError where a place lies outside the text or a token is negative otherwise.
    """

    def __init__(
        self, token_ids: NDArray[np.int32], places: NDArray[np.int32], depth: int
    ) -> None: ...
    @property
    def num_tokens(self) -> int:
        """Tokens of the text, separators included."""

    def cursor(self) -> OrderCursor:
        """The end of some text of which nothing is known yet."""

class OrderCursor:
    """The end of some text in an ordered text, which it keeps alive: csrc/lookup_bind.cpp."""

    def follow(self, token_ids: NDArray[np.int32]) -> None:
        """Go on by tokens of its text."""

    def contexts(self) -> list[tuple[int, int]]:
        """Ends that occur, longest first: length and how often."""

    def best_chain(
        self, max_drafts: int, rule: ChainRule
    ) -> tuple[tuple[int, ...], tuple[float, ...], float]:
        """Drafts, their ``q``, and how many of them are expected to be kept."""

class NgramIndex:
    """Where every n-gram of a growing text occurred last: csrc/ngram.h."""

    def __init__(self, min_size: int, max_size: int) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Memory that is held."""

    def extend(self, token_ids: NDArray[np.int32]) -> None:
        """Add tokens to the end; one that is negative is a ValueError, and none is added."""

    def continuation(self, max_tokens: int) -> tuple[int, tuple[int, ...]]:
        """The size of the longest end that occurred before, and what followed its latest place.

        Size 0 and nothing where there is none. Where that place overlaps the end, what follows
        repeats.
        """

def isa_names() -> list[str]: ...
def move_rows(
    pages: NDArray[np.uint64],
    shape: tuple[int, int, int],
    base: int,
    rows: NDArray[np.int32],
) -> None: ...
def measure_read_bandwidth(threads: int, bytes: int) -> float: ...
def measure_int8_peak(threads: int) -> float: ...
