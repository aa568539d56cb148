"""``blockdraft train eval``: the figures, the sets of prompts, flags and output."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.bench.acceptance import Acceptance, average_acceptance
from blockdraft.bench.evaluation import DrafterReport, drafter_sha256, evaluate_drafter
from blockdraft.bench.gains import ends_in_a_loop
from blockdraft.bench.prompts import BUILTIN, SpeedPrompt, load_prompts
from blockdraft.bench.subject import Subject
from blockdraft.cli import main
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.session import Session
from blockdraft.train import run_folder, trainer
from blockdraft.train.eval_set import eval_set, held_out_prompts, write_prompts
from blockdraft.train.prompts import read_prompts
from blockdraft.train.shards import Corpus, CorpusSequence
from tests.native_dflash import network

Output = pytest.CaptureFixture[str]
GREEDY = SamplingParams(temperature=0, seed=0)
PROMPTS = (
    SpeedPrompt("a-1", "a", "the rain"),
    SpeedPrompt("a-2", "a", "in the the in"),
    SpeedPrompt("b-1", "b", "on"),
    SpeedPrompt("b-2", "b", "x" * 2100),
)


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("llama", "Q8_0", layers=5)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = network(is_dflash2=True, is_causal=False, top_k=64)
    return shape.write_folder(tmp_path_factory.mktemp("drafters") / "d2")


def evaluate(target: Path, drafter: Path, **options: Any) -> DrafterReport:
    settings = {"max_tokens": 64, **options}
    return evaluate_drafter(Subject(target, "tiny", 1), drafter, PROMPTS, **settings)


# --- figures


def test_figures_are_those_of_real_answers(target: Path, drafter: Path) -> None:
    report = evaluate(target, drafter)
    drafting = DraftConfig(drafter=str(drafter), policy="fixed")
    session = Session.load(target, num_threads=1, drafting=drafting)
    taus, loops = {}, 0
    for category in "ab":
        rounds = tokens = 0
        for prompt in PROMPTS[:3]:
            found = session.generate(prompt.prompt, params=GREEDY, max_tokens=64)
            assert found.stats is not None
            if prompt.category == category and not ends_in_a_loop(found.token_ids):
                rounds += found.stats.num_rounds
                tokens += found.stats.num_tokens
            elif prompt.category == category:
                loops += 1
        taus[category] = tokens / rounds if rounds else None
    assert {name: one.acceptance.tau for name, one in report.categories.items()} == taus
    known = [tau for tau in taus.values() if tau is not None]
    assert max(known) > 1
    assert report.overall.acceptance.tau == pytest.approx(sum(known) / len(known))
    assert (report.overall.num_prompts, report.overall.num_loops) == (3, loops)
    assert report.skipped == ("b-2",)
    assert report.block_size == 4


def test_an_average_gives_categories_the_same_weight() -> None:
    found = average_acceptance(
        [
            Acceptance(3.0, 0.5, (0.9, 0.6)),
            Acceptance(2.0, 0.25, (0.5,)),
            Acceptance(None, None, ()),
        ]
    )
    assert found == Acceptance(2.5, 0.375, (0.7, 0.6))


def test_the_number_of_drafts_is_fixed(target: Path, drafter: Path) -> None:
    report = evaluate(target, drafter, num_draft_tokens=2)
    assert report.block_size == 3
    for answer in report.answers:
        full = [2] * (answer.stats.num_rounds - 2)  # the last rounds have fewer tokens to write
        assert answer.stats.num_drafted >= sum(full)


def test_every_prompt_too_long_is_refused(target: Path, drafter: Path) -> None:
    with pytest.raises(ConfigError, match="no prompt has room for 2048 tokens"):
        evaluate(target, drafter, max_tokens=2048)


def test_time_left_is_told(target: Path, drafter: Path) -> None:
    told: list[str] = []
    ticks: Iterator[float] = iter(range(0, 6000, 60))
    evaluate(target, drafter, max_tokens=2, notify=told.append, clock=lambda: next(ticks))
    assert told == ["1 of 3: a-1", "2 of 3: a-2, 2 min left", "3 of 3: b-1, 1 min left"]


def test_the_weights_have_a_checksum(drafter: Path, tmp_path: Path) -> None:
    alone = tmp_path / "x.gguf"
    alone.write_bytes((drafter / "model.safetensors").read_bytes())
    assert drafter_sha256(drafter) == drafter_sha256(alone)
    alone.write_bytes(b"other")
    assert drafter_sha256(drafter) != drafter_sha256(alone)


# --- sets of prompts


def write_lines(path: Path, lines: list[dict[str, str]]) -> None:
    text = "\n".join(map(json.dumps, lines))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of benchmark prompts: 30 of each source, two of them in the quick set."""
    lines = [
        {"id": f"{source}-{i}", "category": source[0], "source": source, "prompt": f"{source} {i}"}
        for source in ("humaneval", "mbpp-sanitized-test", "gsm8k-test", "mt-bench", "ifeval")
        for i in range(30)
    ]
    write_lines(tmp_path / "bench.jsonl.gz", lines)
    write_lines(tmp_path / "bench_quick.jsonl", [lines[0], lines[-1]])
    return tmp_path


