"""The native core against the float oracle: tiny models of every architecture and tensor type.

Quantized matrices multiply int8 activations. Where the two sides' float32 differ in a last bit,
one rounding in about 30,000 falls the other way, and later layers amplify it. So the tight bound
for quantized types is a median over many short sequences, most of which have no such rounding; a
wrong kernel moves them all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdraft.config import ModelConfig, RopeConfig
from blockdraft.kv_cache import SequenceCache
from blockdraft.models.decoder import build_decoder
from blockdraft.models.target import TargetModel, load_target
from blockdraft.ops.torch import TorchOps, TorchPass, TorchWeights
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights, PackedWeights
from tests.oracle import FloatModel
from tests.passes import Part, _batch
from tests.tiny import ARCHITECTURES, FLOAT_TYPES, TENSOR_TYPES, VOCAB_SIZE

TinyModel = Callable[..., Path]

QUANTIZED_TYPES = tuple(name for name in TENSOR_TYPES if name not in FLOAT_TYPES)
# The two sides add in different orders; nothing else differs.
FLOAT_ERROR = 1e-4
MEDIAN_ERROR = 1e-5
MEAN_ERROR = 0.01
# int8 activations in two layers; 0.005 to 0.019 seen.
ROUNDING_ERROR = 0.03
MAX_ROWS = 256
# Two attention chunks and a bit; many windows of the tiny gemma3.
LONG = 150
# A chain of ten rows, two branches from its end, one of which forks again, one from its middle.
TREE = (*range(-1, 9), 9, 10, 9, 12, 12, 4)

RNG = np.random.default_rng(5)
TOKEN_IDS = tuple(int(token_id) for token_id in RNG.integers(0, VOCAB_SIZE, LONG))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Torch's own threads cost more than they save on matrices this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def relative_distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def run_pass(target: TargetModel, parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
    """Logits and features of all rows; commits nothing."""
    for part in parts:
        part.cache.reserve(len(part.token_ids))
    result = target.forward(_batch(parts))
    logits = torch.tensor(result.logits)
    features = logits[:, :0] if result.features is None else torch.tensor(result.features)
    return logits, features


def new_part(
    cache: SequenceCache, token_ids: Sequence[int], parents: Sequence[int] | None = None
) -> Part:
    return Part(cache, np.array(token_ids, np.int32), parents)


def run_target(
    target: TargetModel, token_ids: Sequence[int], parents: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits and features of one sequence in one pass."""
    cache = SequenceCache(target.new_cache_pool(1 << 24))
    return run_pass(target, [new_part(cache, token_ids, parents)])


