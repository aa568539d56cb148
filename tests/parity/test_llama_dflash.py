"""Drafters that we write, in llama.cpp: it loads them, and drafts the block that we draft.

Random drafters for SmolLM2. Both networks get the features that llama.cpp tapped; ours runs on
torch in float32 over what the file's codes stand for. What remains between them are llama.cpp's
own roundings: f16 keys and values, and int8 activations under quantized weights.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xllamacpp
from numpy.typing import NDArray

from blockdraft.models.dflash import walk
from blockdraft.ops.torch import Place, TorchContext
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_types import FILE_TYPES
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.drafter_writer import write_drafter_gguf
from blockdraft.weights.gguf import GGUFFile
from tests.drafting import Drafted, TorchDrafter
from tests.oracle import FloatModel
from tests.parity.llama_drafter import LlamaDrafter, LlamaTarget
from tests.tiny_drafter import TinyDrafter

pytestmark = pytest.mark.model

Floats = NDArray[np.float32]

WIDTH, MAX_TOKENS, BLOCK_SIZE = 576, 256, 8
PROMPT = [(37 * idx + 11) % 5000 for idx in range(40)]
# A gap between two logits is as wrong as 1.4 of them; four such deviations decide.
DECIDED = 6.0
# Deviation of llama.cpp's logits from ours, over the spread of ours.
NOISE = {"f16": 0.015, "q8_0": 0.06, "q5_0": 0.06, "q4_0": 0.06, "q4_k_m": 0.06}


def smollm2_drafter(**changes: Any) -> TinyDrafter:
    """Two layers, so that tests are quick; 576 columns are no multiple of 256."""
    shape: dict[str, Any] = {
        "is_causal": False,
        "hidden": WIDTH,
        "ffn": 1536,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "block_size": BLOCK_SIZE,
        "mask_token_id": 16,
        "target_layer_ids": (1, 9, 18, 27),
        "num_target_layers": 30,
        "rank": 64,
    }
    return TinyDrafter(**{**shape, **changes})


SHAPES = {
    "plain": smollm2_drafter(),
    "causal": smollm2_drafter(is_causal=True),
    "windows": smollm2_drafter(kinds=("sliding", "full"), window=20),
    "yarn": smollm2_drafter(
        config={
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        }
    ),
    "reduced": smollm2_drafter(draft_ids=tuple(range(1, 49152, 3))),
}
DFLASH2 = smollm2_drafter(is_dflash2=True)


@dataclass(frozen=True)
class Target:
    """SmolLM2 in both engines, and the features of the prompt."""

    path: Path
    llama: LlamaTarget
    features: Floats
    embedding: torch.Tensor
    anchor: int

    def write(self, folder: Path, shape: TinyDrafter, type_name: str) -> Path:
        path = folder / "drafter.gguf"
        with (
            DrafterFile.open(shape.write_folder(folder / "source")) as file,
            GGUFFile.open(self.path) as target,
        ):
            values = DrafterValues(file)
            write_drafter_gguf(path, file.config, values, type_name=type_name, target=target)
        return path

    @torch.inference_mode()
    def our_draft(self, path: Path) -> Drafted:
        drafter = TorchDrafter(path, self.embedding, self.embedding)
        context = TorchContext()
        drafter.inject([context], [torch.from_numpy(self.features)])
        (drafted,) = drafter.draft([Place(context, len(PROMPT))], [self.anchor])
        return drafted

    def block(self, shape: TinyDrafter) -> list[int]:
        return [self.anchor, *[shape.mask_token_id] * (BLOCK_SIZE - 1)]


@pytest.fixture(scope="module")
def target(model_path: Callable[[str], Path]) -> Iterator[Target]:
    path = model_path("smollm2-135m")
    taps = SHAPES["plain"].target_layer_ids
    model = FloatModel(path)
    logits, exact = model.forward(PROMPT, taps=taps)
    with LlamaTarget(path, max_tokens=MAX_TOKENS) as llama:
        features = llama.features(PROMPT, [tap + 1 for tap in taps], WIDTH)
        error = np.linalg.norm(features - exact.numpy()) / np.linalg.norm(exact.numpy())
        assert 0 < error < 0.02  # the same layers, but for int8 activations
        embedding = model.decoder.weights.embedding.values
        yield Target(path, llama, features, embedding, int(logits[-1].argmax()))


def check_logits(ours: Floats, theirs: Floats, type_name: str, *, factor: float = 1.0) -> float:
    """Compare all logits and return the deviation."""
    deviation = float(np.sqrt(np.square(ours - theirs).mean()))
    assert 0 < deviation < factor * NOISE[type_name] * ours.std()
    return deviation


def check_first_block(target: Target, path: Path, shape: TinyDrafter, type_name: str) -> None:
    with LlamaDrafter(path, target.llama, max_tokens=MAX_TOKENS) as drafter:
        assert drafter.target_layers == [tap + 1 for tap in shape.target_layer_ids]
        assert drafter.top_k == 0
        drafter.inject(target.features)
        theirs = drafter.draft(target.block(shape), len(PROMPT))
    drafted = target.our_draft(path)
    ours = drafted.logits.numpy()
    known = np.array(shape.draft_ids or range(shape.vocab_size))
    deviation = check_logits(ours, theirs[:, known], type_name)
    best = np.sort(theirs, axis=1)
    decided = best[:, -1] - best[:, -2] > DECIDED * deviation
    assert decided.sum() >= BLOCK_SIZE // 2
    assert (theirs.argmax(1) == drafted.token_ids)[decided].all()


@pytest.mark.parametrize("type_name", FILE_TYPES)
def test_first_block_of_every_type(target: Target, tmp_path: Path, type_name: str) -> None:
    path = target.write(tmp_path, SHAPES["plain"], type_name)
    check_first_block(target, path, SHAPES["plain"], type_name)


@pytest.mark.parametrize("name", SHAPES)
def test_first_block_of_every_shape(target: Target, tmp_path: Path, name: str) -> None:
    path = target.write(tmp_path, SHAPES[name], "f16")
    check_first_block(target, path, SHAPES[name], "f16")


@pytest.mark.parametrize("type_name", ["f16", "q4_k_m"])
def test_first_block_of_dflash2(target: Target, tmp_path: Path, type_name: str) -> None:
    path = target.write(tmp_path, DFLASH2, type_name)
    with LlamaDrafter(path, target.llama, max_tokens=MAX_TOKENS) as drafter:
        assert drafter.top_k == DFLASH2.top_k
        drafter.inject(target.features)
        theirs = drafter.draft(target.block(DFLASH2), len(PROMPT))
        candidates, scores = drafter.lattice(BLOCK_SIZE)
    drafted = target.our_draft(path)
    # Convolutions with random kernels make more of the same roundings.
    check_logits(drafted.logits.numpy(), theirs, type_name, factor=3)
    if type_name == "f16":
        assert drafted.candidates is not None
        agreed = [set(a) & set(b) for a, b in zip(candidates, drafted.candidates, strict=True)]
        assert sum(map(len, agreed)) >= len(agreed) * (DFLASH2.top_k - 1)
        assert walk(candidates, scores) == drafted.token_ids


@pytest.mark.parametrize("shape", [SHAPES["plain"], DFLASH2], ids=["dflash", "dflash2"])
def test_llama_cpps_own_driver_drafts(target: Target, tmp_path: Path, shape: TinyDrafter) -> None:
    """``draft-dflash`` in llama.cpp's server: it takes the file and changes no token."""
    path = target.write(tmp_path, shape, "q8_0")
    plain, drafted = (serve(target.path, drafter) for drafter in (None, path))
    assert drafted["choices"][0]["text"] == plain["choices"][0]["text"]
    assert "draft_n" not in plain["timings"]
    assert drafted["timings"]["draft_n"] >= BLOCK_SIZE - 1


def serve(path: Path, drafter: Path | None) -> dict[str, Any]:
    """A short greedy completion."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = MAX_TOKENS, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if drafter is not None:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH]
        params.speculative.draft.mparams.path = str(drafter)
        params.speculative.draft.n_max = BLOCK_SIZE - 1
        for each in (params.speculative.draft.cpuparams, params.speculative.draft.cpuparams_batch):
            each.n_threads = 1
    request = {"prompt": "def fibonacci(n):", "max_tokens": 6, "temperature": 0}
    answer = xllamacpp.Server(params).handle_completions(request)
    return answer if isinstance(answer, dict) else dict(json.loads(answer))
