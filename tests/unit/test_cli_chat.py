"""``blockdraft chat``: turns, commands, Ctrl-C and a full context."""

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockdraft.cli import main
from blockdraft.cli.chat import Chat
from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.errors import ConfigError
from tests.fake_session import FakeSession

Output = pytest.CaptureFixture[str]


@pytest.fixture
def type_lines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes `input` give these lines; an exception is raised in its place."""

    def put(*lines: str | type[BaseException]) -> None:
        coming: Iterator[str | type[BaseException]] = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(coming, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", read)

    return put


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def chat(session: FakeSession) -> Chat:
    made: Any = session
    return Chat(made, SamplingParams(seed=1), stop=[], max_tokens=None)


def contents(chat: Chat) -> list[object]:
    return [turn["content"] for turn in chat.turns]


def test_turns_are_kept(chat: Chat, session: FakeSession, type_lines: Callable[..., None]) -> None:
    session.answers = [["one"], ["t", "wo"]]
    type_lines("a", "", "b")
    assert chat.loop() == 0
    assert contents(chat) == ["a", "one", "b", "two"]
    assert [turn["role"] for turn in chat.turns] == ["user", "assistant"] * 2
    assert [len(prompt) for prompt, _ in session.calls] == [1, 3]


def test_answers_alone_are_on_standard_output(
    chat: Chat, session: FakeSession, type_lines: Callable[..., None], capsys: Output
) -> None:
    session.answers = [["one"]]
    type_lines("a", "/stats", "/help")
    chat.loop()
    shown = capsys.readouterr()
    assert shown.out == "one\n"
    assert "seed 1, prompt 3 tokens" in shown.err
    assert "/clear" in shown.err


def test_backslash_continues_the_line(
    chat: Chat, session: FakeSession, type_lines: Callable[..., None]
) -> None:
    type_lines("a\\", "b\\", "c", "d\\")
    chat.loop()
    assert contents(chat)[::2] == ["a\nb\nc", "d"]


def test_ctrl_c_stops_the_answer_not_the_program(
    chat: Chat, session: FakeSession, type_lines: Callable[..., None], capsys: Output
) -> None:
    session.answers = [["par", KeyboardInterrupt()], ["whole"]]
    type_lines("a", "b")
    assert chat.loop() == 0
    assert contents(chat) == ["a", "par", "b", "whole"]
    assert "stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [(KeyboardInterrupt(), "stopped"), (ConfigError("bad turn"), "error: bad turn")],
    ids=["ctrl-c", "error"],
)
def test_turn_without_an_answer_is_forgotten(
    error: BaseException,
    message: str,
    chat: Chat,
    session: FakeSession,
    type_lines: Callable[..., None],
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(prompt: object) -> list[int]:
        monkeypatch.undo()
        type_lines("b")
        raise error

    type_lines("a")
    monkeypatch.setattr(session, "encode", fail)
    chat.loop()
    assert contents(chat) == ["b", "ok"]
    assert capsys.readouterr().err == f"{message}\n"


def test_two_ctrl_c_at_the_prompt_leave(chat: Chat, type_lines: Callable[..., None]) -> None:
    type_lines(KeyboardInterrupt, "a", KeyboardInterrupt, KeyboardInterrupt, "b")
    assert chat.loop() == 130
    assert contents(chat) == ["a", "ok"]


def test_exit_leaves(chat: Chat, type_lines: Callable[..., None]) -> None:
    type_lines("/exit", "a")
    assert chat.loop() == 0
    assert chat.turns == []


def test_clear_forgets_turns(chat: Chat, type_lines: Callable[..., None]) -> None:
    type_lines("a", "/clear", "b")
    chat.loop()
    assert contents(chat) == ["b", "ok"]


def test_system_turn_goes_first(
    chat: Chat, session: FakeSession, type_lines: Callable[..., None], capsys: Output
) -> None:
    type_lines("/system be brief", "a", "/system")
    chat.loop()
    assert session.calls[0][0][0] == {"role": "system", "content": "be brief"}
    assert capsys.readouterr().err.count("system prompt: be brief") == 2


def test_stats_before_an_answer(
    chat: Chat, type_lines: Callable[..., None], capsys: Output
) -> None:
    type_lines("/stats")
    chat.loop()
    assert capsys.readouterr().err == "no answer yet\n"


@pytest.mark.parametrize(
    ("line", "hint"), [("/hlep", "did you mean /help?"), ("/zzzz", "/help lists commands")]
)
def test_unknown_command_is_named(
    line: str, hint: str, chat: Chat, type_lines: Callable[..., None], capsys: Output
) -> None:
    type_lines(line)
    chat.loop()
    assert capsys.readouterr().err == f"there is no command {line}; {hint}\n"


class TestFullContext:
    def test_oldest_turns_go(
        self, chat: Chat, session: FakeSession, type_lines: Callable[..., None], capsys: Output
    ) -> None:
        session.answers = [["b" * 30], ["d" * 30]]
        type_lines("a" * 30, "c" * 30, "e" * 30)
        chat.loop()
        assert [str(content)[0] for content in contents(chat)] == ["c", "d", "e", "o"]
        assert "the oldest 2 turns were dropped" in capsys.readouterr().err

    def test_turn_that_cannot_fit_is_refused_and_forgotten(
        self, chat: Chat, session: FakeSession, type_lines: Callable[..., None], capsys: Output
    ) -> None:
        type_lines("x" * 200, "a")
        chat.loop()
        assert contents(chat) == ["a", "ok"]
        message = "error: this turn has 200 tokens, the context has room for 99"
        assert message in capsys.readouterr().err

    def test_limit_of_the_answer_is_reserved(self, session: FakeSession, capsys: Output) -> None:
        made: Any = session
        chat = Chat(made, SamplingParams(), stop=[], max_tokens=60)
        chat.answer("x" * 41)
        assert "has 41 tokens, the context has room for 40" in capsys.readouterr().err


class TestCommand:
    @pytest.fixture
    def loaded(self, session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> FakeSession:
        monkeypatch.setattr("blockdraft.session.Session.load", session.load)
        monkeypatch.setattr("blockdraft.cli.sessions.find_model", str)
        return session

    def test_flags_arrive(self, loaded: FakeSession, type_lines: Callable[..., None]) -> None:
        type_lines("a")
        assert (
            main(
                [
                    "chat",
                    "-m",
                    "m",
                    "-sys",
                    "brief",
                    "--temp",
                    "0",
                    "-n",
                    "9",
                    "--stop",
                    "x",
                    "-c",
                    "50",
                    "-s",
                    "3",
                ]
            )
            == 0
        )
        prompt, options = loaded.calls[0]
        assert [turn["role"] for turn in prompt if not isinstance(turn, str)] == ["system", "user"]
        assert options == {
            "params": SamplingParams(temperature=0.0, seed=3),
            "max_tokens": 9,
            "stop": ["x"],
        }
        settings = {
            "num_threads": None,
            "ctx_size": 50,
            "max_cache_bytes": None,
            "isa": None,
            "drafting": DraftConfig(),
            "cache_dir": None,
        }
        assert loaded.loads == [("m", settings)]
        assert loaded.kept_bytes == [1 << 30]

    def test_base_model_is_refused(self, loaded: FakeSession, capsys: Output) -> None:
        loaded.tokenizer.chat_template = None
        assert main(["chat", "-m", "base"]) == 2
        assert "base has no chat template (it is a base model)" in capsys.readouterr().err

    def test_input_that_is_no_text_is_refused(
        self, loaded: FakeSession, type_lines: Callable[..., None], capsys: Output
    ) -> None:
        type_lines("a\udcff")
        assert main(["chat"]) == 2
        assert "standard input is not UTF-8 text" in capsys.readouterr().err
