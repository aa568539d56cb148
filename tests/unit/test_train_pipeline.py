"""``blockdraft train`` as one command: all steps, what it tells, how it goes on."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdraft.bench.prompts import load_prompts
from blockdraft.cli import main
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.train.checkpoint import load_checkpoint
from blockdraft.train.recipe import STEPS, Plan, Recipe, begin, go_on, save_plan
from blockdraft.train.shards import Corpus
from tests.marks import with_slow

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


HELD_OUT = "p23"  # a share of 2 % holds it out
IDS = (*(f"p{i}" for i in range(11)), HELD_OUT)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    origin = {"category": "c", "source": "s", "licence": "L"}
    lines = [{"id": name, "prompt": f"the {name}", **origin} for name in IDS]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    # So many tokens that short answers leave one for the mask.
    return tiny_model("llama", "Q8_0", layers=7, vocab_size=1500)


def command_of(target: Path, prompts: Path, folder: Path) -> list[str]:
    """What trains in ``folder``, two steps on a dozen answers."""
    flags = ["--steps", "2", "--max-tokens", "12", "--type", "q8_0", "-t", "1"]
    return ["train", "-m", str(target), "-o", str(folder), "--prompts", str(prompts), *flags]


@pytest.fixture
def command(target: Path, prompts: Path, tmp_path: Path) -> list[str]:
    return command_of(target, prompts, tmp_path / "t")


@pytest.fixture(scope="module")
def whole(
    target: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, str]:
    """A training from the first to the last step: its folder, what it printed, what it told."""
    folder = tmp_path_factory.mktemp("whole") / "t"
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert main(command_of(target, prompts, folder)) == 0
    return folder, out.getvalue(), err.getvalue()


@pytest.fixture
def resume(tmp_path: Path) -> list[str]:
    return ["train", "-o", str(tmp_path / "t"), "--resume", "-t", "1"]


def provenance(folder: Path) -> Any:
    return json.loads((folder / "drafter" / "provenance.json").read_text())


def steps_of(folder: Path) -> int:
    return load_checkpoint(folder / "run" / "checkpoint.pt").progress.steps


def interrupt(*args: object, **options: object) -> Any:
    raise KeyboardInterrupt


# --- the command


def test_one_command_makes_a_drafter(
    whole: tuple[Path, str, str], target: Path, prompts: Path, capsys: Output
) -> None:
    folder, out, err = whole
    told = [line for line in err.splitlines() if line.startswith("blockdraft: ")]
    assert told[0].startswith("blockdraft: DFlash 2 drafter of 3 layers: ")
    assert "fit: 2 steps, at least " in told[1]
    assert [line for line in told if ": step " in line] == [
        f"blockdraft: step {n} of 4, {name}" for n, name in enumerate(STEPS, 1)
    ]
    assert f"{folder / 'drafter'}: try it with blockdraft run PROMPT -m " in out
    facts = provenance(folder)
    assert facts["run"]["progress"]["steps"] == 2
    assert facts["corpus"]["is_as_the_run_read_it"] is True
    assert facts["corpus"]["sources"] == [{"source": "s", "licence": "L", "prompts": len(IDS)}]
    assert facts["evaluation"]["evaluated"] == "drafter-q8_0.gguf in this folder"
    assert facts["evaluation"]["overall"]["tau"] >= 1
    assert facts["command"][0] == "blockdraft"
    assert [one.id for one in load_prompts(str(folder / "eval_prompts.jsonl"))] == [HELD_OUT]
    names = {path.name for path in folder.iterdir()}
    assert names == {"corpus", "run", "drafter", "eval_prompts.jsonl", "training.json"}
    assert main(command_of(target, prompts, folder)) == 2
    assert "has a training already; --resume goes on with it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "step",
    with_slow(
        ["make_corpus", "evaluate_drafter", "export_drafter"], {"make_corpus", "export_drafter"}
    ),
)
def test_what_was_interrupted_goes_on(
    step: str,
    command: list[str],
    resume: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(f"blockdraft.train.pipeline.{step}", interrupt)
        assert main(command) == 130
    capsys.readouterr()
    assert main(resume) == 0
    done = [line for line in capsys.readouterr().err.splitlines() if line.endswith(": done")]
    assert len(done) == {"make_corpus": 0, "evaluate_drafter": 2, "export_drafter": 3}[step]
    assert provenance(tmp_path / "t")["evaluation"] is not None


def test_an_interrupted_fit_ends_as_one_that_was_not(
    whole: tuple[Path, str, str],
    command: list[str],
    resume: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 0

    @contextmanager
    def working(folder: Path) -> Iterator[None]:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        yield

    with monkeypatch.context() as patch:
        patch.setattr("blockdraft.cli.train_whole.working", working)
        assert main(command) == 130
    assert steps_of(tmp_path / "t") == 1
    assert main(resume) == 0
    first, second = (folder / "drafter" for folder in (whole[0], tmp_path / "t"))
    for name in ("model.safetensors", "drafter-q8_0.gguf"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.slow
def test_a_training_can_be_made_longer_and_its_corpus_larger(
    command: list[str],
    resume: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    assert main([*command, "--limit", "10"]) == 0
    folder = tmp_path / "t"
    with monkeypatch.context() as patch:
        patch.setattr("blockdraft.train.pipeline.evaluate_drafter", interrupt)
        assert main([*resume, "--steps", "3"]) == 130
    assert steps_of(folder) == 3
    assert "step 1 of 4, corpus: done" in capsys.readouterr().err
    assert main([*resume, "--steps", "4", "--limit", "12"]) == 0
    assert len(Corpus.open(folder / "corpus")) == 12
    assert "the corpus has changed since the checkpoint" in capsys.readouterr().err
    assert provenance(folder)["run"]["progress"]["steps"] == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["train"], "train needs -o DIR, or one of the steps"),
        (["train", "-o", "x"], "there are no prompts: name a file or hf:ORG/DATASET"),
        (["train", "-o", "x", "--prompts", "p", "--hours", "-1"], "the budget is -1.0"),
        (["train", "-o", "x", "--resume"], "there is no training to go on with"),
        (["train", "-o", "x", "--resume", "--seed", "1"], "--resume goes on with the --seed of"),
        (["train", "-m", "x", "fit", "--corpus", "c"], "the following arguments are required"),
        (["train", "-o", "x", "export", "r", "-o", "y"], "-o must come after the step export"),
        (["train", "--hours", "1", "--steps", "2"], "not allowed with argument"),
        (["train", "--reusme"], "there is no flag --reusme; did you mean --resume?"),
    ],
)
def test_wrong_flags_are_named(
    line: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_several_processes_are_refused(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command) == 2
    assert "use train fit" in capsys.readouterr().err


def test_a_wrong_file_can_be_corrected(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    at = command.index("--prompts") + 1
    assert main([*command[:at], "nowhere", *command[at + 1 :]]) == 2
    assert "the prompts nowhere does not exist" in capsys.readouterr().err
    monkeypatch.setattr("blockdraft.train.pipeline.make_corpus", interrupt)
    assert main(command) == 130  # it has begun


# --- recipes


def test_a_recipe_comes_back_from_its_folder(tmp_path: Path) -> None:
    recipe = Recipe("m", ("a", "b"), excluded_sources=("x*",), limit=5, hours=2.5, seed=3)
    assert begin(tmp_path / "t", recipe) == Plan(recipe)
    save_plan(tmp_path / "t", Plan(recipe, ("corpus",)))
    assert go_on(tmp_path / "t") == Plan(recipe, ("corpus",))
    assert recipe.corpus_config().selection.excluded_sources == ("x*",)
    assert recipe.training_settings().budget.hours == 2.5


@pytest.mark.parametrize(
    ("changes", "done"),
    [
        ({}, STEPS),
        ({"device": "cuda"}, STEPS),
        ({"hours": 3.0}, STEPS),
        ({"hours": 4.0}, ("corpus",)),
        ({"steps": 9}, ("corpus",)),
        ({"limit": 7}, ()),
    ],
    ids=str,
)
def test_a_change_makes_steps_unfinished(
    changes: dict[str, Any], done: tuple[str, ...], tmp_path: Path
) -> None:
    save_plan(tmp_path, Plan(Recipe("m", ("a",)), STEPS))
    assert go_on(tmp_path, **changes).done == done


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"format_version": 2}', '{"format_version": 1, "recipe": {}}'):
        (tmp_path / "training.json").write_text(text)
        with pytest.raises(FileFormatError, match=r"training\.json is damaged"):
            go_on(tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        go_on(tmp_path / "other")
