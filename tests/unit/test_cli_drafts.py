"""Drafting on the command line: flags, what is shown of it, the comparison."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.cli.colour import painter, why_no_colour
from blockdraft.cli.sessions import show_stats
from blockdraft.config import NO_CORPUS, DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.session import Result, TextChunk, Timings
from blockdraft.speculative import Proposal, RoundCounter
from tests.fake_session import FakeSession

Output = pytest.CaptureFixture[str]
DRAFTED = TextChunk("def", (7,), is_drafted=True)
OWN = TextChunk(" f", (8,))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """What every model name loads."""
    fake = FakeSession()
    monkeypatch.setattr("blockdraft.session.Session.load", fake.load)
    monkeypatch.setattr("blockdraft.cli.sessions.find_model", Path)
    return fake


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A standard output that says it is a terminal."""
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return stdout


class TestFlags:
    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--draft-max", "4"], "use --spec-draft-n-max"),
            (["--draft-p-min", "0.5"], "use --spec-draft-p-min"),
            (
                ["--spec-type", "eagle"],
                "'eagle' (choose from 'none', 'ngram', 'suffix', 'dflash', 'draft-simple')",
            ),
            (["-md", "none", "--spec-type", "dflash"], "which -md none turns off"),
            (["-md", "none", "--spec-type", "ngram,draft-simple"], "which -md none turns off"),
            (["--spec-type", "draft-simple"], "is draft-simple, but no model that drafts is given"),
            (["-md", "x", "--spec-type", "ngram"], "ngram, which does not use the drafter x"),
            (["-md", "x", "--spec-type", "suffix"], "suffix, which does not use the drafter x"),
            (
                ["--spec-suffix-cache", "f", "--spec-policy", "fixed"],
                "is f, but spec_type is not given; only suffix looks",
            ),
            (["--spec-type", "ngram", "--spec-suffix-cache", "f"], "but spec_type is ngram; only"),
            (
                ["--spec-type", "ngram", "--spec-draft-p-min", "0.5"],
                "drafts of ngram have no probability",
            ),
            (["-md", "x", "--spec-draft-p-min", "2"], "draft_p_min is 2.0; it must be in [0, 1]"),
            (["--spec-draft-n-max", "0"], "draft_n_max is 0; it must be in [1, 63]"),
            (["--spec-type", "ngram,eagle"], "invalid choice: 'eagle' (choose from 'none', 'ng"),
            (["--spec-type", "ngram,"], "invalid choice: '' (choose from 'none', 'ngram', 'suf"),
            (["--spec-type", "none,ngram"], "is none,ngram; it must be none alone, or some others"),
            (["--spec-type", "ngram,ngram"], "is ngram,ngram; it must be without repetitions"),
            (
                ["--spec-type", "dflash,draft-dflash"],
                "is dflash,dflash; it must be without repetitions",
            ),
            (["-md", "none", "--spec-type", "ngram,dflash"], "which -md none turns off"),
            (["-md", "x", "--spec-type", "ngram,suffix"], "does not use the drafter x"),
            (
                ["--spec-policy", "fixed", "--spec-type", "ngram,dflash"],
                "the policy is fixed, which takes one spec_type, and spec_type is ngram,dflash",
            ),
            (["--spec-policy", "slow"], "invalid choice: 'slow'"),
            (["--spec-draft-tree", "-1"], "draft_tree is -1; it must be in [0, 63]"),
            (["--spec-draft-tree", "64"], "draft_tree is 64; it must be in [0, 63]"),
            (["--compare", "--spec-type", "none"], "--compare needs drafts"),
        ],
    )
    def test_what_cannot_be_honoured_is_named(
        self, flags: list[str], message: str, session: FakeSession, capsys: Output
    ) -> None:
        assert main(["run", "hi", *flags]) == 2
        assert message in capsys.readouterr().err
        assert session.loads == []

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            ([], DraftConfig()),
            (["-md", "auto"], DraftConfig()),
            (["--spec-type", "dflash"], DraftConfig("dflash")),
            (["-md", "none"], DraftConfig("ngram,suffix")),
            (
                ["-md", "none", "--spec-policy", "fixed"],
                DraftConfig("ngram", policy="fixed"),
            ),
            (["--spec-suffix-cache", "f"], DraftConfig(suffix_cache="f")),
            (["--spec-suffix-corpus", "f"], DraftConfig(suffix_corpus="f")),
            (["--spec-suffix-corpus", "none"], DraftConfig(suffix_corpus=NO_CORPUS)),
            (["--spec-suffix-corpus", "auto"], DraftConfig()),
            (["--spec-type", "suffix"], DraftConfig("suffix")),
            (
                ["--spec-type", "suffix", "--spec-suffix-cache", "f", "--spec-draft-p-min", "0.3"],
                DraftConfig("suffix", draft_p_min=0.3, suffix_cache="f"),
            ),
            (["-md", "none", "--spec-type", "none"], DraftConfig("none")),
            (["--spec-type", "none", "-md", "x"], DraftConfig("none", "x")),
            (["-md", "x"], DraftConfig(drafter="x")),
            (["--model-draft", "x", "--spec-type", "dflash"], DraftConfig("dflash", "x")),
            (["--spec-draft-model", "x"], DraftConfig(drafter="x")),
            (["-md", "x", "--spec-type", "draft-simple"], DraftConfig("draft-simple", "x")),
            (["-md", "x", "--spec-type", "draft-dflash"], DraftConfig("dflash", "x")),
            (
                ["-md", "x", "--spec-draft-n-max", "5", "--spec-draft-p-min", "0.3"],
                DraftConfig(drafter="x", draft_n_max=5, draft_p_min=0.3),
            ),
            (["--spec-type", "suffix,draft-dflash"], DraftConfig("suffix,dflash")),
            (["--spec-policy", "fixed"], DraftConfig(policy="fixed")),
            (["--spec-draft-tree", "0"], DraftConfig(draft_tree=0)),
            (["--spec-draft-tree", "63"], DraftConfig(draft_tree=63)),
            (["--spec-trace", "t"], DraftConfig(trace="t")),
        ],
    )
    def test_flags_arrive(
        self, flags: list[str], expected: DraftConfig, session: FakeSession
    ) -> None:
        assert main(["run", "hi", *flags]) == 0
        assert session.loads[0][1]["drafting"] == expected

    @pytest.mark.parametrize(
        ("spec_type", "drafter", "auto", "fixed"),
        [
            ("ngram", None, ("ngram",), ("ngram",)),
            ("suffix", None, ("suffix",), ("suffix",)),
            ("none", None, (), ()),
            (None, "x", ("ngram", "suffix", "dflash"), ("dflash",)),
            ("none", "x", (), ()),
            ("dflash", "x", ("dflash",), ("dflash",)),
        ],
    )
    def test_the_drafter_decides_what_no_flag_does(
        self,
        spec_type: str | None,
        drafter: str | None,
        auto: tuple[str, ...],
        fixed: tuple[str, ...],
    ) -> None:
        assert DraftConfig(spec_type, drafter).kinds == auto
        assert DraftConfig(spec_type, drafter, policy="fixed").kinds == fixed

    @pytest.mark.parametrize("policy", ["auto", "fixed"])
    def test_the_target_decides_what_nothing_else_does(self, policy: str) -> None:
        asked = DraftConfig(policy=policy)
        assert asked.is_open
        corpus = NO_CORPUS if policy == "auto" else None
        whole = DraftConfig(drafter="x", policy=policy, suffix_corpus=corpus)
        assert asked.settled("x") == whole
        free = "ngram,suffix" if policy == "auto" else "ngram"
        assert asked.settled(None) == DraftConfig(free, policy=policy, suffix_corpus=corpus)
        asked = DraftConfig("dflash", policy=policy)
        assert asked.settled("x") == DraftConfig("dflash", "x", policy=policy)
        with pytest.raises(ConfigError, match="no drafter is given, and none comes with"):
            asked.settled(None)

    @pytest.mark.parametrize(
        "asked",
        [
            DraftConfig("dflash", "x"),
            DraftConfig("ngram"),
            DraftConfig(drafter="x", policy="fixed"),
            DraftConfig(drafter="x", suffix_corpus="c"),
            DraftConfig("suffix", suffix_corpus=NO_CORPUS),
        ],
    )
    def test_what_is_given_leaves_nothing_open(self, asked: DraftConfig) -> None:
        assert not asked.is_open
        assert asked.settled("y", "d") is asked

    @pytest.mark.parametrize("spec_type", [None, "suffix", "ngram,suffix"])
    def test_a_corpus_is_taken_from_what_is_shipped(self, spec_type: str | None) -> None:
        asked = DraftConfig(spec_type)
        assert asked.settled(None, "d").suffix_corpus == "d"
        assert asked.settled(None).suffix_corpus == NO_CORPUS
        assert not asked.settled(None).is_open

    def test_a_corpus_is_for_suffixes(self) -> None:
        with pytest.raises(ConfigError, match="suffix_corpus is c, but spec_type is ngram"):
            DraftConfig("ngram", suffix_corpus="c")
        DraftConfig("ngram", suffix_corpus=NO_CORPUS)

    def test_bench_takes_a_drafter(self, tiny_model: Callable[..., Path], capsys: Output) -> None:
        model = str(tiny_model())
        assert main(["bench", "speed", "-m", model, "-md", "nowhere.gguf"]) == 2
        assert "there is no file nowhere.gguf" in capsys.readouterr().err


