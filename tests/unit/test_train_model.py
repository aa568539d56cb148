"""A drafter in training computes what its export computes, and starts from what it should."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.config import DrafterConfig, RopeConfig
from blockdraft.errors import ConfigError
from blockdraft.ops.torch import Place, TorchContext, TorchPass, TorchWeights
from blockdraft.ops.torch.attention import Attention
from blockdraft.train.anchors import Blocks
from blockdraft.train.features import FeatureExtractor
from blockdraft.train.model import TrainableDrafter
from blockdraft.train.selector import SelectorLoss
from blockdraft.train.shape import (
    DrafterShape,
    choose_mask_token,
    default_taps,
    drafter_config,
)
from blockdraft.train.warm_start import (
    cold_start,
    copied_layers,
    selector_start,
    warm_start,
    why_not_copyable,
)
from blockdraft.weights.drafter_writer import write_drafter_folder
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from tests.drafting import TorchDrafter
from tests.tiny import write_tiny
from tests.tiny_corpus import counting_sequence

SEQUENCE = counting_sequence(1, prompt=6, answer=20)
SHAPE = DrafterShape(
    num_layers=2, taps=(0, 2), block_size=5, window=9, selector_rank=8, selector_top_k=6
)
Tensors = dict[str, NDArray[np.float32]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("target") / "tiny.gguf", "llama", layers=4)


@pytest.fixture(params=["dflash", "dflash2"])
def config(target: Path, request: pytest.FixtureRequest) -> DrafterConfig:
    with GGUFFile.open(target) as file:
        config = drafter_config(SHAPE, read_model_config(file), 298)
    return config if request.param == "dflash2" else replace(config, conv=None, selector=None)


def random_tensors(config: DrafterConfig) -> Tensors:
    """Every weight random: nothing begins as zero or one."""
    random = np.random.default_rng(0)
    tensors = {**cold_start(config, 0), **selector_start(config, 0)}
    return {
        name: (values + 0.1 * random.standard_normal(values.shape)).astype(np.float32)
        for name, values in tensors.items()
    }


def make(config: DrafterConfig) -> tuple[TrainableDrafter, Tensor]:
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    features = torch.randn(26, config.feature_size, generator=generator)
    return TrainableDrafter(config, random_tensors(config), embedding=embedding), features


def test_training_draws_what_the_exported_drafter_draws(
    config: DrafterConfig, tmp_path: Path
) -> None:
    drafter, features = make(config)
    blocks = Blocks(SEQUENCE, np.array([8, 9, 20]), 4)
    (hidden,) = drafter.hidden([features], [blocks])
    write_drafter_folder(tmp_path, config, drafter.export(), dtype="f32")
    exported = TorchDrafter(tmp_path, drafter.embedding, drafter.embedding)
    context = TorchContext()
    for index, position in enumerate(blocks.positions.tolist()):
        exported.inject([context], [features[context.length : position]])
        anchor = int(SEQUENCE.token_ids[position])
        (drafted,) = exported.draft([Place(context, position)], [anchor], blocks.width)
        logits = hidden[index].detach() @ drafter.embedding.T
        torch.testing.assert_close(logits, drafted.logits, rtol=1e-5, atol=1e-4)
        if config.selector is None:
            continue
        assert drafter.selector is not None
        assert drafted.candidates is not None
        assert drafted.scores is not None
        # After the anchor the training's score of each candidate is the walk's.
        loss = SelectorLoss(drafter.selector, config.selector.top_k)
        wanted = torch.tensor([[int(drafted.candidates[0, 2])]])
        choice = loss.choose(
            hidden[index][:1],
            logits[:1].topk(config.selector.top_k),
            (logits[:1, drafted.candidates[0, 2:3].tolist()], wanted),
            torch.tensor([anchor]),
            torch.arange(config.vocab_size),
        )
        scores = torch.from_numpy(drafted.scores[0, 0])
        expected = torch.logsumexp(scores, 0) - scores[2]
        torch.testing.assert_close(choice.cross_entropy[0].detach(), expected, rtol=1e-4, atol=1e-4)


def test_features_from_the_anchor_on_change_no_block(config: DrafterConfig) -> None:
    drafter, features = make(config)
    blocks = Blocks(SEQUENCE, np.array([8, 12, 20]), 5)
    (before,) = drafter.hidden([features], [blocks])
    for index, position in enumerate(blocks.positions.tolist()):
        changed = features.clone()
        changed[position:] += 1
        (after,) = drafter.hidden([changed], [blocks])
        assert torch.equal(after[index], before[index])
        changed[position - 1] += 1
        (after,) = drafter.hidden([changed], [blocks])
        assert not torch.allclose(after[index], before[index])


def test_columns_behind_the_features_change_no_block(config: DrafterConfig) -> None:
    drafter, features = make(config)
    blocks = [Blocks(SEQUENCE, np.array([8, 12, 20]), 5)]
    wide = torch.cat((features, torch.full((len(features), 64), torch.nan)), dim=1)
    assert torch.equal(drafter.hidden([wide], blocks)[0], drafter.hidden([features], blocks)[0])


def test_sequences_of_a_pass_do_not_see_each_other(config: DrafterConfig) -> None:
    drafter, features = make(config)
    parts = [Blocks(SEQUENCE, np.array([8, 12]), 5), Blocks(SEQUENCE, np.array([7, 9, 10]), 3)]
    inputs = [features, features.flip(0)]
    together = drafter.hidden(inputs, parts)
    for each, part, found in zip(inputs, parts, together, strict=True):
        (alone,) = drafter.hidden([each], [part])
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)


def test_bf16_passes_learn_with_float_masters(config: DrafterConfig) -> None:
    _, features = make(config)
    tensors = random_tensors(config)
    embedding = torch.randn(config.vocab_size, config.hidden_size)
    exact = TrainableDrafter(config, tensors, embedding=embedding)
    rounded = TrainableDrafter(config, tensors, embedding=embedding, dtype=torch.bfloat16)
    blocks = [Blocks(SEQUENCE, np.array([8, 12, 20]), 5)]
    for each in (exact, rounded):
        (hidden,) = each.hidden([features], blocks)
        hidden.square().mean().backward()  # type: ignore[no-untyped-call]
    for name in ("fc.weight", "blk.0.attn_q.weight", "blk.1.ffn_norm.weight"):
        a, b = exact.parameters[name].grad, rounded.parameters[name].grad
        assert a is not None
        assert b is not None
        assert b.dtype == torch.float32
        assert torch.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.98
    with torch.no_grad():
        rounded.parameters["fc.weight"].add_(1)
    (stale,) = rounded.hidden([features], blocks)
    rounded.refresh()
    assert not torch.equal(rounded.hidden([features], blocks)[0], stale)


# --- first weights


def test_a_warm_start_repeats_the_targets_layers(target: Path) -> None:
    shape = replace(SHAPE, window=None)
    extractor = FeatureExtractor(target, (1, 2), num_threads=1)
    (features,) = extractor.extract([SEQUENCE.token_ids])
    with GGUFFile.open(target) as file:
        model = read_model_config(file)
        source = FloatWeights(file)
        config = drafter_config(shape, model, 298)
        assert list(copied_layers(config, model)) == [2, 3]
        before, after = features.numpy().reshape(len(features), 2, -1).transpose(1, 0, 2)
        found = {1: np.ascontiguousarray(before), 2: np.ascontiguousarray(after)}
        tensors = warm_start(config, model, source, found, 0)
        for ours, theirs in ((0, 2), (1, 3)):
            for part in ("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
                np.testing.assert_array_equal(
                    tensors[f"blk.{ours}.{part}.weight"],
                    source.matrix(f"blk.{theirs}.{part}.weight"),
                )
        assert_same_rotation(tensors["blk.0.attn_q.weight"], source.matrix("blk.2.attn_q.weight"))
        norm = source.vector("blk.2.attn_norm.weight")
    np.testing.assert_array_equal(tensors["enc.output_norm.weight"], norm)
    rows = found[1] / np.sqrt((found[1] ** 2).mean(-1, keepdims=True) + 1e-5) * norm
    keys = rows @ tensors["blk.0.attn_k.weight"].T
    expected = np.sqrt((keys**2).mean())
    np.testing.assert_allclose(tensors["blk.0.attn_k_norm.weight"], expected, rtol=1e-4)
    fused = np.random.default_rng(0).standard_normal((3, 128)).astype(np.float32)
    np.testing.assert_array_equal(fused @ tensors["fc.weight"].T, fused[:, 64:])


def assert_same_rotation(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Pairs of halves turn as interleaved pairs did: scores stay the same."""
    batch = TorchPass([[0] * 5])
    rows = torch.randn(5, ours.shape[1], generator=torch.Generator().manual_seed(0))
    scores = []
    for weight, interleaved in ((ours, False), (theirs, True)):
        heads = (rows @ torch.tensor(weight).T).reshape(5, 4, 16)
        rope = RopeConfig(theta=10000.0, dims=16, interleaved=interleaved)
        turned = Attention(batch).rotate(heads, rope)
        scores.append(torch.einsum("nhd,mhd->hnm", turned, turned))
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-4, atol=1e-4)


