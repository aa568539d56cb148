"""The block-diffusion drafter: what it drafts of what its network says, and what it stores."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import SamplingParams
from blockdraft.engine.sampling import NativeSampler, SampleRow, prepare_sampling
from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVPool, SequenceCache
from blockdraft.models.drafter import DrafterModel, load_drafter
from blockdraft.models.target import TargetModel
from blockdraft.ops.batch import Batch, Candidates
from blockdraft.speculative import DFlashDrafter, Proposal
from blockdraft.weights.drafter import DrafterFile
from tests.native_dflash import (
    NETWORKS,
    TAPS,
    VOCAB_SIZE,
    committed,
    features_of_run,
    filled,
    load_network,
    load_tapped,
    network,
    scripted,
    task_of,
)

TinyModel = Callable[..., Path]


class Loader:
    """Networks on one tiny target, each loaded once."""

    def __init__(self, tiny_model: TinyModel, folder: Path) -> None:
        self._path = tiny_model("llama", "Q8_0", layers=5)
        self._folder = folder
        self._targets: dict[int, TargetModel] = {}
        self._models: dict[tuple[str, int], DrafterModel] = {}

    def model(self, name: str, *, max_rows: int = 64) -> DrafterModel:
        if max_rows not in self._targets:
            self._targets[max_rows] = load_tapped(self._path, max_rows=max_rows)
        if (name, max_rows) not in self._models:
            folder = self._folder / f"{name}-{max_rows}"
            loaded = load_network(NETWORKS[name], folder, self._targets[max_rows])
            self._models[name, max_rows] = loaded
        return self._models[name, max_rows]

    def drafter(self, name: str = "dflash", **options: Any) -> DFlashDrafter:
        max_rows = options.pop("max_rows", 64)
        return DFlashDrafter(self.model(name, max_rows=max_rows), **options)


@pytest.fixture(scope="module")
def loader(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Loader:
    return Loader(tiny_model, tmp_path_factory.mktemp("drafters"))


def empty_cache(drafter: DFlashDrafter) -> SequenceCache:
    return SequenceCache(KVPool(drafter.cache_layout, 64 << 20))


# --- how many


def test_a_block_is_drafted_whole_unless_told_otherwise(loader: Loader) -> None:
    assert loader.drafter().block_size == 4
    assert loader.drafter(num_draft_tokens=2).block_size == 3
    assert len(loader.drafter().propose([task_of(filled(loader.drafter(), 9))])[0]) == 3


@pytest.mark.parametrize("wanted", [0, 4, 63])
def test_more_drafts_than_a_block_has_room_for_are_refused(loader: Loader, wanted: int) -> None:
    message = f"draft tokens is {wanted}; the drafter's block of 4 has room for 1 to 3"
    with pytest.raises(ConfigError, match=message):
        loader.drafter(num_draft_tokens=wanted)


def test_a_block_that_no_pass_holds_is_refused(loader: Loader) -> None:
    assert loader.drafter(num_draft_tokens=2, max_rows=3).block_size == 3
    with pytest.raises(ConfigError, match="a block of 4 rows does not fit a pass of 3"):
        loader.drafter(max_rows=3)


def test_max_drafts_cuts_a_proposal(loader: Loader) -> None:
    drafter = loader.drafter()
    cache = filled(drafter, 12)
    (whole,) = drafter.propose([task_of(cache)])
    assert whole.probs is not None
    for most in (1, 2, 3):
        (cut,) = drafter.propose([task_of(cache, max_drafts=most)])
        assert cut == Proposal.chain(whole.token_ids[:most], whole.probs[:most])


def test_a_shallow_task_gets_a_narrow_block(loader: Loader) -> None:
    """A narrow block is another block: its rows see fewer rows, and it costs less."""
    cache = filled(loader.drafter(), 12)
    for depth in (1, 2):
        (found,) = loader.drafter().propose([replace(task_of(cache), max_depth=depth)])
        narrow = loader.drafter(num_draft_tokens=depth)
        assert narrow.propose([task_of(cache)]) == [found]
    (whole,) = loader.drafter().propose([replace(task_of(cache), max_depth=9)])
    assert [whole] == loader.drafter().propose([task_of(cache)])


def test_an_improbable_draft_ends_a_proposal(loader: Loader) -> None:
    for name in ("dflash", "dflash2"):
        seen = set()
        for num_rows in range(1, 9):
            cache = filled(loader.drafter(name), num_rows)
            (whole,) = loader.drafter(name).propose([task_of(cache)])
            assert whole.probs is not None
            for limit in (*whole.probs, 0.999):
                drafter = loader.drafter(name, min_prob=limit)
                (cut,) = drafter.propose([task_of(cache)])
                kept = [place for place, prob in enumerate(whole.probs) if prob < limit]
                count = kept[0] if kept else 3
                assert cut.token_ids == whole.token_ids[:count]
                seen.add(count)
        assert seen == {0, 1, 2, 3}


def test_a_probability_that_is_no_number_ends_a_proposal() -> None:
    scores = np.full((3, 2, 2), 1.0, np.float32)
    scores[1] = np.nan
    drafter, _ = scripted(np.array([[1, 2]] * 3, np.int32), scores)
    (proposal,) = drafter.propose([task_of(empty_cache(drafter))])
    assert len(proposal) == 1


def test_it_is_no_node_of_a_tree_either() -> None:
    scores = np.full((3, 2, 2), 1.0, np.float32)
    scores[1] = np.nan
    drafter, _ = scripted(np.array([[1, 2]] * 3, np.int32), scores, tree_nodes=6)
    (proposal,) = drafter.propose([task_of(empty_cache(drafter))])
    assert proposal.depth == 1
    assert not np.isnan(proposal.probs or ()).any()


# --- many sequences


@pytest.mark.parametrize("name", NETWORKS)
def test_tasks_together_get_what_each_gets_alone(loader: Loader, name: str) -> None:
    """Nine blocks in passes of two: 4 + 4 rows of 10."""
    drafter = loader.drafter(name, max_rows=10)
    alone = loader.drafter(name)
    params = SamplingParams(temperature=1.0, seed=3)
    tasks = [
        task_of(filled(alone, 7 * i, seed=i), anchor=i, params=params, choice=i) for i in range(9)
    ]
    found = drafter.propose(tasks)
    assert found == [alone.propose([task])[0] for task in tasks]
    assert len(set(found)) == 9


def test_passes_are_as_full_as_they_can_be() -> None:
    drafter, model = scripted(np.array([[1]] * 3, np.int32), None, max_rows=10)
    assert len(drafter.propose([task_of(empty_cache(drafter)) for _ in range(5)])) == 5
    assert model.widths == [[4, 4], [4, 4], [4]]


@pytest.mark.parametrize("name", NETWORKS)
def test_sequences_observed_together_store_what_each_does_alone(loader: Loader, name: str) -> None:
    drafter = loader.drafter(name)
    lengths = (1, 150, 30, 3, 64, 40)  # pieces that fill a pass, exceed it, share it
    caches = [empty_cache(drafter) for _ in lengths]
    runs = [features_of_run(length, seed=i) for i, length in enumerate(lengths)]
    drafter.observe([committed(*pair) for pair in zip(caches, runs, strict=True)])
    for i, (cache, run) in enumerate(zip(caches, runs, strict=True)):
        assert cache.length == len(run)
        alone = empty_cache(drafter)
        step = 1 + 5 * i
        for first in range(0, len(run), step):
            drafter.observe([committed(alone, run[first : first + step])])
        assert alone.state_hash() == cache.state_hash()
    assert len({cache.state_hash() for cache in caches}) == len(caches)


# --- what a network says


def test_the_most_probable_tokens_are_drafted(
    loader: Loader, tiny_model: TinyModel, tmp_path: Path
) -> None:
    drafter = loader.drafter()
    cache = filled(drafter, 20)
    hot = SamplingParams(temperature=1.5, seed=1)
    proposals = drafter.propose([task_of(cache), task_of(cache, params=hot)])
    assert proposals[0] == proposals[1]  # marginals: there is nothing to draw from
    # The same network with all tokens as candidates: probabilities of the whole vocabulary.
    target = load_tapped(tiny_model("llama", "Q8_0", layers=5))
    with DrafterFile.open(NETWORKS["dflash"].write_folder(tmp_path / "all")) as file:
        wide = DFlashDrafter(load_drafter(file, target, top_k=VOCAB_SIZE))
    assert wide.propose([task_of(cache)])[0] == proposals[0]
    assert proposals[0].probs is not None
    assert all(1 / VOCAB_SIZE < prob < 1 for prob in proposals[0].probs)


TOKENS = np.array([[4, 8], [15, 16], [23, 42]], np.int32)
# After the second candidate of a row its first one is better, and the other way round.
CROSSED = np.array([[[1, 3], [9, 0]], [[5, 2], [1, 2]], [[1, 4], [6, 0]]], np.float32)


def test_a_walk_takes_the_best_after_the_token_before() -> None:
    drafter, _ = scripted(TOKENS, CROSSED)
    (proposal,) = drafter.propose([task_of(empty_cache(drafter))])
    assert proposal.token_ids == (8, 16, 23)
    assert proposal.probs == pytest.approx(
        [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-6))]
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_walk_draws_with_the_noise_of_each_position(temperature: float) -> None:
    drafter, _ = scripted(TOKENS, CROSSED)
    walks = set()
    for seed in range(12):
        params = SamplingParams(temperature=temperature, seed=seed)
        task = task_of(empty_cache(drafter), num_tokens=31, params=params, choice=2)
        (proposal,) = drafter.propose([task])
        before, expected, probs = 0, [], []
        for place, ids in enumerate(TOKENS.tolist()):
            row = CROSSED[place, before].astype(float) / temperature
            noise = [_native.gumbel(seed, 2, 31 + place, token_id) for token_id in ids]
            noisy = row + noise
            before = int(np.argmax(noisy))
            expected.append(ids[before])
            q, known = (np.exp(each[before]) / np.exp(each).sum() for each in (row, noisy))
            probs.append(np.sqrt(q * known))
        assert proposal.token_ids == tuple(expected)
        assert proposal.probs == pytest.approx(probs)
        walks.add(proposal.token_ids)
    assert len(walks) > 1


def test_without_a_seed_there_is_no_noise() -> None:
    drafter, _ = scripted(TOKENS, CROSSED)
    params = SamplingParams(temperature=1.0)
    (proposal,) = drafter.propose([task_of(empty_cache(drafter), params=params)])
    assert proposal.token_ids == (8, 16, 23)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 3.0])
def test_a_network_that_knows_the_target_is_always_right(temperature: float) -> None:
    """The target picks by its own sampler from the very logits that the drafter scores by."""
    rng = np.random.default_rng(1)
    num_drafts, vocab = 40, 25
    logits = rng.standard_normal((num_drafts, vocab)).astype(np.float32) * 2
    order = np.argsort(-logits, axis=1, kind="stable").astype(np.int32)
    scores = np.take_along_axis(logits, order, axis=1)[:, None].repeat(vocab, axis=1)
    drafter, _ = scripted(order, scores)
    params = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=9)
    task = task_of(empty_cache(drafter), num_tokens=17, params=params, choice=1)
    (proposal,) = drafter.propose([task])
    empty: NDArray[np.int32] = np.zeros(0, np.int32)

    def picked(choice: int) -> tuple[int, ...]:
        sampling = prepare_sampling(params, choice)
        rows = [SampleRow(sampling, 17 + place, empty) for place in range(num_drafts)]
        return tuple(int(token_id) for token_id in NativeSampler().pick(logits, rows))

    assert proposal.token_ids == picked(1)
    if temperature:
        assert proposal.token_ids != picked(0)


def test_a_real_selectors_walk_is_the_networks(loader: Loader) -> None:
    """Greedy drafts follow the scores that the native pass gives for the block."""
    model, drafter = loader.model("dflash2"), loader.drafter("dflash2")
    cache = filled(drafter, 33)
    found: list[Candidates] = []
    original = model.draft

    def spied(batch: Batch) -> Candidates:
        one = original(batch)
        assert one.scores is not None
        found.append(Candidates(*(array.copy() for array in _four(one))))
        return one

    spying: Any = SimpleNamespace(config=model.config, max_rows=model.max_rows, draft=spied)
    (proposal,) = DFlashDrafter(spying).propose([task_of(cache)])
    assert proposal == drafter.propose([task_of(cache)])[0]
    ids, _, _, scores = _four(found[0])
    before, expected, probs = 0, [], []
    for place in range(3):
        row = scores[place, before].astype(float)
        before = int(row.argmax())
        expected.append(int(ids[place, before]))
        probs.append(np.exp(row[before]) / np.exp(row).sum())
    assert proposal.token_ids == tuple(expected)
    assert proposal.probs == pytest.approx(probs, rel=1e-6)


def _four(found: Candidates) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    assert found.scores is not None
    return found.token_ids, found.logits, found.probs, found.scores


def test_reduced_vocabularies_draft_the_targets_tokens(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    ids = tuple(range(3, VOCAB_SIZE, 7))
    target = load_tapped(tiny_model("llama", "Q8_0", layers=5))
    drafter = DFlashDrafter(load_network(network(draft_ids=ids), tmp_path / "small", target))
    drafted = {
        token_id
        for num_rows in range(1, 12)
        for token_id in drafter.propose([task_of(filled(drafter, num_rows))])[0].token_ids
    }
    assert drafted <= set(ids)
    assert len(drafted) > 5


def test_another_taps_target_is_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = load_tapped(tiny_model("llama", "Q8_0", layers=5))
    with pytest.raises(ConfigError, match=r"reads target layers \[0, 4\]; the target .*\[0, 2, 3"):
        load_network(network(target_layer_ids=(0, 4)), tmp_path / "other", target)
    assert target.taps == TAPS
