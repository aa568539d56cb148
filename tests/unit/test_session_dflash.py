"""Sessions and command lines with a drafter's file: what is loaded, reported and refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import BlockdraftError, ConfigError, UnsupportedError
from blockdraft.session import Session
from tests.native_dflash import network
from tests.tiny import bpe_vocabulary
from tests.tiny_drafter import TinyDrafter

Output = pytest.CaptureFixture[str]
PROMPT = "the rain in the"
HOT = SamplingParams(temperature=20.0, top_k=0, top_p=1.0, min_p=0.0, seed=4)
TOKENS = {"tokenizer.ggml.tokens": bpe_vocabulary(299)["tokenizer.ggml.tokens"]}
DFLASH2 = network(is_dflash2=True, is_causal=False, top_k=64)


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama", "Q8_0", layers=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafters")


@pytest.fixture(scope="module")
def drafters(folder: Path) -> dict[str, Path]:
    return {
        "folder": DFLASH2.write_folder(folder / "dflash2"),
        "gguf": replace(DFLASH2, config=TOKENS).write_gguf(folder / "dflash2.gguf"),
        "dflash": network().write_folder(folder / "dflash"),
    }


def load(target: Path, *settings: Any, **options: Any) -> Session:
    return Session.load(
        target, num_threads=1, ctx_size=512, drafting=DraftConfig(*settings, **options)
    )


# --- sessions


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_session_drafts_with_a_file(target: Path, drafters: dict[str, Path], kind: str) -> None:
    session = load(target, None, str(drafters[kind]), policy="fixed")
    found = session.generate(PROMPT, params=HOT, max_tokens=30)
    plain = load(target, "none").generate(PROMPT, params=HOT, max_tokens=30)
    assert (found.text, found.token_ids) == (plain.text, plain.token_ids)
    assert found.stats is not None
    assert (found.stats.type_name, found.stats.block_size) == ("dflash", 4)
    assert 0 < found.stats.num_accepted < found.stats.num_drafted
    assert found.stats.mean_acceptance_length > 1
    assert session.engine.used_cache_bytes == 0


def test_prompts_together_are_answered_as_alone(target: Path, drafters: dict[str, Path]) -> None:
    session = load(target, "dflash", str(drafters["folder"]))
    prompts = [PROMPT, "a", "in the " * 40]
    together = session.batch(prompts, params=HOT, max_tokens=20)
    alone = [load(target, "none").generate(p, params=HOT, max_tokens=20) for p in prompts]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]


def test_a_stream_that_is_left_gives_its_memory_back(
    target: Path, drafters: dict[str, Path]
) -> None:
    session = load(target, None, str(drafters["folder"]))
    with session.stream(PROMPT, params=HOT, max_tokens=100) as stream:
        next(iter(stream))
        assert session.engine.used_cache_bytes > 0
    assert session.engine.used_cache_bytes == 0


def test_drafts_may_be_turned_off(target: Path, drafters: dict[str, Path]) -> None:
    session = load(target, "none", str(drafters["folder"]))
    assert session.generate(PROMPT, params=HOT, max_tokens=5).stats is None
    # The drafter's file is not even opened then.
    load(target, "none", "nowhere")


def test_settings_reach_the_drafter(target: Path, drafters: dict[str, Path]) -> None:
    few = load(target, None, str(drafters["folder"]), policy="fixed", draft_n_max=2)
    stats = few.generate(PROMPT, params=HOT, max_tokens=20).stats
    assert stats is not None
    assert stats.block_size == 3
    assert len(stats.proposed_by_position) == 2
    sure = load(target, None, str(drafters["folder"]), policy="fixed", draft_p_min=0.5)
    stats = sure.generate(PROMPT, params=HOT, max_tokens=20).stats
    assert stats is not None
    assert stats.num_drafted == 0  # no draft of so hot a walk is that probable


# --- refusals, in a session and on the command line

WRONG: dict[str, tuple[TinyDrafter, str]] = {
    "hidden": (network(hidden=96), "its width is 96, the target's is 64"),
    "vocabulary": (network(vocab_size=300), "its number of tokens is 300, the target's is 299"),
    "layers": (
        network(num_target_layers=7),
        "its number of target layers is 7, the target's is 5",
    ),
    "layer ids": (network(target_layer_ids=(1, 5)), "it reads layer 5, the target's last is 4"),
}


def refused(target: Path, drafter: Path, capsys: Output, *flags: str) -> str:
    """What a command line says, which is what a session raises."""
    line = ["run", "hi", "-m", str(target), "-md", str(drafter), "-t", "1", "-n", "4", *flags]
    assert main(line) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert len(shown.err.splitlines()) == 1
    return shown.err.removeprefix("blockdraft: error: ").rstrip("\n")


@pytest.mark.parametrize("name", WRONG)
def test_a_drafter_of_another_target_is_refused(
    name: str, target: Path, tmp_path: Path, capsys: Output
) -> None:
    shape, facts = WRONG[name]
    path = shape.write_folder(tmp_path / "other")
    message = f"{path}: the drafter does not fit the target: {facts}"
    with pytest.raises(ConfigError) as caught:
        load(target, None, str(path))
    assert str(caught.value) == message
    assert refused(target, path, capsys) == message


def test_other_tokens_are_refused(target: Path, tmp_path: Path, capsys: Output) -> None:
    path = network().write_gguf(tmp_path / "tokens.gguf")
    message = f"{path}: token 0 is 't0', the target's is '<|endoftext|>': {target}"
    assert refused(target, path, capsys) == message
    with pytest.raises(ConfigError, match="token 0 is 't0'"):
        load(target, None, str(path))


def test_a_missing_drafter_is_named(target: Path, tmp_path: Path, capsys: Output) -> None:
    assert refused(target, tmp_path / "no.gguf", capsys).startswith(
        f"there is no file {tmp_path / 'no.gguf'}"
    )
    (tmp_path / "empty").mkdir()
    assert refused(target, tmp_path / "empty", capsys).startswith(f"{tmp_path / 'empty'}")


def test_a_target_is_no_drafter(target: Path, capsys: Output) -> None:
    message = refused(target, target, capsys, "--spec-type", "dflash")
    assert message == f"{target}: the architecture is 'llama'; drafters are 'dflash'"
    with pytest.raises(UnsupportedError):
        load(target, "dflash", str(target))


def test_a_home_folder_is_found(
    target: Path, drafters: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    load(target, None, "~/dflash")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--spec-draft-n-max", "4"], "draft tokens is 4; the drafter's block of 4 has room for 1"),
        (["--spec-draft-n-max", "64"], "draft_n_max is 64; it must be in [1, 63]"),
        (["--spec-type", "ngram"], "spec_type is ngram, which does not use the drafter"),
        (["--spec-draft-p-min", "-0.1"], "draft_p_min is -0.1; it must be in [0, 1]"),
    ],
)
def test_settings_that_do_not_fit_the_drafter_are_refused(
    flags: list[str], message: str, target: Path, drafters: dict[str, Path], capsys: Output
) -> None:
    assert message in refused(target, drafters["folder"], capsys, *flags)


def test_a_block_too_small_names_the_file(target: Path, drafters: dict[str, Path]) -> None:
    path = drafters["folder"]
    with pytest.raises(BlockdraftError, match=f"^{path}: draft tokens is 9; .* room for 1 to 3$"):
        load(target, None, str(path), draft_n_max=9)


# --- what a command line shows


def run_json(target: Path, drafter: Path, capsys: Output, *flags: str) -> dict[str, Any]:
    line = ["run", PROMPT, "-m", str(target), "-md", str(drafter), "-t", "1", "-n", "24", "--json"]
    assert main([*line, "--temp", "20", "--top-k", "0", "--min-p", "0", "-s", "4", *flags]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


@pytest.mark.parametrize("name", [None, "dflash", "draft-dflash"])
def test_json_has_the_gains_of_a_network(
    name: str | None, target: Path, drafters: dict[str, Path], capsys: Output
) -> None:
    flags = ["--spec-policy", "fixed"] + ([] if name is None else ["--spec-type", name])
    found = run_json(target, drafters["gguf"], capsys, *flags)["speculation"]
    assert list(found) == [
        "type", "tau", "acceptance_rate", "rounds", "accepted_by_position", "block_size"
    ]  # fmt: skip
    assert (found["type"], found["block_size"]) == ("dflash", 4)
    assert found["tau"] == pytest.approx(23 / found["rounds"])
    assert 1 < found["tau"] <= 4
    assert 0 < found["acceptance_rate"] < 1
    shares = found["accepted_by_position"]
    assert len(shares) == 3
    assert shares[0] > 0
    assert all(0 <= share <= 1 for share in shares)


def test_json_has_none_without_drafts(
    target: Path, drafters: dict[str, Path], capsys: Output
) -> None:
    found = run_json(target, drafters["folder"], capsys)
    plain = run_json(target, drafters["folder"], capsys, "--spec-type", "none")
    assert plain["speculation"] is None
    assert plain["token_ids"] == found["token_ids"]


def test_compare_finds_tokens_identical(
    target: Path, drafters: dict[str, Path], capsys: Output
) -> None:
    for drafter in drafters.values():
        for policy, type_name in (("auto", "ngram+suffix+dflash"), ("fixed", "dflash")):
            report = run_json(target, drafter, capsys, "--compare", "--spec-policy", policy)
            assert report["identical"] is True
            assert report["drafted"]["speculation"]["type"] == type_name


def test_the_line_after_an_answer_names_block_and_drafts(
    target: Path, drafters: dict[str, Path], capsys: Output
) -> None:
    line = ["run", PROMPT, "-m", str(target), "-md", str(drafters["dflash"]), "-t", "1", "-n", "9"]
    assert main([*line, "--spec-policy", "fixed", "--spec-draft-n-max", "2"]) == 0
    assert ", B 3, K 2" in capsys.readouterr().err
    assert main(line) == 0
    assert ", B 16, K 15" in capsys.readouterr().err