def test_new_convolutions_and_selectors_are_silent(config: DrafterConfig) -> None:
    if config.selector is None:
        pytest.skip("has neither")
    drafter, features = make(config)
    tensors = {**random_tensors(config)}
    start = {**cold_start(config, 0), **selector_start(config, 0)}
    for name, values in start.items():
        if "conv" in name or "selector" in name:
            tensors[name] = values
    second = TrainableDrafter(config, tensors, embedding=drafter.embedding)
    plain_config = replace(config, conv=None, selector=None)
    plain_tensors = {k: v for k, v in tensors.items() if "conv" not in k and "selector" not in k}
    plain = TrainableDrafter(plain_config, plain_tensors, embedding=drafter.embedding)
    blocks = [Blocks(SEQUENCE, np.array([8, 12]), 5)]
    a, b = (each.hidden([features], blocks)[0] for each in (second, plain))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert second.selector is not None
    gains = second.selector.gains(a[0], torch.arange(4), torch.arange(8).reshape(4, 2))
    assert torch.equal(gains, torch.zeros_like(gains))


def test_layers_of_another_shape_are_not_copied(target: Path) -> None:
    with GGUFFile.open(target) as file:
        model = read_model_config(file)
    config = drafter_config(SHAPE, model, 0)
    assert why_not_copyable(config, model) is None
    assert "4 layers are not fewer" in str(why_not_copyable(replace(config, num_layers=4), model))
    assert "width is 32" in str(why_not_copyable(replace(config, ffn_size=32), model))
    assert "norms" in str(why_not_copyable(config, replace(model, post_norms=True)))


