"""`DFlash` with torch ops against z-lab's `dflash` package, on tiny random checkpoints on disk.

`dflash` and `transformers` take seconds to import: only what uses them does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdraft.ops.torch import Place, TorchContext
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.drafter_writer import write_drafter_folder
from tests.drafting import TorchDrafter
from tests.tiny_drafter import TinyDrafter

# The reference takes seconds to import.
pytestmark = pytest.mark.slow


VARIANTS = {
    "full": TinyDrafter(),
    "causal": TinyDrafter(is_causal=True),
    "sliding": TinyDrafter(kinds=("sliding", "full", "sliding")),
    "sliding-not-causal": TinyDrafter(kinds=("sliding", "sliding"), is_causal=False),
    "sliding-causal": TinyDrafter(kinds=("full", "sliding"), is_causal=True),
    "one-kv-head": TinyDrafter(kv_heads=1, attention_bias=True),
    "no-sharing": TinyDrafter(kv_heads=4, head_dim=16),
    "scales": TinyDrafter(
        inner={
            "input_embedding_scale": 8.0,
            "output_multiplier": 0.4,
            "final_logit_softcapping": 2.0,
        }
    ),
    "yarn": TinyDrafter(
        config={
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        }
    ),
    "yarn-factor": TinyDrafter(
        config={
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "attention_factor": 0.9,
                "original_max_position_embeddings": 32,
            }
        }
    ),
    "llama3": TinyDrafter(
        config={
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        }
    ),
    "linear": TinyDrafter(config={"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "gelu": TinyDrafter(config={"hidden_act": "gelu_pytorch_tanh"}),
    "dflash2": TinyDrafter(is_dflash2=True),
    "dflash2-sliding": TinyDrafter(is_dflash2=True, kinds=("sliding",) * 3, is_causal=False),
    "dflash2-three-taps": TinyDrafter(is_dflash2=True, taps=3, group_size=8, kv_heads=4),
    "dflash2-scales": TinyDrafter(
        is_dflash2=True, inner={"output_multiplier": 0.4, "final_logit_softcapping": 2.0}
    ),
}
# Rows committed before each block: the prompt, then rounds with none, some and all accepted.
COMMITTED = (11, 1, 3, 4, 2, 1)
PROMPT = COMMITTED[0]


def load_zlab(folder: Path) -> Any:
    import dflash.model as zlab
    import transformers

    config = transformers.Qwen3Config.from_pretrained(folder)
    assert config.architectures
    kind: Any = getattr(zlab, config.architectures[0])
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def random_target(shape: TinyDrafter) -> SimpleNamespace:
    """Embedding and head of a target, as z-lab's model asks for them."""
    generator = torch.Generator().manual_seed(7)
    embedding, head = (
        torch.randn(shape.vocab_size, shape.hidden, generator=generator) for _ in range(2)
    )
    linear = torch.nn.Linear(shape.hidden, shape.vocab_size, bias=False)
    linear.weight.data = head * shape.hidden**-0.5
    return SimpleNamespace(
        get_input_embeddings=lambda: SimpleNamespace(weight=embedding), lm_head=linear
    )


class ZLab:
    """z-lab's model, driven a block at a time as its own loop drives it."""

    def __init__(self, model: Any, target: SimpleNamespace) -> None:
        import dflash.model as zlab

        self.zlab = zlab
        self.model = model
        self.target = target
        self.scale = float(zlab._draft_value(self.model.config, "input_embedding_scale", 1.0))
        self.cache = zlab._make_cache(self.model.config)

    @torch.inference_mode()
    def draft(
        self, features: Tensor, anchor: int, position: int, *, cached: bool = True
    ) -> tuple[Tensor, list[int]]:
        """Logits and tokens after an anchor, given the features of new rows before it."""
        model = self.model
        tokens = torch.tensor([[anchor] + [model.mask_token_id] * (model.block_size - 1)])
        hidden = model(
            target_hidden=features[None],
            noise_embedding=self.zlab._raw_input_embeddings(self.target, tokens, self.scale),
            position_ids=torch.arange(position - len(features), position + model.block_size)[None],
            past_key_values=self.cache if cached else None,
            use_cache=cached,
        )[:, 1:]
        if cached:
            self.zlab._crop_to(self.cache, position)
        logits = model.compute_logits(hidden, self.target.lm_head)
        if isinstance(model, self.zlab.DFlash2DraftModel):
            path, _, _ = model.propose(hidden, tokens[:, 0], self.target.lm_head, 0.0)
        else:
            path = logits.argmax(-1)
        return logits[0], path[0].tolist()


@dataclass(frozen=True)
class Pair:
    """Both drafters over one folder and one target; neither keeps anything of a sequence."""

    shape: TinyDrafter
    folder: Path
    target: SimpleNamespace
    ours: TorchDrafter
    model: Any

    def theirs(self) -> ZLab:
        """z-lab's side with an empty cache."""
        return ZLab(self.model, self.target)