def test_the_full_set_has_twenty_more_of_each_source(data: Path) -> None:
    found = eval_set("full", data)
    assert len({prompt.id for prompt in found}) == len(found) == 82
    assert [prompt.id for prompt in found[:2]] == ["humaneval-0", "ifeval-29"]
    counts = Counter(prompt.id.rpartition("-")[0] for prompt in found[2:])
    assert counts == dict.fromkeys(
        ["humaneval", "mbpp-sanitized-test", "gsm8k-test", "mt-bench"], 20
    )
    assert found == eval_set("full", data)
    assert found[:2] == eval_set("quick", data)


def test_a_set_with_too_few_prompts_is_refused(data: Path) -> None:
    write_lines(data / "bench.jsonl.gz", [{"prompt": "x", "source": "humaneval"}])
    with pytest.raises(ConfigError, match="has 1 more prompts of humaneval, not 20"):
        eval_set("full", data)
    with pytest.raises(ConfigError, match="is 'named'; it must be quick or full"):
        eval_set("named", data)


def test_held_out_prompts_are_those_that_a_run_leaves_out(tmp_path: Path) -> None:
    lines = [{"id": f"p{i}", "category": "ab"[i > 90], "prompt": f"{i}"} for i in range(100)]
    write_lines(tmp_path / "p.jsonl", lines)
    token_ids = np.array([1, 2], np.int32)
    corpus = Corpus({}, [CorpusSequence(token_ids, 1, "a", line["id"]) for line in lines])
    files = [read_prompts(str(tmp_path / "p.jsonl"))]
    every = held_out_prompts(corpus, 0.4, files, limit=100)
    assert {one.id for one in every} == {one.prompt_id for one in corpus.split(0.4)[1]}
    few = held_out_prompts(corpus, 0.4, files, limit=4)
    assert Counter(one.category for one in few) == {"a": 2, "b": 2}
    assert held_out_prompts(corpus, 0.0, files, limit=4) == ()


def test_prompts_come_back_from_their_file(tmp_path: Path) -> None:
    prompts = (SpeedPrompt("1", "é", "two\u2028lines\n"), SpeedPrompt("2", "b", "x"))
    write_prompts(tmp_path / "p.jsonl", prompts)
    assert load_prompts(str(tmp_path / "p.jsonl")) == prompts


# --- the folder of a run


def test_names_are_the_trainers() -> None:
    assert run_folder.CHECKPOINT == trainer.CHECKPOINT
    assert run_folder.DRAFTER == trainer.DRAFTER
    assert run_folder.METRICS == trainer.METRICS


