"""The traps of block-diffusion drafting, each as a test."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdraft.errors import ConfigError
from blockdraft.models.dflash import walk
from blockdraft.ops.torch import Place, TorchContext, TorchOps, TorchPass
from tests.drafting import Drafted, TorchDrafter
from tests.tiny_drafter import TinyDrafter

SHAPES = {
    "dflash": TinyDrafter(kinds=("sliding", "full"), window=9),
    "dflash2": TinyDrafter(is_dflash2=True, kinds=("full", "sliding"), is_causal=False),
}
Make = Callable[[TinyDrafter], TorchDrafter]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A float64 drafter of a shape, with a random target."""

    def build(shape: TinyDrafter) -> TorchDrafter:
        folder = shape.write_folder(tmp_path / "drafter")
        generator = torch.Generator().manual_seed(1)
        embedding, head = (
            torch.randn(shape.vocab_size, shape.hidden, generator=generator) for _ in range(2)
        )
        return TorchDrafter(folder, embedding, head, dtype=torch.float64)

    return build


@pytest.fixture(params=SHAPES)
def drafter(make: Make, request: pytest.FixtureRequest) -> TorchDrafter:
    return make(SHAPES[request.param])


def random_features(drafter: TorchDrafter, rows: int, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = drafter.config.feature_size
    return torch.randn(rows, size, generator=generator, dtype=torch.float64)


def draft(
    drafter: TorchDrafter, features: Tensor, position: int, *, anchor: int = 5, first: int = 0
) -> Drafted:
    """Drafts at a position of a fresh context with all of ``features``."""
    context = TorchContext(first)
    drafter.inject([context], [features])
    (drafted,) = drafter.draft([Place(context, position)], [anchor])
    return drafted


def same(a: Drafted, b: Drafted) -> bool:
    close = torch.allclose(a.logits, b.logits, rtol=1e-9, atol=1e-9)
    if a.scores is not None and b.scores is not None:
        close = close and np.allclose(a.scores, b.scores, rtol=1e-9, atol=1e-9)
    return close


def test_features_from_the_anchor_on_change_no_draft(drafter: TorchDrafter) -> None:
    features = random_features(drafter, 12)
    changed = torch.cat((features[:8], random_features(drafter, 4, seed=3)))
    assert same(draft(drafter, features, 8), draft(drafter, changed, 8))
    assert same(draft(drafter, features, 8), draft(drafter, features[:8], 8))


@pytest.mark.parametrize("row", [3, 7], ids=["near the window's edge", "last"])
def test_every_feature_before_the_anchor_counts(drafter: TorchDrafter, row: int) -> None:
    features = random_features(drafter, 8)
    changed = features.clone()
    changed[row] += 1
    assert not same(draft(drafter, features, 8), draft(drafter, changed, 8))


def test_positions_are_absolute(drafter: TorchDrafter) -> None:
    features = random_features(drafter, 8)
    # Rotations only see distances, so everything may move together, and nothing alone.
    together = draft(drafter, features, 1008, first=1000)
    torch.testing.assert_close(draft(drafter, features, 8).logits, together.logits)
    assert not same(draft(drafter, features, 8), draft(drafter, features, 9))


def test_blocks_leave_nothing_behind(drafter: TorchDrafter) -> None:
    features = random_features(drafter, 12)
    context = TorchContext()
    drafter.inject([context], [features[:8]])
    drafter.draft([Place(context, 8)], [7])
    drafter.inject([context], [features[8:]])
    (drafted,) = drafter.draft([Place(context, 12)], [5])
    assert context.length == 12
    assert same(drafted, draft(drafter, features, 12))


def test_rollback_equals_never_having_injected(drafter: TorchDrafter) -> None:
    features = random_features(drafter, 9)
    context = TorchContext()
    drafter.inject([context], [random_features(drafter, 14, seed=4)])
    context.rollback(0)
    drafter.inject([context], [features])
    context.rollback(6)
    drafter.inject([context], [features[6:]])
    (drafted,) = drafter.draft([Place(context, 9)], [5])
    assert same(drafted, draft(drafter, features, 9))
    with pytest.raises(ConfigError, match=r"a context of \[0, 9\) has no length 10"):
        context.rollback(10)


def test_blocks_of_a_pass_do_not_see_each_other(drafter: TorchDrafter) -> None:
    contexts = [TorchContext(), TorchContext()]
    features = [random_features(drafter, 9), random_features(drafter, 4, seed=5)]
    drafter.inject(contexts, features)
    # Neighbours behind one context go through one product, as in training.
    blocks = [(0, 3, 1), (0, 9, 2), (0, 6, 3), (1, 4, 4), (0, 9, 5)]
    places = [Place(contexts[i], position) for i, position, _ in blocks]
    together = drafter.draft(places, [anchor for _, _, anchor in blocks])
    for (i, position, anchor), drafted in zip(blocks, together, strict=True):
        assert same(drafted, draft(drafter, features[i], position, anchor=anchor))


def test_windowed_layers_need_only_their_window(make: Make) -> None:
    drafter = make(TinyDrafter(kinds=("sliding",) * 2, window=6, is_causal=False))
    features = random_features(drafter, 20)
    late = draft(drafter, features[15:], 20, first=15)
    assert same(draft(drafter, features, 20), late)
    assert not same(late, draft(drafter, features[16:], 20, first=16))


def test_an_anchor_may_be_the_first_token(drafter: TorchDrafter) -> None:
    (drafted,) = drafter.draft([Place(TorchContext(), 0)], [5])
    assert drafted.logits.isfinite().all()


def test_width_changes_only_blocks_that_are_not_causal(make: Make) -> None:
    context = TorchContext()
    drafter = make(TinyDrafter(is_causal=True))
    drafter.inject([context], [random_features(drafter, 8)])
    (narrow,) = drafter.draft([Place(context, 8)], [5], 2)
    (wide,) = drafter.draft([Place(context, 8)], [5], 4)
    torch.testing.assert_close(narrow.logits, wide.logits[:1])


def test_convolution_starts_at_the_anchor(make: Make) -> None:
    shape = TinyDrafter(is_dflash2=True, is_causal=True, kinds=("full",))
    drafter = make(replace(shape, taps=3))
    features = random_features(drafter, 8)
    # In a pass of many blocks the rows before an anchor belong to another block.
    context = TorchContext()
    drafter.inject([context], [features])
    first, second = drafter.draft([Place(context, 8), Place(context, 8)], [5, 5])
    torch.testing.assert_close(first.logits, second.logits)


def test_mask_embedding_takes_the_mask_tokens_place(make: Make) -> None:
    vector = np.linspace(-1, 1, 64, dtype=np.float32)
    shape = TinyDrafter(inner={"input_embedding_scale": 3.0})
    plain = make(shape)
    features = random_features(plain, 6)
    before = draft(plain, features, 6)
    plain.network.weights.embedding.values[shape.mask_token_id] = torch.from_numpy(vector)
    patched = draft(plain, features, 6)
    own = make(replace(shape, extra={"mask_embedding": vector}))
    assert same(draft(own, features, 6), patched)
    assert not same(before, patched)


def test_reduced_vocabulary_drafts_target_tokens(make: Make) -> None:
    ids = (3, 8, 20, 77, 130)
    drafter = make(TinyDrafter(draft_ids=ids))
    drafted = draft(drafter, random_features(drafter, 6), 6)
    assert drafted.logits.shape == (3, 5)
    assert drafted.token_ids == [ids[row] for row in drafted.logits.argmax(1)]


def test_every_weight_learns(drafter: TorchDrafter) -> None:
    weights = drafter.network.weights
    tensors = {"fc": weights.feature_projection.weight.values, "norm": weights.feature_norm.weight}
    for i, layer in enumerate(weights.layers):
        parts = (*layer.qkv, layer.attn_output, *layer.gate_up, layer.down)
        tensors |= {f"{i}.{j}": part.weight.values for j, part in enumerate(parts)}
        for side, conv in (("attn", layer.attn_conv), ("ffn", layer.ffn_conv)):
            if conv is not None:
                tensors |= {
                    f"{i}.{side}": conv.base,
                    f"{i}.{side}.p": conv.projection.weight.values,
                }
    if weights.selector is not None:
        tensors["selector"] = weights.selector.projection.weight.values
    for values in tensors.values():
        values.requires_grad_()
    context = TorchContext()
    drafter.inject([context], [random_features(drafter, 8)])
    width = drafter.config.block_size
    batch = TorchPass(
        [[5] + [drafter.config.mask_token_id] * (width - 1)],
        dtype=torch.float64,
        places=[Place(context, 8)],
        logit_rows=range(1, width),
    )
    out = drafter.network.draft(TorchOps(batch))
    loss = out.logits.values.square().mean()
    if out.selection is not None:
        loss = loss + out.selection.scores.values.square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, values in tensors.items():
        assert values.grad is not None, name
        assert values.grad.abs().max() > 0, name


# --- selector


def test_scores_follow_their_definition(make: Make) -> None:
    shape = SHAPES["dflash2"]
    drafter = make(shape)
    anchor = 9
    drafted = draft(drafter, random_features(drafter, 8), 8, anchor=anchor)
    assert drafted.candidates is not None
    assert drafted.scores is not None
    tensors = shape.tensors()
    before, after = (
        tensors[f"candidate_selector.{name}_codebook"].astype(np.float64)
        for name in ("predecessor", "successor")
    )
    gates = np.empty(shape.rank)
    for row, ids in enumerate(drafted.candidates):
        logits = drafted.logits[row].numpy()
        assert ids.tolist() == sorted(range(131), key=lambda i: (-logits[i], i))[: shape.top_k]
        previous = [anchor] * shape.top_k if row == 0 else drafted.candidates[row - 1]
        # The gate is whatever explains the first lines; it must explain them all.
        gain = drafted.scores[row] - logits[ids]
        products = before[previous][:, None] * after[ids][None]
        gates, *_ = np.linalg.lstsq(products.reshape(-1, shape.rank), gain.ravel(), rcond=None)
        np.testing.assert_allclose(products @ gates, gain, atol=1e-9)
    assert np.abs(gates).max() > 0


def test_walk_follows_its_own_choices() -> None:
    candidates = np.array([[10, 11], [20, 21], [30, 31]])
    scores = np.array([[[0, 1], [0, 1]], [[5, 0], [0, 2]], [[9, 0], [3, 3]]], np.float32)
    assert walk(candidates, scores) == [11, 21, 30]
    assert walk(candidates, scores, lambda i, row: int(row.argmin())) == [10, 21, 30]


def test_the_anchor_itself_cannot_be_selected(make: Make) -> None:
    drafter = make(SHAPES["dflash2"])
    batch = TorchPass([[5, 130]], dtype=torch.float64, places=[Place(TorchContext(), 0)])
    with pytest.raises(ConfigError, match="first row of a block has no predecessor"):
        drafter.network.draft(TorchOps(batch))


# --- passes


def test_features_of_another_size_are_refused(drafter: TorchDrafter) -> None:
    with pytest.raises(ConfigError, match="takes features of 192 columns, the pass has 64"):
        drafter.inject([TorchContext()], [torch.zeros(3, 64)])
    with pytest.raises(ConfigError, match="the pass has none"):
        drafter.network.inject(TorchOps(TorchPass([[1]], places=[Place(TorchContext(), 0)])))


def test_places_must_fit() -> None:
    place = Place(TorchContext(), 0)
    with pytest.raises(ConfigError, match="1 places for 2 sequences"):
        TorchPass([[1], [2]], places=[place])
    with pytest.raises(ConfigError, match="has no parents"):
        TorchPass([[1, 2]], places=[place], parents=[[-1, 0]])
