"""A tree of drafts in one pass: every path gets the bytes that its chain would get.

The chain runs one row per pass. Siblings share a position and lie in different slots, so a path
is scattered over the pages until it is committed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.kv_cache import KVLayout, SequenceCache, page_view
from blockdraft.models.target import TargetModel
from tests.passes import CACHE_BYTES, Part, TracedModels, run_pass, token_stream

TinyModel = Callable[..., Path]

ISAS = _native.isa_names()
VOCAB_SIZE = 299
CASES: dict[str, dict[str, Any]] = {
    "llama": {"arch": "llama", "tensor_type": "Q4_0"},
    "qwen3": {"arch": "qwen3", "tensor_type": "Q6_K", "layers": 1},
    # Its window of 8 passes by inside a deep tree.
    "gemma3": {"arch": "gemma3", "tensor_type": "Q8_0"},
}


@dataclass(frozen=True)
class Tree:
    """Draft tokens after committed ones.

    Attributes:
        parents: Ordinal of each row's predecessor, -1 for the last committed token.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]

    def path(self, row: int) -> list[int]:
        """Ordinals from a first row down to ``row``."""
        path = [row]
        while self.parents[path[0]] >= 0:
            path.insert(0, self.parents[path[0]])
        return path

    def leaves(self) -> list[int]:
        return [row for row in range(len(self.parents)) if row not in self.parents]

    def part(self, cache: SequenceCache) -> Part:
        return Part(cache, np.array(self.token_ids, np.int32), self.parents)

    def with_others(self, kept: Sequence[int]) -> "Tree":
        """The same shape with other tokens outside ``kept``."""
        changed = ((token + 1) % VOCAB_SIZE for token in self.token_ids)
        pairs = enumerate(zip(self.token_ids, changed, strict=True))
        return Tree(tuple(a if i in kept else b for i, (a, b) in pairs), self.parents)


@st.composite
def trees(draw: st.DrawFn, max_rows: int = 24) -> Tree:
    count = draw(st.integers(1, max_rows))
    tokens = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=count, max_size=count))
    parents = [draw(st.one_of(st.just(i - 1), st.integers(-1, i - 1))) for i in range(count)]
    return Tree(tuple(tokens), tuple(parents))


COMB = Tree(tuple(range(24)), tuple(i - 1 - i % 2 for i in range(24)))  # deep, siblings all along
BUSH = Tree(tuple(range(50, 74)), (-1,) * 12 + tuple(range(12)))


@pytest.fixture(scope="module")
def models(tiny_model: TinyModel) -> TracedModels:
    return TracedModels(lambda case: tiny_model(**CASES[case]), {})


def pages_of(model: TargetModel, cache: SequenceCache) -> list[NDArray[np.uint8]]:
    """Views of the pages that a cache holds, in order."""
    layout = KVLayout.from_config(model.config)
    classes = (
        (cache.full_pages(), layout.full_page_bytes),
        (cache.window_pages(), layout.window_page_bytes),
    )
    return [
        page_view(int(address), nbytes)
        for addresses, nbytes in classes
        for address in addresses
        if address
    ]


@cache
def prefilled_pages(model: TargetModel, length: int, seed: int) -> list[NDArray[np.uint8]]:
    """What `prefilled` finds in its pages; computed once."""
    held = SequenceCache(model.new_cache_pool(CACHE_BYTES))
    tokens = token_stream(seed, length, VOCAB_SIZE)
    for start in range(0, length, 64):
        part = Part(held, tokens[start : start + 64], wanted=())
        run_pass(model, [part])
        held.commit(range(len(part.token_ids)))
    return [page.copy() for page in pages_of(model, held)]


def prefilled(model: TargetModel, length: int, *, seed: int = 0) -> SequenceCache:
    """A sequence with ``length`` committed positions."""
    held = SequenceCache(model.new_cache_pool(CACHE_BYTES))
    for start in range(0, length, 64):
        num_rows = min(64, length - start)
        held.reserve(num_rows)
        held.commit(range(num_rows))
    known = prefilled_pages(model, length, seed)
    for page, values in zip(pages_of(model, held), known, strict=True):
        page[:] = values
    return held


def run_chain(model: TargetModel, cache: SequenceCache, token_ids: Sequence[int]) -> list[bytes]:
    """Logits of the tokens, one pass each; all are committed."""
    logits = []
    for token_id in token_ids:
        logits += run_pass(model, [Part(cache, np.array([token_id], np.int32))])[0]
        cache.commit([0])
    return logits


def assert_rows_are_chains(
    model: TargetModel, chain: SequenceCache, tree: Tree, rows: Sequence[bytes]
) -> None:
    """Compare each row with the chain of its path, which runs on ``chain``."""
    base = chain.length
    on_chain: list[int] = []
    for leaf in tree.leaves():
        path = tree.path(leaf)
        shared = sum(ours == theirs for ours, theirs in zip(path, on_chain, strict=False))
        chain.rollback(base + shared)  # rows of a path are its beginning: what is shared stays
        new = path[shared:]
        logits = run_chain(model, chain, [tree.token_ids[row] for row in new])
        for row, expected in zip(new, logits, strict=True):
            assert rows[row] == expected, f"row {row} of {tree} at {base}"
        on_chain = path
    chain.rollback(base)


