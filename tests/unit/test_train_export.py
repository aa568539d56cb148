"""Exported drafters: both formats, provenance, curve, model card."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.cli import main
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.session import Session
from blockdraft.train.checkpoint import load_checkpoint
from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.export import ExportFiles, export_drafter
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.safetensors import SafetensorsFolder
from tests.tiny import write_tiny
from tests.tiny_corpus import counting_sequence, write_counting_corpus
from tests.tiny_run import TinyRun

Exported = tuple[ExportFiles, dict[str, Any]]
Output = pytest.CaptureFixture[str]

BF16 = 30
DFLASH2_KEYS = (("kernel_size", "rank"), ("group_size", "top_k"))
TENSORS = (
    *("fc.weight", "hidden_norm.weight", "norm.weight"),
    *("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"),
    "candidate_selector.hidden_projection.weight",
)
LAYER_TENSORS = (
    *("input_layernorm.weight", "post_attention_layernorm.weight"),
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    *("self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *("attention_conv.base_kernel", "attention_conv.kernel_projection.weight"),
    *("mlp_conv.base_kernel", "mlp_conv.kernel_projection.weight"),
)


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    folder = tmp_path_factory.mktemp("trained")
    metadata = {"general.license": "mit"}
    target = write_tiny(folder / "target.gguf", "llama", layers=4, metadata=metadata)
    return TinyRun(folder, target)


def files_of(trained: TinyRun, output: Path) -> ExportFiles:
    return ExportFiles(trained.run, trained.target, output, trained.corpus, (str(trained.prompts),))


@pytest.fixture(scope="module")
def exported(trained: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An export with everything but an evaluation, to look at, and what it returned."""
    files = files_of(trained, tmp_path_factory.mktemp("exported") / "out")
    return files, export(files)