class TestStats:
    def result(self, *, with_drafts: bool) -> Result:
        counter = RoundCounter("ngram", 8)
        counter.add_round(Proposal.chain((1, 2, 3, 4)), num_accepted=3, num_tokens=4)
        counter.add_round(Proposal.chain((1, 2, 3, 4)), num_accepted=0, num_tokens=1)
        stats = counter.stats(1.0) if with_drafts else None
        return Result("x", (1,) * 6, "stop", 5, Timings(3, 0.5, 6, 0.5, 10.0, 0.6), stats)

    def test_one_line_says_what_drafting_gained(self, capsys: Output) -> None:
        show_stats(self.result(with_drafts=True))
        assert capsys.readouterr().err == (
            "seed 5, prompt 3 tokens in 0.50 s, answer 6 tokens, 10.0 tokens/s, tau 2.50,"
            " acceptance 38%, 2 rounds, B 8, K 7, first token after 0.60 s\n"
        )

    def test_nothing_is_said_without_drafts(self, capsys: Output) -> None:
        show_stats(self.result(with_drafts=False))
        assert "tau" not in capsys.readouterr().err


class TestColour:
    def test_accepted_drafts_are_green(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = as_terminal(monkeypatch)
        session.answers = [[DRAFTED, OWN]]
        main(["run", "hi", "--show-draft"])
        assert terminal.getvalue() == "\x1b[32mdef\x1b[0m f\n"

    def test_run_shows_none_unless_asked(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        terminal = as_terminal(monkeypatch)
        session.answers = [[DRAFTED, OWN]]
        main(["run", "hi"])
        assert terminal.getvalue() == "def f\n"

    def test_a_pipe_gets_none_and_the_user_is_told(
        self, session: FakeSession, capsys: Output
    ) -> None:
        session.answers = [[DRAFTED]]
        main(["run", "hi", "--show-draft"])
        shown = capsys.readouterr()
        assert shown.out == "def\n"
        assert "--show-draft shows no colours: the output is not a terminal" in shown.err

    def test_json_gets_none(self, session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = as_terminal(monkeypatch)
        session.answers = [[DRAFTED]]
        main(["run", "hi", "--show-draft", "--json"])
        assert json.loads(terminal.getvalue())["text"] == "def"

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [([], "\x1b[32mdef\x1b[0m f\n"), (["--no-show-draft"], "def f\n")],
        ids=["default", "off"],
    )
    def test_chat_shows_them(
        self,
        flags: list[str],
        expected: str,
        session: FakeSession,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        terminal = as_terminal(monkeypatch)
        lines = iter(["a"])

        def read(prompt: str = "") -> str:
            line = next(lines, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr("builtins.input", read)
        session.answers = [[DRAFTED, OWN]]
        assert main(["chat", *flags]) == 0
        assert terminal.getvalue() == expected

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [("NO_COLOR", "1", "NO_COLOR is set"), ("TERM", "dumb", "TERM is dumb")],
    )
    def test_environment_turns_colours_off(
        self,
        name: str,
        value: str,
        reason: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        as_terminal(monkeypatch)
        assert why_no_colour(sys.stdout) is None
        monkeypatch.setenv(name, value)
        assert why_no_colour(sys.stdout) == reason

    def test_text_held_back_has_no_codes(self) -> None:
        assert painter(in_colour=True)(TextChunk("", (7,), is_drafted=True)) == ""


class TestCompare:
    def test_same_tokens_are_identical(self, session: FakeSession, capsys: Output) -> None:
        session.answers = [["ab"], ["a", "b"]]
        assert main(["run", "hi", "--compare", "-n", "9"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("ab\n\nway ")
        assert shown.endswith("speed-up 1.00, tokens identical\n")
        (_, drafted), (_, plain) = session.calls
        assert drafted["params"].seed is None
        assert plain["params"].seed == 4242  # the seed that the first answer drew
        assert (plain["draft"], plain["max_tokens"]) == (False, 9)

    def test_other_tokens_fail(self, session: FakeSession, capsys: Output) -> None:
        session.answers = [["ab"], ["ac"]]
        assert main(["run", "hi", "--compare"]) == 1
        assert "tokens NOT identical" in capsys.readouterr().out

    @pytest.mark.parametrize("place", [0, 1])
    def test_ctrl_c_ends_either_half(self, place: int, session: FakeSession) -> None:
        session.answers = [["ab"], ["ab"]]
        session.answers[place] = ["a", KeyboardInterrupt()]
        assert main(["run", "hi", "--compare"]) == 130

    def test_json_of_a_tiny_model(self, tiny_model: Callable[..., Path], capsys: Output) -> None:
        line = ["run", "the the the", "-m", str(tiny_model()), "-n", "12", "-t", "1"]
        assert main([*line, "--compare", "--json", "--spec-draft-n-max", "3"]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert list(report) == ["plain", "drafted", "speedup", "identical"]
        assert report["identical"] is True
        assert report["plain"]["token_ids"] == report["drafted"]["token_ids"]
        assert report["plain"]["speculation"] is None
        assert list(report["drafted"]["speculation"]) == [
            "type", "tau", "acceptance_rate", "rounds", "accepted_by_position", "block_size"
        ]  # fmt: skip
        assert report["drafted"]["speculation"]["block_size"] == 4