def make_pair(shape: TinyDrafter, folder: Path) -> Pair:
    shape.write_folder(folder)
    target = random_target(shape)
    embedding = target.get_input_embeddings().weight
    ours = TorchDrafter(folder, embedding, target.lm_head.weight.data)
    return Pair(shape, folder, target, ours, load_zlab(folder))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A function from a variant to its pair, which is made once."""

    @cache
    def pair(variant: str) -> Pair:
        return make_pair(VARIANTS[variant], tmp_path_factory.mktemp("pair") / "drafter")

    return pair


Pairs = Callable[[str], Pair]


def rounds(shape: TinyDrafter) -> list[tuple[Tensor, int, int]]:
    """Per block: features of the newly committed rows, anchor, its position."""
    generator = torch.Generator().manual_seed(3)
    size = shape.hidden * len(shape.target_layer_ids)
    blocks, position = [], 0
    for num_rows in COMMITTED:
        position += num_rows
        anchor = int(torch.randint(0, shape.vocab_size - 1, (1,), generator=generator))
        blocks.append((torch.randn(num_rows, size, generator=generator), anchor, position))
    return blocks


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_blocks_with_a_cache(pairs: Pairs, variant: str) -> None:
    pair = pairs(variant)
    ours, theirs = pair.ours, pair.theirs()
    context = TorchContext()
    for features, anchor, position in rounds(pair.shape):
        ours.inject([context], [features])
        (drafted,) = ours.draft([Place(context, position)], [anchor])
        logits, path = theirs.draft(features, anchor, position)
        torch.testing.assert_close(drafted.logits, logits, rtol=1e-4, atol=1e-4)
        assert drafted.token_ids == path
        assert logits.std() > 0.1


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_blocks_without_a_cache(pairs: Pairs, variant: str) -> None:
    pair = pairs(variant)
    shape, ours, theirs = pair.shape, pair.ours, pair.theirs()
    seen = torch.empty(0, shape.hidden * len(shape.target_layer_ids))
    for features, anchor, position in rounds(shape):
        seen = torch.cat((seen, features))
        context = TorchContext()
        ours.inject([context], [seen])
        (drafted,) = ours.draft([Place(context, position)], [anchor])
        logits, path = theirs.draft(seen, anchor, position, cached=False)
        torch.testing.assert_close(drafted.logits, logits, rtol=1e-4, atol=1e-4)
        assert drafted.token_ids == path


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_folders_that_we_write(pairs: Pairs, tmp_path: Path, variant: str) -> None:
    pair = pairs(variant)
    with DrafterFile.open(pair.folder) as file:
        write_drafter_folder(tmp_path, file.config, DrafterValues(file), dtype="f32")
    block = rounds(pair.shape)[0]
    logits, path = pair.theirs().draft(*block)
    written_logits, written_path = ZLab(load_zlab(tmp_path), pair.target).draft(*block)
    assert torch.equal(written_logits, logits)
    assert written_path == path


@torch.inference_mode()
def test_default_feature_layers(tmp_path: Path) -> None:
    shape = TinyDrafter(
        kinds=("full",) * 3,
        num_target_layers=9,
        target_layer_ids=(1, 4, 6),
        inner={"target_layer_ids": None},
    )
    pair = make_pair(shape, tmp_path)
    assert list(pair.ours.config.target_layer_ids) == pair.model.target_layer_ids == [1, 4, 6]


# --- generation


def tiny_target(shape: TinyDrafter) -> Any:
    import transformers

    torch.manual_seed(5)
    config = transformers.Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        intermediate_size=64,
        num_hidden_layers=shape.num_target_layers or 5,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    model: Any = transformers.Qwen3ForCausalLM(config)
    return model.eval()


@torch.inference_mode()
def generate(
    ours: TorchDrafter, target: Any, prompt: list[int], max_new_tokens: int
) -> tuple[list[int], list[int]]:
    """Greedy draft-and-verify without a target cache: all ids, and tokens of each round."""
    import dflash.model as zlab

    def run(ids: list[int]) -> tuple[Tensor, Tensor]:
        output = target(torch.tensor([ids]), output_hidden_states=True)
        features = zlab.extract_context_feature(
            output.hidden_states, list(ours.config.target_layer_ids)
        )
        return output.logits[0].argmax(1), features[0]

    best, features = run(prompt)
    ids = [*prompt, int(best[-1])]
    context, lengths, end = TorchContext(), [], len(prompt) + max_new_tokens
    while len(ids) < end:
        position = len(ids) - 1
        ours.inject([context], [features[context.length : position]])
        width = min(ours.config.block_size, end - position)
        drafts: list[int] = []
        if width > 1:
            (drafted,) = ours.draft([Place(context, position)], ids[-1:], width)
            drafts = drafted.token_ids
        best, features = run(ids + drafts)
        wanted = best[position:].tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == wanted[accepted]:
            accepted += 1
        gained = [*drafts[:accepted], wanted[accepted]][: end - len(ids)]
        ids += gained
        lengths.append(len(gained))
    return ids, lengths


# The reference loop takes 20 s.
@pytest.mark.slow
# transformers renames an argument that z-lab's loop passes.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize(("is_dflash2", "seed"), [(False, 1), (True, 3)], ids=["dflash", "dflash2"])
def test_greedy_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dflash2: bool, seed: int
) -> None:
    import dflash.model as zlab

    # So few tokens that a random drafter is sometimes right.
    shape = TinyDrafter(
        kinds=("sliding", "full"),
        seed=seed,
        is_dflash2=is_dflash2,
        vocab_size=6,
        mask_token_id=5,
        top_k=3,
        target_layer_ids=(0, 2),
    )
    model = load_zlab(shape.write_folder(tmp_path / "drafter"))
    target = tiny_target(shape)
    ours = TorchDrafter(
        tmp_path / "drafter", target.get_input_embeddings().weight, target.lm_head.weight
    )
    prompt = [1, 4, 0, 2, 3, 3, 1]
    monkeypatch.setattr(zlab, "_cuda_time", lambda: 0.0)  # their statistics ask a GPU's clock
    expected = zlab.dflash_generate(
        model, target, torch.tensor([prompt]), 60, None, return_stats=True
    )
    ids, lengths = generate(ours, target, prompt, 60)
    assert ids == expected.output_ids[0].tolist()
    assert lengths == expected.acceptance_lengths
    assert {1, 2, 3} <= set(lengths)
