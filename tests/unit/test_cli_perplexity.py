"""``blockdraft perplexity``: llama.cpp's chunks and the errors of its input."""

import math
from pathlib import Path

import pytest

from blockdraft.cli import main
from tests.fake_session import FakeSession

Output = pytest.CaptureFixture[str]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession()
    monkeypatch.setattr("blockdraft.session.Session.load", fake.load)
    monkeypatch.setattr("blockdraft.cli.sessions.find_model", str)
    return fake


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """19 letters: with the first token 20 tokens, two chunks of eight and a rest."""
    path = tmp_path / "text.txt"
    path.write_text("ABCDEFGHIJKLMNOPQRS")
    return path


def test_second_half_of_every_whole_chunk_is_scored(
    session: FakeSession, text: Path, capsys: Output
) -> None:
    assert main(["perplexity", "-f", str(text), "-c", "8"]) == 0
    # Token t has probability 1/t; the chunks are <bos>ABCDEFG and HIJKLMNO, scored from 5 on.
    scored = [ord(letter) for letter in "EFGMNO"]
    expected = math.exp(sum(math.log(token) for token in scored) / 6)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"perplexity {expected:.4f} +/- ")
    assert shown.out.endswith(" over 6 tokens\n")
    assert shown.err.count("chunk ") == 2


def test_every_chunk_begins_with_bos(
    session: FakeSession, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks: list[list[int]] = []
    score = session.score

    def note(token_ids: list[int]) -> object:
        chunks.append(token_ids)
        return score(token_ids)

    session.engine.score = note
    main(["perplexity", "-f", str(text), "-c", "8"])
    assert [chunk[0] for chunk in chunks] == [1, 1]
    assert "".join(map(chr, chunks[1][1:])) == "IJKLMNO"


def test_chunks_are_llama_cpps_by_default(
    session: FakeSession, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "long.txt").write_text("A" * 1023)
    assert main(["perplexity", "-f", str(tmp_path / "long.txt")]) == 0
    assert session.loads[0][1]["ctx_size"] == 512
    assert "over 510 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: -f/--file"),
        (["-f", "no-such"], "the text no-such does not exist"),
        (["-f", "/"], "the text / is not a file"),
        (["-f", "TEXT", "-c", "2"], "--ctx-size is 2; it must be 4 or more"),
        (["-f", "TEXT", "-c", "11"], "has 20 tokens; two chunks of 11 need 22"),
    ],
)
def test_what_cannot_be_measured_is_named(
    arguments: list[str], message: str, session: FakeSession, text: Path, capsys: Output
) -> None:
    words = [str(text) if word == "TEXT" else word for word in arguments]
    assert main(["perplexity", *words]) == 2
    assert message in capsys.readouterr().err


def test_text_must_be_utf8(session: FakeSession, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "x").write_bytes(b"abc\xfe")
    assert main(["perplexity", "-f", str(tmp_path / "x")]) == 2
    assert "x is not UTF-8 text: byte 3 is wrong" in capsys.readouterr().err