@pytest.fixture(scope="module")
def unlogged(trained: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without records of its steps: it has no curve, whose drawing takes most time."""
    run = tmp_path_factory.mktemp("unlogged") / "run"
    shutil.copytree(trained.run, run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(
        "".join(line for line in lines if json.loads(line)["kind"] != "train")
    )
    return run


@pytest.fixture
def files(trained: TinyRun, unlogged: Path, tmp_path: Path) -> ExportFiles:
    """What to export, without a curve, to a folder of the test's own."""
    return replace(files_of(trained, tmp_path / "out"), source=unlogged)


def export(files: ExportFiles, type_name: str = "q8_0", **options: Any) -> dict[str, Any]:
    return export_drafter(files, type_name=type_name, command=["blockdraft", "train"], **options)


def write_report(path: Path, drafter_sha256: str) -> Path:
    """A report of ``train eval``."""
    one = {"tau": 2.375, "acceptance_rate": 0.5, "accepted_by_position": [0.75, 0.5], "prompts": 4}
    report = {
        "overall": {**one, "tau": 2.125},
        "categories": {"code": one, "chat": {**one, "tau": None, "accepted_by_position": []}},
        "prompts": ["left out"],
        "skipped": [],
        "block_size": 5,
        "max_tokens": 64,
        "drafter_sha256": drafter_sha256,
        "machine": {"cpu": "a processor"},
        "isa": "avx2",
        "command": ["blockdraft", "train", "eval"],
    }
    path.write_text(json.dumps(report))
    return path


# --- weights


def test_exported_drafters_are_the_runs(exported: Exported, trained: TinyRun) -> None:
    files, _ = exported
    with (
        DrafterFile.open(trained.run / "drafter") as before,
        DrafterFile.open(files.output) as folder,
        DrafterFile.open(files.output / "drafter-q8_0.gguf") as gguf,
    ):
        learned = load_checkpoint(trained.run / "checkpoint.pt").draft_token_ids
        head = tuple(learned.tolist())
        assert 4 <= len(head) < 299
        name = folder.config.name
        assert folder.config == replace(before.config, name=name, head_token_ids=head)
        assert gguf.config.head_token_ids == head
        assert gguf.config.name == "DFlash 2 for tiny llama Q4_0"
        ours, theirs, coded = (DrafterValues(each) for each in (before, folder, gguf))
        assert ours.keys() == theirs.keys() == coded.keys()
        for name in ours:
            np.testing.assert_array_equal(theirs[name], ours[name])
            limit = np.abs(ours[name]).max() / 100
            np.testing.assert_allclose(coded[name], ours[name], atol=limit)


def test_the_folder_has_what_other_servers_require(exported: Exported, trained: TinyRun) -> None:
    # What the configuration readers of vLLM and SGLang ask for, and z-lab's names of tensors.
    files, _ = exported
    config = json.loads((files.output / "config.json").read_text())
    inner = config["dflash_config"]
    with GGUFFile.open(trained.target) as file:
        target = read_model_config(file)
    assert (config["model_type"], config["architectures"]) == ("qwen3", ["DFlash2DraftModel"])
    assert (config["hidden_size"], config["vocab_size"]) == (target.hidden_size, target.vocab_size)
    assert config["num_target_layers"] == target.num_layers
    assert config["block_size"] == inner["block_size"] == 5
    assert inner["target_layer_ids"] == [0, 2]
    assert 0 <= inner["mask_token_id"] < target.vocab_size
    assert config["layer_types"] == ["sliding_attention"]
    assert (config["sliding_window"], config["use_sliding_window"]) == (16, True)
    assert config["is_causal"] is inner["causal"] is False
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == target.rope.theta
    assert config["max_position_embeddings"] >= target.context_length
    assert config["dtype"] == "bfloat16"
    assert "draft_vocab_size" not in config  # it would ask for a head of the drafter's own
    pairs = [(inner[f"conv_{a}"], inner[f"selector_{b}"]) for a, b in DFLASH2_KEYS]
    assert pairs == [(2, 8), (16, 4)]
    with SafetensorsFolder.open(files.output) as folder:
        assert set(folder.tensors) == {*TENSORS, *(f"layers.0.{name}" for name in LAYER_TENSORS)}
        assert {info.ggml_type for info in folder.tensors.values()} == {BF16}
        fused = (target.hidden_size, 2 * target.hidden_size)
        assert folder.tensors["fc.weight"].shape == fused
        codebook = folder.tensors["candidate_selector.successor_codebook"]
        assert codebook.shape == (target.vocab_size, 8)


def test_sessions_draft_with_both(exported: Exported) -> None:
    files, _ = exported
    params = SamplingParams(temperature=0, seed=0)
    found = []
    for drafter in (files.output, files.output / "drafter-q8_0.gguf"):
        drafting = DraftConfig(drafter=str(drafter), policy="fixed")
        session = Session.load(files.target, num_threads=1, ctx_size=64, drafting=drafting)
        found.append(session.generate("the", params=params, max_tokens=8))
    assert found[0].token_ids == found[1].token_ids
    for each in found:
        assert each.stats is not None
        assert (each.stats.type_name, each.stats.block_size) == ("dflash", 5)


def test_a_drafters_folder_is_enough(files: ExportFiles, trained: TinyRun) -> None:
    notes: list[str] = []
    bare = ExportFiles(trained.run / "drafter", trained.target, files.output)
    facts = export(bare, notify=notes.append)
    assert (facts["run"], facts["corpus"], facts["evaluation"]) == (None, None, None)
    names = {path.name for path in files.output.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "drafter-q8_0.gguf", "provenance.json", "README.md"
    }  # fmt: skip
    assert "Not evaluated" in (files.output / "README.md").read_text()
    assert "there is no evaluation: the model card will have no tau" in notes


# --- provenance


def test_the_provenance_says_where_it_comes_from(exported: Exported, trained: TinyRun) -> None:
    files, returned = exported
    facts = json.loads((files.output / "provenance.json").read_text())
    assert facts == json.loads(json.dumps(returned))
    assert facts["target"] == {
        "name": "tiny llama Q4_0",
        "file": "target.gguf",
        "sha256": sha256_of(trained.target),
        "architecture": "llama",
        "num_layers": 4,
        "licence": "mit",
    }
    assert facts["drafter"]["kind"] == "DFlash 2"
    assert facts["drafter"]["target_layer_ids"] == [0, 2]
    settings = facts["run"]["settings"]
    assert (settings["seed"], settings["optimization"]["learning_rate"]) == (11, 2e-2)
    assert settings["shape"]["block_size"] == 5
    assert facts["run"]["progress"]["steps"] == 4
    assert facts["run"]["teacher_forced"]["tau"] >= 1
    assert {"blockdraft", "torch", "numpy", "python"} == facts["versions"].keys()
    assert facts["machine"]["cpu"]
    assert facts["command"] == ["blockdraft", "train"]
    assert str(files.output) not in json.dumps(facts)
    for name, sha256 in facts["files"].items():
        assert sha256_of(files.output / name) == sha256
    assert {"config.json", "model.safetensors", "drafter-q8_0.gguf"} <= facts["files"].keys()


def test_the_corpus_is_counted_by_source(exported: Exported) -> None:
    corpus = exported[1]["corpus"]
    assert corpus["sequences"] == corpus["counts"]["kept"] == 24
    assert corpus["categories"] == {"step1": 12, "step2": 12}
    assert corpus["sources"] == [
        {"source": "", "licence": "", "prompts": 8},
        {"source": "steps", "licence": "MIT", "prompts": 16},
    ]
    assert corpus["is_as_the_run_read_it"] is True
    assert 0 < corpus["held_out_sequences"] < 24


def test_a_corpus_that_has_grown_is_told_of(files: ExportFiles, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    assert files.corpus is not None
    shutil.copytree(files.corpus, grown)
    manifest = json.loads((grown / "manifest.json").read_text())
    header = {key: manifest[key] for key in ("target", "prompts")}
    with CorpusWriter(grown, header, shard_answers=100) as writer:
        for index in range(24, 34):
            writer.add(counting_sequence(index))
    notes: list[str] = []
    facts = export(replace(files, corpus=grown), notify=notes.append)
    assert facts["corpus"]["is_as_the_run_read_it"] is False
    assert any("corpus has changed" in note for note in notes)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("drafter-q8_0.gguf", "drafter-q8_0.gguf in this folder"),
        ("model.safetensors", "the bf16 weights in this folder"),
        (None, "other weights than these (sha256 000000000000)"),
    ],
)
def test_an_evaluation_names_its_weights(
    exported: Exported, files: ExportFiles, tmp_path: Path, weights: str | None, expected: str
) -> None:
    sha256 = "0" * 64 if weights is None else sha256_of(exported[0].output / weights)
    report = write_report(tmp_path / "report.json", sha256)
    found = export(replace(files, evaluation=report))["evaluation"]
    assert found["evaluated"] == expected
    assert "prompts" not in found
    assert found["overall"]["tau"] == 2.125
    for path in (files.output, files.output / "drafter-q8_0.gguf"):
        with DrafterFile.open(path) as file:
            assert file.config.accepted == (0.75, 0.5)


