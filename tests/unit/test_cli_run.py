"""``blockdraft run``: where the prompt comes from, what is written where."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.config import DraftConfig, SamplingParams
from tests.fake_session import FakeSession

Output = pytest.CaptureFixture[str]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """What every model name loads."""
    fake = FakeSession()
    monkeypatch.setattr("blockdraft.session.Session.load", fake.load)
    monkeypatch.setattr("blockdraft.cli.sessions.find_model", Path)
    return fake


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes, *, is_terminal: bool = False) -> None:
    """Put ``data`` on standard input."""
    stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    monkeypatch.setattr(stdin, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stdin", stdin)


class TestPrompt:
    def test_argument(self, session: FakeSession) -> None:
        assert main(["run", "hello"]) == 0
        assert session.calls[0][0] == "hello"

    def test_file_without_its_last_newline(self, session: FakeSession, tmp_path: Path) -> None:
        (tmp_path / "p.txt").write_text("a\nb\n\n")
        main(["run", "-f", str(tmp_path / "p.txt")])
        assert session.calls[0][0] == "a\nb\n"

    @pytest.mark.parametrize("arguments", [[], ["-"]])
    def test_standard_input(
        self, arguments: list[str], session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe(monkeypatch, "grüß\r\n".encode())
        main(["run", *arguments])
        assert session.calls[0][0] == "grüß"

    def test_argument_leaves_standard_input_alone(
        self, session: FakeSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe(monkeypatch, b"not this")
        main(["run", "this"])
        assert session.calls[0][0] == "this"

    def test_system_turn_comes_first(self, session: FakeSession) -> None:
        main(["run", "hi", "-sys", "be brief"])
        assert session.calls[0][0] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi"},
        ]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gemma3-270m"], "the prompt is the model gemma3-270m: give a model with -m"),
            (["hi", "-f", "x.txt"], "two prompts: 'hi' on the command line and the file x.txt"),
            (["-f", "no-such.txt"], "the prompt file no-such.txt does not exist"),
            (["-f", "/"], "the prompt file / is not a file"),
            ([""], "the prompt is empty"),
            (["\udcff"], "the prompt is not valid UTF-8"),
            (["hi", "--raw", "-sys", "x"], "--system-prompt needs the chat template that --raw"),
            (["hi", "--stop", ""], "--stop has an empty text"),
            (["hi", "-n", "0"], "-n is 0; it must be -1"),
            (["hi", "-n", "-2"], "-2 is below the smallest allowed, -1"),
            (["hi", "-t", "0"], "argument -t/--threads: 0 is below the smallest allowed, 1"),
            (["hi", "-c", "many"], "argument -c/--ctx-size: invalid integer value: 'many'"),
            (["hi", "--temp", "-1"], "temperature is -1.0; it must be in [0, 100]"),
            (["hi", "--temp", "nan"], "temperature is nan"),
            (["hi", "--top-p", "2"], "top_p is 2.0; it must be in (0, 1]"),
            (["hi", "--seed", "-5"], "seed is -5"),
            (["hi", "--isa", "neon"], "invalid choice: 'neon'"),
            (["two", "words"], "unexpected argument 'words'; text with spaces needs quotes"),
        ],
    )
    def test_what_cannot_be_honoured_is_named(
        self, arguments: list[str], message: str, session: FakeSession, capsys: Output
    ) -> None:
        assert main(["run", *arguments]) == 2
        shown = capsys.readouterr()
        assert message in shown.err
        assert shown.out == ""
        assert session.loads == []

    @pytest.mark.parametrize(
        ("data", "is_terminal", "message"),
        [
            (b"", False, "standard input is empty"),
            (b"ab\xff", False, "standard input is not UTF-8 text: byte 2 is wrong"),
            (b"", True, "there is no prompt: give PROMPT, -f FILE, or text on standard input"),
        ],
    )
    def test_bad_standard_input(
        self,
        data: bytes,
        is_terminal: bool,
        message: str,
        session: FakeSession,
        capsys: Output,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pipe(monkeypatch, data, is_terminal=is_terminal)
        assert main(["run"]) == 2
        assert message in capsys.readouterr().err

    def test_system_turn_needs_a_template(self, session: FakeSession, capsys: Output) -> None:
        session.tokenizer.chat_template = None
        assert main(["run", "hi", "-m", "base", "-sys", "x"]) == 2
        assert "--system-prompt needs a chat template; base has none" in capsys.readouterr().err


class TestFlags:
    def test_defaults_are_llama_cpps(self, session: FakeSession) -> None:
        main(["run", "hi"])
        assert session.calls[0][1] == {
            "params": SamplingParams(
                temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_last_n=64
            ),
            "max_tokens": None,
            "stop": [],
            "raw": None,
        }
        settings = {
            "num_threads": None,
            "ctx_size": None,
            "max_cache_bytes": None,
            "isa": None,
            "drafting": DraftConfig(),
            "cache_dir": None,
        }
        assert session.loads == [(Path("smollm2-135m"), settings)]

    def test_every_flag_arrives(self, session: FakeSession) -> None:
        line = (
            "hi -m m.gguf -n 5 -c 64 -t 2 --temp 0 --top-k 1 --top-p 0.5 --min-p 0.1"
            " --repeat-penalty 1.1 --repeat-last-n -1 --presence-penalty 0.2"
            " --frequency-penalty 0.3 -s 7 --stop a --stop b --raw --isa scalar"
            " --spec-type ngram --spec-draft-n-max 3"
        )
        main(["run", *line.split()])
        params = SamplingParams(0, 1, 0.5, 0.1, 1.1, 0.2, 0.3, -1, 7)
        assert session.calls[0][1] == {
            "params": params,
            "max_tokens": 5,
            "stop": ["a", "b"],
            "raw": True,
        }
        settings = {
            "num_threads": 2,
            "ctx_size": 64,
            "max_cache_bytes": None,
            "isa": "scalar",
            "drafting": DraftConfig("ngram", draft_n_max=3),
            "cache_dir": None,
        }
        assert session.loads == [(Path("m.gguf"), settings)]

    def test_seed_of_minus_one_is_drawn(self, session: FakeSession) -> None:
        main(["run", "hi", "--seed", "-1"])
        assert session.calls[0][1]["params"].seed is None


class TestOutput:
    def test_text_alone_is_on_standard_output(self, session: FakeSession, capsys: Output) -> None:
        session.answers = [["Hel", "lo"]]
        main(["run", "hi"])
        shown = capsys.readouterr()
        assert shown.out == "Hello\n"
        assert shown.err == (
            "seed 4242, prompt 3 tokens in 0.50 s, answer 2 tokens, 8.0 tokens/s,"
            " first token after 0.62 s\n"
        )

    @pytest.mark.parametrize("chunks", [["a\n"], ["a\n", ""]])
    def test_no_second_newline(
        self, chunks: list[str], session: FakeSession, capsys: Output
    ) -> None:
        session.answers = [chunks]
        main(["run", "hi"])
        assert capsys.readouterr().out == "a\n"

    def test_json_has_the_frozen_keys(self, session: FakeSession, capsys: Output) -> None:
        session.answers = [["x"]]
        main(["run", "hi", "--json"])
        shown = capsys.readouterr()
        assert json.loads(shown.out) == {
            "text": "x",
            "token_ids": [7, 8],
            "finish_reason": "stop",
            "seed": 4242,
            "timings": {
                "prompt_tokens": 3,
                "prompt_s": 0.5,
                "predicted_tokens": 2,
                "predicted_s": 0.25,
                "tokens_per_s": 8.0,
                "ttft_s": 0.625,
                "cached_tokens": 0,
            },
            "speculation": None,
        }
        assert shown.err == ""

    def test_ctrl_c_keeps_what_was_written(self, session: FakeSession, capsys: Output) -> None:
        session.answers = [["par", KeyboardInterrupt()]]
        assert main(["run", "hi"]) == 130
        shown = capsys.readouterr()
        assert shown.out == "par\n"
        assert shown.err.startswith("seed 4242")
        assert shown.err.endswith("stopped\n")

    def test_ctrl_c_still_prints_the_object(self, session: FakeSession, capsys: Output) -> None:
        session.answers = [["par", KeyboardInterrupt()]]
        assert main(["run", "hi", "--json"]) == 130
        assert json.loads(capsys.readouterr().out)["finish_reason"] == "cancelled"


class TestTinyModel:
    """The same command with a real, tiny model."""

    @pytest.fixture
    def run(self, tiny_model: Callable[..., Path], capsys: Output) -> Callable[..., Any]:
        def call(*flags: str) -> Any:
            line = ["run", "the", "-m", str(tiny_model()), "-n", "6", "-t", "1", "--json", *flags]
            assert main(line) == 0
            return json.loads(capsys.readouterr().out)

        return call

    def test_seed_repeats_the_answer(self, run: Callable[..., Any]) -> None:
        first = run()
        again = run("--seed", str(first["seed"]))
        assert again["token_ids"] == first["token_ids"]
        assert 1 <= len(first["token_ids"]) <= 6

    def test_too_small_a_context_is_one_line(
        self, tiny_model: Callable[..., Path], capsys: Output
    ) -> None:
        line = ["run", "the " * 50, "-m", str(tiny_model()), "-c", "16", "-t", "1"]
        assert main(line) == 2
        message = capsys.readouterr().err
        assert message.startswith("blockdraft: error: ")
        assert message.count("\n") == 1
        assert "16" in message

    def test_truncated_file_is_one_line(
        self, tiny_model: Callable[..., Path], tmp_path: Path, capsys: Output
    ) -> None:
        whole = tiny_model().read_bytes()
        (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
        assert main(["run", "the", "-m", str(tmp_path / "cut.gguf")]) == 2
        assert "truncated" in capsys.readouterr().err
