"""Sessions and command lines that draft with a smaller model: recognised, reported, refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import BlockdraftError, ConfigError, UnsupportedError
from blockdraft.session import Session
from blockdraft.speculative.costs import CostCurve, CostModel
from tests.native_dflash import network
from tests.replay import assert_replays
from tests.tiny import bpe_vocabulary

Output = pytest.CaptureFixture[str]
TinyModel = Callable[..., Path]
PROMPT = "the rain in the"
HOT = SamplingParams(temperature=0.9, seed=4, repeat_penalty=1.2)


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "Q8_0", layers=5)


@pytest.fixture(scope="module")
def small(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "Q4_0")


def load(target: Path, *args: Any, **options: Any) -> Session:
    drafting = DraftConfig(*args, **options)
    return Session.load(target, num_threads=1, ctx_size=256, drafting=drafting)


@pytest.mark.parametrize("policy", ["auto", "fixed"])
@pytest.mark.parametrize("spec_type", [None, "draft-simple"])
def test_a_model_drafts_for_another(
    spec_type: str | None, policy: str, target: Path, small: Path
) -> None:
    session = load(target, spec_type, str(small), policy=policy)
    plain = load(target, "none").generate(PROMPT, params=HOT, max_tokens=40)
    found = session.generate(PROMPT, params=HOT, max_tokens=40)
    assert (found.text, found.token_ids) == (plain.text, plain.token_ids)
    assert found.stats is not None
    several = spec_type is None and policy == "auto"
    assert found.stats.type_name == ("ngram+suffix+draft-simple" if several else "draft-simple")
    assert found.stats.block_size == 8
    assert session.engine.used_cache_bytes == 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_model_that_drafts_for_itself_is_always_right(target: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=2, repeat_penalty=1.2)
    session = load(target, "draft-simple", str(target), policy="fixed", draft_n_max=5)
    stats = session.generate(PROMPT, params=params, max_tokens=31).stats
    assert stats is not None
    assert (stats.acceptance_rate, stats.num_rounds) == (1.0, 5)


def test_prompts_together_are_answered_as_alone(target: Path, small: Path) -> None:
    session = load(target, None, str(small))
    prompts = [PROMPT, "a", "in the " * 30]
    together = session.batch(prompts, params=HOT, max_tokens=20)
    alone = [load(target, "none").generate(p, params=HOT, max_tokens=20) for p in prompts]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_probable_drafts_only(target: Path, small: Path) -> None:
    session = load(target, "draft-simple", str(small), policy="fixed", draft_p_min=0.99)
    stats = session.generate(PROMPT, params=HOT, max_tokens=20).stats
    assert stats is not None
    assert stats.num_drafted == 0


def test_the_controller_uses_a_model_that_pays(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = CostCurve({1: 1e9, 64: 1e9 + 1})
    monkeypatch.setattr(flat, "add", lambda *_: None)
    step = CostCurve({1: 1e-9, 64: 1e-9})
    monkeypatch.setattr(step, "add", lambda *_: None)
    costs = CostModel(flat, {"draft-simple": step})
    monkeypatch.setattr("blockdraft.session.drafting.load_costs", lambda *_, **__: costs)
    trace = tmp_path / "trace"
    session = load(target, "draft-simple", str(target), trace=str(trace))
    stats = session.generate(PROMPT, params=HOT, max_tokens=64).stats
    assert stats is not None
    assert stats.acceptance_rate == 1.0
    assert stats.mean_acceptance_length > 6
    assert assert_replays(trace.read_text("utf-8"))[-1].is_on


# --- refusals


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"vocab_size": 300}, "has 300 tokens, the target has 299"),
    "pre-tokenizer": (
        {"metadata": {"tokenizer.ggml.pre": "qwen2"}},
        "its pre-tokenizer is 'qwen2', the target's is 'smollm'",
    ),
    "end": (
        {"metadata": {"tokenizer.ggml.eos_token_id": 7}},
        "its last token is 7, the target's is 2",
    ),
}


def other_tokens() -> dict[str, Any]:
    tokens = list(bpe_vocabulary(299)["tokenizer.ggml.tokens"])
    tokens[290] = "other"
    return {"metadata": {"tokenizer.ggml.tokens": tokens}}


@pytest.mark.parametrize("name", [*OTHER, "tokens"])
@pytest.mark.parametrize("spec_type", [None, "ngram,draft-simple"])
def test_a_model_with_another_tokenizer_is_refused(
    name: str, spec_type: str | None, target: Path, tiny_model: TinyModel, capsys: Output
) -> None:
    options, fact = OTHER.get(name, (other_tokens(), "token 290 is 'other', the target's is"))
    path = tiny_model("llama", "Q4_0", **options)
    with pytest.raises(ConfigError) as caught:
        load(target, spec_type, str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: {fact}")
    assert message.endswith(f": {target}")
    flags = [] if spec_type is None else ["--spec-type", spec_type]
    assert main(["run", "hi", "-m", str(target), "-md", str(path), "-t", "1", *flags]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"blockdraft: error: {message}\n")


def test_a_drafter_is_no_model(target: Path, tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": bpe_vocabulary(299)["tokenizer.ggml.tokens"]}
    path = network(config=tokens).write_gguf(tmp_path / "dflash.gguf")
    with pytest.raises(UnsupportedError, match=rf"^{path}: .*'dflash'"):
        load(target, "draft-simple", str(path))


def test_a_folder_is_no_model(target: Path, tmp_path: Path) -> None:
    with pytest.raises(BlockdraftError, match=str(tmp_path)):
        load(target, "draft-simple", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spec_type": "draft-simple"}, "is draft-simple, but no model that drafts is given"),
        ({"spec_type": "dflash,draft-simple", "drafter": "x"}, "one network drafts at a time"),
        (
            {"spec_type": "draft-simple", "drafter": "x", "draft_tree": 5},
            "only dflash drafts trees",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DraftConfig(**settings)


def test_a_tree_of_a_model_is_refused_with_its_name(target: Path, small: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{small}: draft_tree is 5, .*only dflash drafts"):
        load(target, None, str(small), draft_tree=5)


def test_json_has_its_gains(target: Path, small: Path, capsys: Output) -> None:
    line = ["run", PROMPT, "-m", str(target), "-md", str(small), "-t", "1", "-n", "9", "--json"]
    assert main([*line, "--spec-policy", "fixed", "--spec-draft-n-max", "3"]) == 0
    found = json.loads(capsys.readouterr().out)["speculation"]
    assert (found["type"], found["block_size"]) == ("draft-simple", 4)