def test_the_evaluation_in_the_runs_folder_is_found(
    files: ExportFiles, unlogged: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(unlogged, run)
    write_report(run / "evaluation.json", "0" * 64)
    assert export(replace(files, source=run))["evaluation"]["overall"]["tau"] == 2.125


# --- picture and card


def test_the_curve_is_a_png(exported: Exported) -> None:
    files, _ = exported
    data = (files.output / "curve.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20], "big") == 1200


def test_the_card_tells_how_to_use_it_and_how_good_it_is(trained: TinyRun, tmp_path: Path) -> None:
    report = write_report(tmp_path / "report.json", "0" * 64)
    files = files_of(trained, tmp_path / "out")
    export(replace(files, evaluation=report))
    card = (files.output / "README.md").read_text()
    for line in (
        "# DFlash 2 drafter for tiny llama Q4_0",
        f"sha256 `{sha256_of(trained.target)}`",
        "of the target's 299 tokens. blockdraft multiplies with these",
        'blockdraft run "Hello" -m target.gguf -md DIR/drafter-q8_0.gguf',
        "llama-server -m target.gguf -md DIR/drafter-q8_0.gguf --spec-type draft-dflash"
        " --spec-draft-n-max 4",
        'dflash generate transformers "Hello" --model MODEL --draft DIR',
        '{"method":"dflash","model":"DIR","num_speculative_tokens":4}',
        "--speculative-algorithm DFLASH --speculative-draft-model-path DIR",
        "| code | 4 | 2.38 | 75% | 50% | - | - |",
        "| chat | 4 | - | - | - | - | - |",
        "| mean over categories | 4 | 2.12 | 75% | 50% | - | - |",
        "| MIT | 16 | 1 |",
        "![training curve](curve.png)",
        "which is not part of this folder: mit.",
    ):
        assert line in card


def test_the_card_says_where_llama_cpp_cannot(tmp_path: Path, trained: TinyRun) -> None:
    target = write_tiny(tmp_path / "q.gguf", "qwen2", layers=4, head_dim=16)
    files = ExportFiles(trained.run / "drafter", target, tmp_path / "out")
    export(files)
    card = (files.output / "README.md").read_text()
    assert "# llama.cpp: no, it cannot read the layers of a qwen2 target" in card
    assert "llama-server" not in card


# --- the folder


def test_an_earlier_export_is_replaced(files: ExportFiles) -> None:
    export(files, "q8_0")
    before = (files.output / "README.md").read_text()
    export(files, "q4_0")
    assert [path.name for path in files.output.glob("*.gguf")] == ["drafter-q4_0.gguf"]
    assert (files.output / "README.md").read_text() == before.replace("q8_0", "q4_0")


def test_what_does_not_fit_is_refused(files: ExportFiles, trained: TinyRun, tmp_path: Path) -> None:
    other = write_tiny(tmp_path / "other.gguf", "llama", layers=5)
    with pytest.raises(ConfigError, match="its number of target layers is 4, the target's is 5"):
        export(replace(files, target=other, corpus=None, prompts=()))
    foreign = write_counting_corpus(tmp_path / "foreign", other)
    with pytest.raises(ConfigError, match="the corpus was written by the model"):
        export(replace(files, corpus=foreign))
    with pytest.raises(ConfigError, match="no corpus is given"):
        export(replace(files, corpus=None))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "x"}')
    with pytest.raises(ConfigError, match=r"not made from this p\.jsonl; its prompts are .*prom"):
        export(replace(files, prompts=(str(prompts),)))
    with pytest.raises(FileFormatError, match="is no report of train eval"):
        export(replace(files, evaluation=prompts))
    with pytest.raises(ConfigError, match="is not the folder of a run or of a drafter"):
        export(replace(files, source=prompts))
    with pytest.raises(ConfigError, match="is the drafter itself"):
        export(replace(files, source=trained.run, output=trained.run / "drafter"))
    with pytest.raises(ConfigError, match="is a file; it must be a folder"):
        export(replace(files, output=prompts))
    with pytest.raises(ConfigError, match=r"holds .*, which no export wrote"):
        export(replace(files, output=tmp_path))


# --- the command


def test_flags_reach_the_export(
    files: ExportFiles, trained: TinyRun, tmp_path: Path, capsys: Output
) -> None:
    report = write_report(tmp_path / "report.json", "0" * 64)
    line = ["train", "export", str(trained.run), "-m", str(trained.target), "-o", str(files.output)]
    flags = ["--type", "f16", "--corpus", str(trained.corpus), "--prompts", str(trained.prompts)]
    assert main([*line, *flags, "--evaluation", str(report)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{files.output}: config.json, curve.png, drafter-f16.gguf, ")
    assert "blockdraft: writing " in shown.err
    facts = json.loads((files.output / "provenance.json").read_text())
    assert facts["corpus"]["sources"]
    assert facts["evaluation"]["overall"]["tau"] == 2.125


@pytest.mark.parametrize("missing", ["torch", "matplotlib"])
def test_a_missing_extra_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    real: Callable[[str], Any] = import_module

    def without(name: str) -> Any:
        if name == "blockdraft.train.export":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name)

    monkeypatch.setattr("blockdraft.cli.train_export.import_module", without)
    assert main(["train", "export", "x", "-o", "y"]) == 2
    assert f"this needs {missing}: pip install 'blockdraft[torch]'" in capsys.readouterr().err
