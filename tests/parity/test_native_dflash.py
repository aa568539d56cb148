"""The native drafter against the same network on torch ops, several rounds in a row.

Weights are the file's; torch rounds inputs of quantized matrices to int8 and stores f16 as the
native core does, so what is left is the order of additions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdraft import _native
from blockdraft.kv_cache import KVPool, SequenceCache
from blockdraft.models.dflash import build_dflash
from blockdraft.models.drafter import load_drafter
from blockdraft.models.target import load_target
from blockdraft.ops.batch import Candidates
from blockdraft.ops.protocol import Linear
from blockdraft.ops.torch import Place, TorchContext, TorchOps, TorchPass, TorchWeights
from blockdraft.ops.torch.weights import TorchMatrix
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.packed import FloatWeights
from tests.passes import Part, _batch
from tests.tiny_drafter import TinyDrafter

TinyModel = Callable[..., Path]

LAYERS, HIDDEN, VOCAB = 5, 64, 299
BASE = TinyDrafter(hidden=HIDDEN, vocab_size=VOCAB, mask_token_id=298)
SHAPES = {
    "full": BASE,
    "causal window": replace(BASE, kinds=("sliding", "full"), window=9),
    "window, not causal": replace(BASE, kinds=("full", "sliding"), window=70, is_causal=False),
    "scaled and capped": replace(
        BASE,
        attention_bias=True,
        config={"final_logit_softcapping": 5.0},
        inner={"input_embedding_scale": 2.0, "output_multiplier": 0.7},
    ),
    "mask embedding": replace(
        BASE, extra={"mask_embedding": np.linspace(-1, 1, HIDDEN, dtype=np.float32)}
    ),
    "some rows of the head": replace(BASE, inner={"head_token_ids": list(range(3, 299, 4))}),
    "dflash2, some rows": replace(
        BASE, is_dflash2=True, inner={"head_token_ids": list(range(0, 299, 3))}
    ),
    "reduced vocabulary": replace(BASE, draft_ids=tuple(range(3, 299, 4))),
    "dflash2": replace(BASE, is_dflash2=True, kinds=("sliding", "full"), is_causal=False),
    "dflash2, small groups": replace(BASE, is_dflash2=True, group_size=8, taps=3),
}
# f32 additions in another order, and one f16 rounding in some thousand that falls the other way.
CLOSE = 2e-3


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Rounds:
    """Injects and drafts on both sides and compares what they say."""

    def __init__(
        self,
        shape: TinyDrafter,
        folder: Path,
        target_path: Path,
        *,
        isa: str | None = None,
        num_threads: int = 2,
    ) -> None:
        target = load_target(
            target_path,
            num_threads=num_threads,
            isa=isa,
            taps=shape.target_layer_ids,
            max_rows=64,
        )
        with DrafterFile.open(folder) as file, GGUFFile.open(target_path) as target_file:
            self.native = load_drafter(file, target, target_file=target_file, top_k=6)
            vocab_map = file.vocab_map()
            head_ids = file.config.head_token_ids

            def dequantized(
                matrix: _native.Matrix, rows: Sequence[int] | None = None
            ) -> TorchMatrix:
                values = torch.tensor(matrix.dequantize(0, matrix.rows))
                return TorchMatrix(values if rows is None else values[list(rows)], True)

            self.network = build_dflash(
                file.config,
                TorchWeights(FloatWeights(file), dtype=torch.float32),
                embedding=dequantized(target.embedding),
                head=Linear(dequantized(target.head.weight, head_ids)),
            )
        self.config = self.native.config
        if head_ids is not None:
            vocab_map = np.array(head_ids, np.int32)
        self.vocab_map = np.arange(VOCAB) if vocab_map is None else vocab_map
        self.cache = SequenceCache(KVPool(self.native.layout, 64 << 20))
        self.context = TorchContext()

    def inject(self, features: Tensor) -> None:
        rows = len(features)
        self.cache.reserve(rows)
        self.native.features[:rows] = features.numpy()
        self.native.inject(_batch([Part(self.cache, np.zeros(rows, np.int32), wanted=())]))
        self.cache.commit(range(rows))
        batch = TorchPass.inject([features], [self.context], dtype=torch.float32)
        self.network.inject(TorchOps(batch, quantize_activations=True, store_f16=True))

    def draft(self, anchor: int) -> tuple[Candidates, Tensor, Tensor | None]:
        width = self.config.block_size
        block = [anchor, *[self.config.mask_token_id] * (width - 1)]
        self.cache.reserve(width)
        part = Part(self.cache, np.array(block, np.int32), wanted=range(1, width))
        native = self.native.draft(_batch([part]))
        batch = TorchPass(
            [block],
            dtype=torch.float32,
            places=[Place(self.context, self.cache.length)],
            logit_rows=list(range(1, width)),
        )
        head_tokens = torch.tensor(self.vocab_map)
        ops = TorchOps(batch, quantize_activations=True, store_f16=True, head_tokens=head_tokens)
        out = self.network.draft(ops)
        scores = None if out.selection is None else out.selection.scores.values
        return native, out.logits.values, scores


@pytest.mark.parametrize("name", SHAPES)
def test_native_drafter_equals_torch(name: str, tmp_path: Path, tiny_model: TinyModel) -> None:
    shape = SHAPES[name]
    folder = shape.write_folder(tmp_path / "drafter")
    target = tiny_model("llama", "Q8_0", layers=LAYERS, hidden=HIDDEN)
    rounds = Rounds(shape, folder, target)
    generator = torch.Generator().manual_seed(3)
    for num_features in (60, 3, 1, 5):  # a prompt, then what rounds of some length accept
        features = torch.randn(num_features, shape.hidden * 3, generator=generator)
        rounds.inject(features)
        native, logits, scores = rounds.draft(anchor=int(num_features))
        spread = float(logits.std())
        best = logits.sort(dim=1, descending=True, stable=True)
        top_k = native.logits.shape[1]
        assert np.abs(native.logits - best.values[:, :top_k].numpy()).max() < CLOSE * spread
        probs = logits.softmax(dim=1).gather(1, best.indices[:, :top_k]).numpy()
        assert np.abs(native.probs - probs).max() < CLOSE
        agree = native.token_ids == rounds.vocab_map[best.indices[:, :top_k].numpy()]
        assert agree.mean() > 0.95  # ties within the error may change places
        if scores is None:
            assert native.scores is None
        else:
            assert native.scores is not None
            if agree.all():
                expected = scores.reshape(native.scores.shape).numpy()
                assert np.abs(native.scores - expected).max() < 4 * CLOSE * np.abs(expected).max()


@pytest.mark.parametrize("name", ["causal window", "dflash2", "dflash2, small groups"])
def test_every_path_gives_the_same_bits(name: str, tmp_path: Path, tiny_model: TinyModel) -> None:
    shape = SHAPES[name]
    folder = shape.write_folder(tmp_path / "drafter")
    target = tiny_model("llama", "Q4_0", layers=LAYERS, hidden=HIDDEN)
    features = torch.randn(20, shape.hidden * 3, generator=torch.Generator().manual_seed(4))
    found = []
    for isa in _native.isa_names():
        for num_threads in (1, 2):
            rounds = Rounds(shape, folder, target, isa=isa, num_threads=num_threads)
            rounds.inject(features)
            native, _, _ = rounds.draft(anchor=7)
            arrays = (native.token_ids, native.logits, native.probs, native.scores)
            found.append([array.tobytes() for array in arrays if array is not None])
    assert len(found) > 2
    assert all(each == found[0] for each in found)