# --- shapes and masks


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [(30, 4, (4, 12, 20, 28)), (24, 4, (3, 9, 16, 22)), (4, 2, (1, 2)), (2, 1, (0,))],
)
def test_taps_are_spread(layers: int, count: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers, count) == taps


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (replace(SHAPE, taps=(2, 1)), r"taps are \[2, 1\]"),
        (replace(SHAPE, taps=(1, 4)), r"layers in \[0, 3\]"),
        (replace(SHAPE, taps=None, num_taps=5), "too few for 5 taps"),
        (replace(SHAPE, conv_group_size=24), "no groups of 24"),
        (replace(SHAPE, num_heads=3), "no multiple of 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    shape: DrafterShape, message: str, target: Path
) -> None:
    with GGUFFile.open(target) as file, pytest.raises(ConfigError, match=message):
        drafter_config(shape, read_model_config(file), 0)


def test_masks_are_reserved_and_unused() -> None:
    tokens = ["<s>", "a", "<x>", "<file_sep>", "<y>", "<z>"]
    types = [3, 1, 3, 3, 3, 5]
    embedding = np.ones((6, 4), np.float32)
    embedding[5] = 0.01
    assert choose_mask_token(tokens, types, embedding, {0, 1}) == 3
    assert choose_mask_token(tokens, types, embedding, {0, 1, 3}) == 4
    assert choose_mask_token(tokens, types, embedding, {0}, name="a") == 1
    with pytest.raises(ConfigError, match="corpus contains it"):
        choose_mask_token(tokens, types, embedding, {1}, name="a")
    with pytest.raises(ConfigError, match="no token 'b'"):
        choose_mask_token(tokens, types, embedding, {1}, name="b")
    with pytest.raises(ConfigError, match="no reserved token"):
        choose_mask_token(tokens, types, embedding, {0, 2, 3, 4})


def test_weights_of_the_oracle_are_left_alone(target: Path) -> None:
    # A warm start must not write through arrays that the target's source shares.
    with GGUFFile.open(target) as file:
        source = FloatWeights(file)
        weights = TorchWeights(source, dtype=torch.float32)
        model = read_model_config(file)
        config = drafter_config(SHAPE, model, 298)
        features = {i: np.ones((3, 64), np.float32) for i in (1, 2)}
        tensors = warm_start(config, model, source, features, 0)
        before = weights.matrix("blk.3.ffn_down.weight").values.clone()
        tensors["blk.1.ffn_down.weight"][:] = 0
        tensors["output_norm.weight"][:] = 0
        assert torch.equal(weights.matrix("blk.3.ffn_down.weight").values, before)
        assert (source.vector("output_norm.weight") != 0).all()