def assert_same_states(cache: SequenceCache, chain: SequenceCache, base: int) -> None:
    """Compare the K/V of all positions from ``base`` on, those of windowed layers too."""
    assert cache.length == chain.length
    for length in range(base + 1, chain.length + 1):
        assert cache.state_hash(length) == chain.state_hash(length), f"K/V of {length} positions"


any_tree = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
models_and_paths = st.tuples(
    st.sampled_from([*CASES]), st.sampled_from(ISAS), st.sampled_from([1, 2])
)
# A tree of 24 rows crosses a page border from most of these.
bases = st.one_of(st.integers(41, 66), st.integers(105, 130), st.just(0))


@any_tree
@given(key=models_and_paths, base=bases, tree=trees(), data=st.data())
def test_a_tree_is_its_chains(
    models: TracedModels, key: tuple[str, str, int], base: int, tree: Tree, data: st.DataObject
) -> None:
    model = models.model(*key)
    cache, chain = prefilled(model, base), prefilled(model, base)
    rows = run_pass(model, [tree.part(cache)])[0]
    assert_rows_are_chains(model, chain, tree, rows)
    path = tree.path(data.draw(st.integers(0, len(tree.parents) - 1)))
    cache.commit(path)
    run_chain(model, chain, [tree.token_ids[row] for row in path])
    assert_same_states(cache, chain, base)
    assert run_chain(model, cache, [5]) == run_chain(model, chain, [5])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tree", [COMB, BUSH], ids=["comb", "bush"])
@pytest.mark.parametrize("case", CASES)
def test_trees_across_a_page(
    models: TracedModels, case: str, tree: Tree, isa: str, num_threads: int
) -> None:
    """From position 59 both the slots and the positions of the comb cross a page."""
    model = models.model(case, isa, num_threads)
    rows = run_pass(model, [tree.part(prefilled(model, 59))])[0]
    assert_rows_are_chains(model, prefilled(model, 59), tree, rows)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_small_tree_far_into_a_context(models: TracedModels, num_threads: int) -> None:
    """Few rows and many chunks: with two threads the chunks are split."""
    model = models.model("llama", ISAS[-1], num_threads)
    tree = Tree((1, 2, 3), (-1, -1, 1))
    for base in (317, 319, 320, 340):
        cache, chain = prefilled(model, base), prefilled(model, base)
        rows = run_pass(model, [tree.part(cache)])[0]
        assert_rows_are_chains(model, chain, tree, rows)
        cache.commit([1, 2])
        run_chain(model, chain, [2, 3])
        assert_same_states(cache, chain, base)


@any_tree
@given(key=models_and_paths, base=bases, tree=trees(), data=st.data())
@example(key=("gemma3", ISAS[-1], 1), base=59, tree=COMB, data=None)
def test_rejected_rows_do_not_matter(
    models: TracedModels,
    key: tuple[str, str, int],
    base: int,
    tree: Tree,
    data: st.DataObject | None,
) -> None:
    model = models.model(*key)
    last = len(tree.parents) - 1
    path = tree.path(last if data is None else data.draw(st.integers(0, last)))
    states, logits = [], []
    for candidate in (tree, tree.with_others(path)):
        cache = prefilled(model, base)
        rows = run_pass(model, [candidate.part(cache)])[0]
        cache.commit(path)
        logits.append([rows[row] for row in path])
        states.append(cache.state_hash())
    assert logits[0] == logits[1]
    assert states[0] == states[1]


@any_tree
@given(key=models_and_paths, shapes=st.lists(trees(12), min_size=2, max_size=3), base=bases)
def test_trees_of_several_sequences(
    models: TracedModels, key: tuple[str, str, int], shapes: list[Tree], base: int
) -> None:
    """Trees of sequences with other histories and lengths share a pass with a chain."""
    model = models.model(*key)
    lengths = [base + 7 * i for i in range(len(shapes))]
    caches = [prefilled(model, length, seed=i) for i, length in enumerate(lengths)]
    chain = Part(prefilled(model, 70, seed=9), token_stream(8, 5, VOCAB_SIZE))
    parts = [tree.part(cache) for tree, cache in zip(shapes, caches, strict=True)]
    results = run_pass(model, [*parts[:1], chain, *parts[1:]])
    alone = run_chain(model, prefilled(model, 70, seed=9), chain.token_ids.tolist())
    assert results.pop(1) == alone
    for i, (tree, rows) in enumerate(zip(shapes, results, strict=True)):
        assert_rows_are_chains(model, prefilled(model, lengths[i], seed=i), tree, rows)
