"""``blockdraft bench speed``: prompts, figures and report."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.bench.gains import PromptRun, average, ends_in_a_loop, summarize
from blockdraft.bench.prompts import BUILTIN, load_prompts
from blockdraft.bench.speed import SpeedExtras, SpeedReport, bench_speed
from blockdraft.bench.subject import Subject
from blockdraft.cli import main
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.speculative import NO_DRAFTS, Proposal, RoundCounter

TinyModel = Callable[..., Path]


def run_of(
    name: str, plain_s: float, drafted_s: float, *, tau: int = 2, is_loop: bool = False
) -> PromptRun:
    """An answer of 10 tokens after the first, in rounds of ``tau``."""
    counter = RoundCounter("ngram", 8)
    for _ in range(10 // tau):
        proposal = Proposal.chain(range(4)) if tau > 1 else NO_DRAFTS
        counter.add_round(proposal, num_accepted=tau - 1, num_tokens=tau)
        counter.add_time(0.001, 0.01)
    category = name.partition("-")[0]
    stats = counter.stats(drafted_s)
    return PromptRun(name, category, 10, plain_s, drafted_s, stats, True, is_loop)


class TestPrompts:
    def test_builtin_has_eight_of_each_category(self) -> None:
        prompts = load_prompts(BUILTIN)
        counts = Counter(prompt.category for prompt in prompts)
        names = ["code", "code-edit", "explanation", "chat", "maths", "summarise-with-quotes"]
        assert counts == dict.fromkeys(names, 8)
        assert len({prompt.prompt for prompt in prompts}) == 48

    def test_a_file_of_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        path.write_text('{"id": "a", "category": "x", "prompt": "hi", "more": 1}\n\n')
        assert [(one.id, one.category, one.prompt) for one in load_prompts(str(path))] == [
            ("a", "x", "hi")
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "has no prompts"),
            ("{", "line 1 is not JSON"),
            ("[1]", "line 1 is not a JSON object"),
            ('{"id": "a", "category": "x"}', "line 1 has no text under 'prompt'"),
            ('{"id": 3, "category": "x", "prompt": "p"}', "line 1 has no text under 'id'"),
            ('{"id":"a","category":"x","prompt":"p"}\n' * 2, "line 2: the id 'a' is taken"),
        ],
        ids=["empty", "no-json", "no-object", "no-prompt", "no-text", "twice"],
    )
    def test_what_is_no_prompt_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "p.jsonl"
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_prompts(str(path))

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="does not exist"):
            load_prompts(str(tmp_path / "none"))
        with pytest.raises(ConfigError, match="is not a file"):
            load_prompts(str(tmp_path))
        (tmp_path / "p").write_bytes(b"\xff")
        with pytest.raises(ConfigError, match="is not UTF-8 text: byte 0"):
            load_prompts(str(tmp_path / "p"))


class TestGains:
    @pytest.mark.parametrize(
        ("token_ids", "expected"),
        [
            ([1, 2, 3] * 16, True),
            ([9] * 47, False),
            (list(range(30)) + [7] * 48, True),
            ([7] * 48 + [8], False),
            (list(range(17)) * 3, False),
            (list(range(16)) * 3, True),
        ],
        ids=["loop", "too-short", "loop-at-the-end", "left-again", "long-period", "longest"],
    )
    def test_loops(self, token_ids: list[int], expected: bool) -> None:
        assert ends_in_a_loop(token_ids) is expected

    def test_rates_of_a_category_are_all_tokens_over_all_seconds(self) -> None:
        found = summarize([run_of("a-1", 1.0, 0.5), run_of("a-2", 3.0, 0.5)])
        assert found.plain_tokens_per_s == pytest.approx(20 / 4)
        assert found.drafted_tokens_per_s == pytest.approx(20 / 1)
        assert found.speedup == pytest.approx(4)
        assert 2 <= found.speedup_low <= 4 <= found.speedup_high <= 6

    def test_tau_is_all_tokens_over_all_rounds_without_loops(self) -> None:
        runs = [run_of("a-1", 1, 1, tau=2), run_of("a-2", 1, 1, tau=1)]
        loop = run_of("a-3", 1, 1, tau=5, is_loop=True)
        found = summarize([*runs, loop])
        assert found.acceptance.tau == pytest.approx(20 / 15)
        assert found.acceptance.rate == pytest.approx(5 / 20)
        assert found.acceptance.by_position == pytest.approx((1, 0, 0, 0))
        assert (found.num_loops, found.num_prompts) == (1, 3)
        assert summarize([loop]).acceptance.tau is None

    def test_a_round_is_split_into_draft_verify_and_other(self) -> None:
        found = summarize([run_of("a-1", 1.0, 0.1)])
        assert found.round_ms == pytest.approx({"draft": 1.0, "verify": 10.0, "other": 9.0})

    def test_overall_gives_each_category_the_same_weight(self) -> None:
        groups = {
            "a": [run_of("a-1", 2.0, 1.0, tau=2)] * 5,
            "b": [run_of("b-1", 4.0, 1.0, tau=5)],
            "c": [run_of("c-1", 3.0, 1.0, is_loop=True)],
        }
        found = average(groups)
        assert found.speedup == pytest.approx(3.0)
        assert found.acceptance.tau == pytest.approx(3.5)
        assert (found.speedup_low, found.speedup_high) == pytest.approx((3.0, 3.0))
        assert (found.num_identical, found.num_prompts, found.num_loops) == (7, 7, 1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "p.jsonl"
    lines = [{"id": f"{i}", "category": "ab"[i % 2], "prompt": "a b " * i} for i in range(1, 4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class TestExtras:
    """What is measured besides the gains."""

    def measure(
        self,
        path: Path,
        prompts: Path,
        *,
        drafting: DraftConfig | None = None,
        **extras: Any,
    ) -> SpeedReport:
        return bench_speed(
            Subject(path, "tiny", 1),
            load_prompts(str(prompts)),
            drafting=drafting or DraftConfig("ngram"),
            max_tokens=12,
            repeats=1,
            extras=SpeedExtras(**extras),
        )

    def test_choices_and_cost_curve_are_always_there(
        self, tiny_model: TinyModel, prompts: Path
    ) -> None:
        report = self.measure(tiny_model(), prompts)
        found = report.to_json()
        assert set(found["categories"]["a"]["choices"]) == {"drafters", "sizes", "mean_nodes"}
        assert sum(found["overall"]["choices"]["drafters"].values()) == pytest.approx(1)
        assert {"1", "2", "16"} <= set(found["verify_ms"])
        assert "gate" not in found["categories"]["a"]
        assert "mean nodes" in report.to_text()

    def test_pairs_are_enough_in_every_category(self, tiny_model: TinyModel, prompts: Path) -> None:
        report = self.measure(tiny_model(), prompts, pairs=5)
        assert {name: gate.num_pairs for name, gate in report.gates.items()} == {"b": 6, "a": 5}
        assert report.repeats == 3  # two prompts of b, three times each; one of a, five times
        assert report.is_met == all(gate.is_met for gate in report.gates.values())
        assert "plain / drafted s" in report.to_text()
        assert report.to_json()["categories"]["a"]["gate"]["pairs"] == 5

    def test_a_pair_counts_the_time_to_the_first_token(
        self, tiny_model: TinyModel, prompts: Path
    ) -> None:
        (run, *_) = self.measure(tiny_model(), prompts, pairs=1).runs
        assert run.pairs[0].plain_s > run.plain_s
        assert run.pairs[0].drafted_s > run.drafted_s

    def test_a_sweep_names_the_best_setting(self, tiny_model: TinyModel, prompts: Path) -> None:
        report = self.measure(tiny_model(), prompts, has_sweep=True)
        rates = report.regrets["a"].tokens_per_s
        assert {"plain", "ngram K1", "ngram K7", "suffix K3"} <= set(rates)
        assert report.is_identical
        assert "regret" in report.to_text()
        found = report.to_json()
        assert found["categories"]["b"]["sweep"]["best"] in rates
        regrets = [one["sweep"]["regret"] for one in found["categories"].values()]
        assert found["overall"]["regret"] == pytest.approx(sum(regrets) / 2)

    def test_drafters_are_measured_by_themselves(
        self, tiny_model: TinyModel, prompts: Path
    ) -> None:
        drafting = DraftConfig("ngram,suffix")
        report = self.measure(tiny_model(), prompts, drafting=drafting, has_lone=True)
        assert set(report.together["a"].speedups) == {"ngram", "suffix"}
        assert report.is_identical
        assert not report.regrets
        assert "together / best" in report.to_text()
        assert report.to_json()["categories"]["b"]["alone"]["best"] in {"ngram", "suffix"}

    def test_wrong_drafters_are_not_compared(self, tiny_model: TinyModel, prompts: Path) -> None:
        message = "--adversary replaces the drafters that --sweep"
        with pytest.raises(ConfigError, match=message):
            self.measure(tiny_model(), prompts, is_adverse=True, has_sweep=True)
        with pytest.raises(ConfigError, match=message):
            self.measure(tiny_model(), prompts, is_adverse=True, has_lone=True)

    def test_wrong_drafts_change_no_token(self, tiny_model: TinyModel, prompts: Path) -> None:
        report = self.measure(tiny_model(), prompts, is_adverse=True)
        assert report.spec_type == "adversary"
        assert report.is_identical

    def test_depths_come_one_after_the_other(self, tiny_model: TinyModel, prompts: Path) -> None:
        path = tiny_model(metadata={"llama.context_length": 1024})
        report = self.measure(path, prompts, depths=(0, 64))
        flat, deep = report.depths
        assert (flat.tokens, deep.tokens) == (0, 64)
        assert deep.prompt_tokens > flat.prompt_tokens + 64
        assert report.runs == flat.runs
        assert [one["depth"] for one in report.to_json()["depths"]] == [0, 64]
        assert "depth" in report.to_text()

    def test_a_depth_beyond_the_context_is_refused_at_once(
        self, tiny_model: TinyModel, prompts: Path
    ) -> None:
        with pytest.raises(ConfigError, match=r"1 at depth 5000 has .* exceed the context"):
            self.measure(tiny_model(), prompts, depths=(0, 5000))


class TestCommand:
    def test_report_has_the_keys_that_others_read(
        self,
        tiny_model: TinyModel,
        prompts: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        out = tmp_path / "out.json"
        line = ["bench", "speed", "-m", str(tiny_model()), "-t", "1", "--prompts", str(prompts)]
        line += ["--max-tokens", "24", "--repeats", "2", "--spec-draft-n-max", "3"]
        line += ["--spec-type", "ngram"]
        assert main([*line, "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        assert {"overall", "categories", "prompts", "command"} <= set(report)
        keys = {
            "plain_tokens_per_s", "drafted_tokens_per_s", "speedup", "speedup_low",
            "speedup_high", "tau", "acceptance_rate", "identical"
        }  # fmt: skip
        assert keys <= set(report["overall"])
        assert sorted(report["categories"]) == ["a", "b"]
        assert all(keys <= set(one) for one in report["categories"].values())
        assert report["overall"]["identical"] == "3/3"
        assert [one["id"] for one in report["prompts"]] == ["1", "2", "3"]
        assert all(one["identical"] for one in report["prompts"])
        assert (report["block_size"], report["type"]) == (4, "ngram")
        shown = capsys.readouterr().out
        assert "ngram, B 4, K 3" in shown
        assert "a round: draft" in shown

    def test_earlier_answers_are_refused(
        self, tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = ["bench", "speed", "-m", str(tiny_model()), "--spec-type", "suffix"]
        assert main([*line, "--spec-suffix-cache", "f"]) == 2
        assert "--spec-suffix-cache would know the answers" in capsys.readouterr().err

    def test_drafts_must_be_on(self, tiny_model: TinyModel, prompts: Path) -> None:
        with pytest.raises(ConfigError, match="drafts nothing"):
            bench_speed(
                Subject(tiny_model(), "tiny", 1),
                load_prompts(str(prompts)),
                drafting=DraftConfig("none"),
                max_tokens=4,
            )