def run_sequences(
    path: Path, sequences: Sequence[Sequence[int]], *, taps: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Logits and features of many sequences in one pass."""
    target = load_target(path, num_threads=1, taps=taps, max_rows=MAX_ROWS)
    pool = target.new_cache_pool(1 << 24)
    return run_pass(target, [new_part(SequenceCache(pool), token_ids) for token_ids in sequences])


@torch.inference_mode()
def run_oracle(
    model: FloatModel,
    sequences: Sequence[Sequence[int]],
    *,
    taps: Sequence[int],
    is_rounded: bool,
) -> tuple[Tensor, Tensor]:
    """The same with torch, with the native core's roundings or without."""
    ops = TorchOps(TorchPass(sequences), quantize_activations=is_rounded, store_f16=is_rounded)
    logits = model.decoder.forward(ops, taps).values
    return logits, torch.cat(ops.features, dim=1) if taps else logits[:, :0]


def run_file(
    path: Path,
    token_ids: Sequence[int] = TOKEN_IDS,
    *,
    parents: Sequence[int] | None = None,
    taps: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    target = load_target(path, num_threads=1, taps=taps, max_rows=MAX_ROWS)
    return run_target(target, token_ids, parents)


Oracles = Callable[[Path], FloatModel]
Plain = Callable[[Path], Tensor]


@pytest.fixture(scope="module")
def oracles() -> Oracles:
    """A function from a file to its oracle, which is made once."""
    return cache(FloatModel)


@pytest.fixture(scope="module")
def plain() -> Plain:
    """A function from a file to its logits of the long sequence, which are computed once."""
    return cache(lambda path: run_file(path)[0])


def assert_near_float(logits: Tensor, oracle: FloatModel) -> None:
    """Compare the long sequence on a file with float matrices."""
    expected, _ = oracle.forward(TOKEN_IDS, store_f16=True)
    assert relative_distance(logits, expected) < FLOAT_ERROR


def median_distance(a: Tensor, b: Tensor) -> float:
    """Over sequences of three rows."""
    width = a.shape[1]
    pairs = zip(a.reshape(-1, 3, width), b.reshape(-1, 3, width), strict=True)
    return float(np.median([relative_distance(ours, theirs) for ours, theirs in pairs]))


# --- every architecture and tensor type


@pytest.mark.parametrize("tensor_type", FLOAT_TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_float_matrices(
    tiny_model: TinyModel, oracles: Oracles, plain: Plain, arch: str, tensor_type: str
) -> None:
    path = tiny_model(arch, tensor_type)
    assert_near_float(plain(path), oracles(path))
    assert plain(path).std() > 0.1


# Every type with two architectures, and every architecture with half of the types; the rest is
# slow, since no kernel knows the architecture.
QUANTIZED = [
    pytest.param(arch, tensor_type, marks=[pytest.mark.slow] if (i + j) % 2 else [])
    for i, arch in enumerate(ARCHITECTURES)
    for j, tensor_type in enumerate(QUANTIZED_TYPES)
]


@pytest.mark.parametrize(("arch", "tensor_type"), QUANTIZED)
def test_quantized_matrices(tiny_model: TinyModel, arch: str, tensor_type: str) -> None:
    """One ragged pass of 50 sequences, against the same roundings and against none."""
    path = tiny_model(arch, tensor_type, layers=2, window=2)
    sequences = [TOKEN_IDS[start : start + 3] for start in range(0, LONG, 3)]
    logits, features = run_sequences(path, sequences, taps=(0, 1))
    model = FloatModel(path)
    rounded, rounded_features = run_oracle(model, sequences, taps=(0, 1), is_rounded=True)
    for ours, theirs in ((logits, rounded), (features, rounded_features)):
        assert median_distance(ours, theirs) < MEDIAN_ERROR
        assert relative_distance(ours, theirs) < MEAN_ERROR
    exact, _ = run_oracle(model, sequences, taps=(), is_rounded=False)
    distance = relative_distance(logits, exact)
    assert distance < ROUNDING_ERROR
    assert distance < 1.05 * relative_distance(rounded, exact)


# --- parts of a pass


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_features_are_the_residual_stream(
    tiny_model: TinyModel, oracles: Oracles, arch: str
) -> None:
    path = tiny_model(arch, "F32")
    taps = (0, 1, 4) if arch == "gemma3" else (0, 1)
    logits, features = run_file(path, taps=taps)
    expected, expected_features = oracles(path).forward(TOKEN_IDS, taps=taps, store_f16=True)
    assert features.shape == expected_features.shape
    for ours, theirs in zip(
        features.chunk(len(taps), 1), expected_features.chunk(len(taps), 1), strict=True
    ):
        assert relative_distance(ours, theirs) < FLOAT_ERROR
    assert relative_distance(logits, expected) < FLOAT_ERROR


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_tree_of_rows(tiny_model: TinyModel, oracles: Oracles, arch: str) -> None:
    path = tiny_model(arch, "F32")
    token_ids = TOKEN_IDS[: len(TREE)]
    logits, _ = run_file(path, token_ids, parents=TREE)
    expected, _ = oracles(path).forward(token_ids, parents=TREE, store_f16=True)
    assert relative_distance(logits, expected) < FLOAT_ERROR
    chain, _ = run_file(path, token_ids)
    assert relative_distance(logits, chain) > 0.1


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_tree_behind_committed_tokens(tiny_model: TinyModel, oracles: Oracles, arch: str) -> None:
    """The tree's root follows 61 committed tokens: its rows lie in two pages."""
    path = tiny_model(arch, "F32")
    target = load_target(path, num_threads=1, max_rows=MAX_ROWS)
    cache = SequenceCache(target.new_cache_pool(1 << 24))
    num_committed = 61
    run_pass(target, [new_part(cache, TOKEN_IDS[:num_committed])])
    cache.commit(range(num_committed))
    token_ids = TOKEN_IDS[: num_committed + len(TREE)]
    logits, _ = run_pass(target, [new_part(cache, token_ids[num_committed:], TREE)])
    parents = [*range(-1, num_committed - 1), *(parent + num_committed for parent in TREE)]
    expected, _ = oracles(path).forward(token_ids, parents=parents, store_f16=True)
    assert relative_distance(logits, expected[num_committed:]) < FLOAT_ERROR


# --- variants of the decoder

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
YARN_CONTEXT = {"rope.scaling.original_context_length": 64}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
CAPS = {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0}
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama untied": ("llama", {"tied_head": False}, {}),
    "qwen2 tied": ("qwen2", {"tied_head": True}, {}),
    "qwen3 tied": ("qwen3", {"tied_head": True}, {}),
    "gemma3 untied": ("gemma3", {"tied_head": False}, {}),
    "one kv head": ("qwen3", {"kv_heads": 1}, {}),
    "as many kv heads": ("llama", {"kv_heads": 4}, {}),
    "wide heads": ("qwen2", {"head_dim": 80}, {}),
    "llama yarn": ("llama", {}, YARN | YARN_CONTEXT),
    "qwen2 yarn": ("qwen2", {}, YARN | YARN_CONTEXT),
    "qwen3 linear": ("qwen3", {}, LINEAR),
    "gemma3 linear": ("gemma3", {}, LINEAR),
    "llama frequency factors": ("llama", {"rope_freqs": True}, {}),
    "llama half rotated": ("llama", {"head_dim": 32}, {"rope.dimension_count": 16}),
    "gemma3 caps": ("gemma3", {}, CAPS),
    "llama caps": ("llama", {}, CAPS),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(tiny_model: TinyModel, oracles: Oracles, plain: Plain, variant: str) -> None:
    arch, options, keys = VARIANTS[variant]
    metadata = {f"{arch}.{key}": value for key, value in keys.items()}
    path = tiny_model(arch, "F32", **options, metadata=metadata)
    assert_near_float(plain(path), oracles(path))
    assert relative_distance(plain(path), plain(tiny_model(arch, "F32"))) > 0.001


def test_qwen2_reads_its_biases(tiny_model: TinyModel, plain: Plain) -> None:
    """So that agreement of two sides without biases would be noticed."""
    path = tiny_model("qwen2", "F32")
    with GGUFFile.open(path) as file:
        config = replace(read_model_config(file), attention_bias=False)
        target = target_with(file, config)
    logits, _ = run_target(target, TOKEN_IDS)
    assert relative_distance(plain(path), logits) > 0.01


def target_with(file: GGUFFile, config: ModelConfig) -> TargetModel:
    return TargetModel(
        config, PackedWeights(file), num_threads=1, isa=None, taps=(), max_rows=MAX_ROWS
    )


@torch.inference_mode()
def test_llama3_scaling(tiny_model: TinyModel, plain: Plain) -> None:
    """GGUF files carry this rule as frequency factors, so it comes by configuration."""
    rope = RopeConfig(
        theta=10_000.0, dims=16, interleaved=True, scaling="llama3", factor=8.0, original_context=64
    )
    path = tiny_model("llama", "F32")
    with GGUFFile.open(path) as file:
        config = replace(read_model_config(file), rope=rope)
        source = TorchWeights(FloatWeights(file), dtype=torch.float32)
        ops = TorchOps(TorchPass([TOKEN_IDS]), store_f16=True)
        expected = build_decoder(config, source).forward(ops).values
        target = target_with(file, config)
    logits, _ = run_target(target, TOKEN_IDS)
    assert relative_distance(logits, expected) < FLOAT_ERROR
    assert relative_distance(logits, plain(path)) > 0.001