def test_steps_that_were_made_again_count_once(tmp_path: Path) -> None:
    # Records at 10 and 20, a crash, and the same again from the checkpoint after step 12.
    made = [("evaluation", 0), ("train", 10), ("evaluation", 10), ("train", 20)]
    again = [("evaluation", 12), ("train", 20), ("train", 30), ("evaluation", 30)]
    lines = [{"kind": kind, "step": step, "n": n} for n, (kind, step) in enumerate(made + again)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = {
        kind: [(one["step"], one["n"]) for one in run_folder.read_metrics(tmp_path, kind)]
        for kind in ("train", "evaluation")
    }
    assert found["train"] == [(10, 1), (20, 5), (30, 6)]
    assert found["evaluation"] == [(0, 0), (10, 2), (12, 4), (30, 7)]


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    assert run_folder.last_evaluation(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n{"kin')
    with pytest.raises(FileFormatError, match=r"metrics\.jsonl, line 2, is damaged"):
        run_folder.last_evaluation(tmp_path)


# --- the command


@pytest.fixture
def command(target: Path, drafter: Path, tmp_path: Path) -> list[str]:
    """What evaluates a run in ``run`` on two prompts."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "drafter").symlink_to(drafter)
    record = {"kind": "evaluation", "survival": [0.5, 0.25]}
    records = [{**record, "step": step, "tau": tau} for step, tau in ((0, 1.0), (9, 1.75))]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    write_prompts(tmp_path / "prompts.jsonl", PROMPTS[:2])
    prompts = ["--prompts", str(tmp_path / "prompts.jsonl"), "--max-tokens", "24"]
    return ["train", "eval", "-m", str(target), "-md", str(run), "-t", "1", *prompts]


def test_a_run_is_evaluated(command: list[str], tmp_path: Path, capsys: Output) -> None:
    assert main([*command, "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "B 4, K 3, greedy, 24 tokens at most" in shown.out
    assert "teacher-forced, end of the run: tau 1.75; by position 50% 25%" in shown.out
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["overall"]["prompts"] == 2
    assert report["categories"].keys() == {"a"}
    assert report["teacher_forced"]["tau"] == 1.75
    assert report["speed"] is None
    assert report["drafter_sha256"] == drafter_sha256(tmp_path / "run" / "drafter")
    assert report["command"][0] == "blockdraft"


def test_the_gap_is_explained(command: list[str], tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "out.json"
    assert main([*command, "--teacher-forced", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    report = json.loads(out.read_text())
    forced, real = report["same_answers"]["tau"], report["overall"]["tau"]
    assert f"teacher-forced, the same answers: tau {forced:.2f} (a {forced:.2f})" in shown
    assert f"{forced - 1.75:+.2f} from the run's 1.75" in shown
    assert f"{real - forced:+.2f} to real decoding's {real:.2f}" in shown


def test_it_can_be_timed(command: list[str], tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "out.json"
    assert main([*command, "--timed", "--repeats", "1", "--json", str(out)]) == 0
    assert "speed-up" in capsys.readouterr().out
    speed = json.loads(out.read_text())["speed"]
    assert (speed["type"], speed["overall"]["identical"]) == ("ngram+suffix+dflash", "2/2")


def test_a_set_is_used(
    command: list[str], data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    seen: list[Any] = []

    def record(subject: Subject, drafter: Path, prompts: Any, **options: Any) -> None:
        seen.append((len(prompts), options["num_draft_tokens"]))
        raise ConfigError("enough")

    monkeypatch.setattr("blockdraft.cli.train_eval.evaluate_drafter", record)
    at = command.index("--prompts")
    start = command[:at]
    folder = ["--bench-data", str(data)]
    assert main([*start, *folder, "--spec-draft-n-max", "2"]) == 2
    assert main([*start, *folder, "--eval-set", "quick"]) == 2
    assert main(start) == 2
    assert seen == [(82, 2), (2, None), (len(load_prompts(BUILTIN)), None)]
    capsys.readouterr()
    assert main([*start, "--eval-set", "quick"]) == 2
    assert "--eval-set quick needs --bench-data DIR" in capsys.readouterr().err
    assert main([*command, *folder]) == 2
    assert "--bench-data is for --eval-set, not for --prompts" in capsys.readouterr().err
