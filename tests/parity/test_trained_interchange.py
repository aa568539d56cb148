"""A drafter that was trained and exported here, generating in z-lab's `dflash` package.

The target is one GGUF file: on the native core, and dequantized in transformers; the drafter is
one exported folder. Both must write the same tokens in the same number of rounds.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.session import Session
from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.export import ExportFiles, export_drafter
from blockdraft.train.fit import RunFiles, fit
from blockdraft.train.settings import Budget, Evaluation
from blockdraft.train.shards import CorpusSequence
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from tests.parity.test_decoder_transformers import HF_NAMES
from tests.parity.test_dflash_zlab import load_zlab
from tests.tiny_run import SETTINGS

# The reference takes seconds to import.
pytestmark = pytest.mark.slow


GREEDY = SamplingParams(temperature=0, seed=0)
PROMPTS = ("the rain", "in the on", "a", "he in a re")
TOKENS = 32


def transformers_target(path: Path) -> Any:
    """The float model of a qwen3 GGUF file."""
    import transformers

    with GGUFFile.open(path) as file:
        config, source = read_model_config(file), FloatWeights(file)
        model: Any = transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.ffn_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.context_length,
                rms_norm_eps=config.norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
                tie_word_embeddings=False,
            )
        )
        names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
        names["output"] = "lm_head"
        for layer in range(config.num_layers):
            for ours, theirs in HF_NAMES.items():
                names[f"blk.{layer}.{ours}"] = f"model.layers.{layer}.{theirs}"
        state = {}
        for ours, theirs in names.items():
            name = f"{ours}.weight"
            is_matrix = len(file.tensor(name).shape) == 2
            values = source.matrix(name) if is_matrix else source.vector(name)
            state[f"{theirs}.weight"] = torch.from_numpy(np.array(values))
    model.load_state_dict(state)
    return model.eval()


def write_corpus(folder: Path, target: Path) -> Path:
    """The target's greedy answers, which the drafter learns by heart."""
    session = Session.load(target, num_threads=1, drafting=DraftConfig("none"))
    sha256 = hashlib.sha256(target.read_bytes()).hexdigest()
    header = {"target": {"sha256": sha256, "vocab_size": 299}}
    with CorpusWriter(folder, header, shard_answers=100) as writer:
        for index, prompt in enumerate(PROMPTS):
            answer = session.generate(prompt, params=GREEDY, max_tokens=TOKENS).token_ids
            ids = session.encode(prompt)
            token_ids = np.array([*ids, *answer], np.int32)
            writer.add(CorpusSequence(token_ids, len(ids), "all", f"{index}"))
    return folder


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("qwen3", "F32", layers=4)


@pytest.fixture(scope="module", params=["dflash", "dflash2"])
def exported(
    request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A drafter that is sometimes right, exported."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = write_corpus(folder / "corpus", target)
    shape = SETTINGS.shape
    if request.param == "dflash":
        shape = replace(shape, conv=False, selector_rank=None)
    settings = replace(
        SETTINGS,
        budget=Budget(steps=14),
        shape=shape,
        optimization=replace(SETTINGS.optimization, kind="muon"),  # learns in fewest steps
        evaluation=Evaluation(share=0.0),
        draft_vocab_size=None,
        log_every=100,  # never: a curve takes longer than the run
    )
    threads = torch.get_num_threads()
    fit(RunFiles(target, corpus, folder / "run"), settings, num_threads=1)
    torch.set_num_threads(threads)
    files = ExportFiles(folder / "run", target, folder / "out")
    export_drafter(files, type_name="f16", command=["blockdraft"])
    return files.output


# transformers renames an argument that z-lab's loop passes.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_an_exported_drafter_accepts_as_much_in_zlabs_loop(
    exported: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dflash.model as zlab

    monkeypatch.setattr(zlab, "_cuda_time", lambda: 0.0)  # their statistics ask a GPU's clock
    drafting = DraftConfig(drafter=str(exported), policy="fixed")
    session = Session.load(target, num_threads=1, drafting=drafting)
    theirs, model = load_zlab(exported), transformers_target(target)
    num_rounds = num_tokens = 0
    for prompt in PROMPTS:
        prompt_ids = session.encode(prompt)
        found = session.generate(prompt, params=GREEDY, max_tokens=TOKENS)
        expected = zlab.dflash_generate(
            theirs, model, torch.tensor([prompt_ids]), TOKENS, None, return_stats=True
        )
        assert [*prompt_ids, *found.token_ids] == expected.output_ids[0].tolist()
        assert found.stats is not None
        assert found.stats.num_rounds == len(expected.acceptance_lengths)
        num_rounds += found.stats.num_rounds
        num_tokens += found.stats.num_tokens
    assert num_tokens > 1.5 * num_rounds
