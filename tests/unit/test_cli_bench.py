"""``blockdraft bench``: flags that reach the measurements, pictures, exit codes."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockdraft.bench import peers_speculation, throughput
from blockdraft.bench.llama_server import LlamaSpec
from blockdraft.cli import main
from tests.tiny_drafter import TinyDrafter

TinyModel = Callable[..., Path]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def model(tiny_model: TinyModel) -> str:
    return str(tiny_model())


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "p.jsonl"
    lines = [{"id": f"{i}", "category": "ab"[i % 2], "prompt": "a b " * i} for i in range(1, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


class Report(SimpleNamespace):
    """A report that says little."""

    is_met = True

    def to_json(self) -> dict[str, Any]:
        return {"known": 1}

    def to_text(self) -> str:
        return "a table"


class TestSpeed:
    def speed(self, model: str, prompts: str, *flags: str) -> int:
        line = ["bench", "speed", "-m", model, "-t", "1", "--prompts", prompts]
        return main([*line, "--max-tokens", "8", "--repeats", "1", *flags])

    def test_picture_and_page_are_written(
        self, model: str, prompts: str, tmp_path: Path, capsys: Output
    ) -> None:
        png, html = tmp_path / "out.png", tmp_path / "out.html"
        assert self.speed(model, prompts, "--plot", str(png), "--html", str(html)) == 0
        assert png.read_bytes().startswith(b"\x89PNG")
        page = html.read_text()
        assert "<table>" in page
        assert "data:image/png;base64," in page
        assert "mean nodes" in capsys.readouterr().out

    def test_missing_matplotlib_is_named_before_anything_is_measured(
        self,
        model: str,
        prompts: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Output,
    ) -> None:
        for name in [name for name in sys.modules if name.startswith("matplotlib")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, "blockdraft.bench.drawing", raising=False)
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setattr("blockdraft.bench.speed.bench_speed", None)
        assert self.speed(model, prompts, "--plot", str(tmp_path / "out.png")) == 2
        assert "pip install 'blockdraft[plot]'" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--plot", "missing/out.png"], "no folder missing"),
            (["--html", "missing/out.html"], "no folder missing"),
            (["--categories", "a,c"], "--categories names 'c'; "),
            (["--pairs", "1"], "smallest allowed, 2"),
            (["--context-depths", "-1"], "--context-depths"),
        ],
        ids=["plot", "html", "category", "pairs", "depth"],
    )
    def test_wrong_flags_are_named(
        self, flags: list[str], message: str, model: str, prompts: str, capsys: Output
    ) -> None:
        assert self.speed(model, prompts, *flags) == 2
        assert message in capsys.readouterr().err

    def test_a_loss_ends_with_1(
        self, model: str, prompts: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("blockdraft.bench.gate.FLOOR", 1e9)
        assert self.speed(model, prompts, "--pairs", "2") == 1
        assert self.speed(model, prompts) == 0

    def test_categories_choose_prompts(
        self, model: str, prompts: str, tmp_path: Path, capsys: Output
    ) -> None:
        out = tmp_path / "out.json"
        assert self.speed(model, prompts, "--categories", "a", "--json", str(out)) == 0
        assert list(json.loads(out.read_text())["categories"]) == ["a"]


class TestSpeculation:
    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def bench(subject: Any, prompts: Any, plan: Any, **options: Any) -> Report:
            seen.update(options, plan=plan, prompts=prompts)
            return Report()

        monkeypatch.setattr(peers_speculation, "bench_speculation", bench)
        return seen

    def test_without_a_drafter_lookups_compare(
        self, model: str, prompts: str, seen: dict[str, Any], capsys: Output
    ) -> None:
        assert main(["bench", "peers-spec", "-m", model, "--prompts", prompts]) == 0
        assert [spec.name for spec in seen["plan"].specs] == ["ngram-simple", "ngram-mod"]
        assert seen["plan"].repeats == 1
        assert seen["files"].drafter is None
        assert "a table" in capsys.readouterr().out

    def test_a_drafter_in_a_gguf_file_is_llama_cpps_too(
        self, model: str, seen: dict[str, Any], tmp_path: Path
    ) -> None:
        drafter = TinyDrafter().write_gguf(tmp_path / "d.gguf")
        assert main(["bench", "peers-spec", "-m", model, "-md", str(drafter)]) == 0
        assert seen["files"].drafter == drafter
        assert [spec.name for spec in seen["plan"].specs][2:] == ["draft-dflash", "draft-dflash:7"]

    def test_a_smaller_model_is_llama_cpps_too(self, model: str, seen: dict[str, Any]) -> None:
        assert main(["bench", "peers-spec", "-m", model, "-md", model]) == 0
        assert [spec.name for spec in seen["plan"].specs][2:] == ["draft-simple", "draft-simple:7"]

    def test_ways_to_draft_may_be_chosen(self, model: str, seen: dict[str, Any]) -> None:
        assert main(["bench", "peers-spec", "-m", model, "--peer-spec", "ngram-map-k"]) == 0
        assert seen["plan"].specs == (LlamaSpec("ngram-map-k"),)

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--spec-type", "none"], "drafts nothing"),
            (["--llama-server", "/nowhere"], "--llama-server: there is no file /nowhere"),
            (["--spec-type", "suffix", "--spec-suffix-cache", "f"], "would know the answers"),
        ],
        ids=["none", "program", "memory"],
    )
    def test_wrong_flags_are_named(
        self, flags: list[str], message: str, model: str, seen: dict[str, Any], capsys: Output
    ) -> None:
        assert main(["bench", "peers-spec", "-m", model, *flags]) == 2
        assert message in capsys.readouterr().err
        assert not seen


class TestServe:
    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        seen: dict[str, Any] = {"report": Report()}

        def bench(subject: Any, prompts: Any, plan: Any, **options: Any) -> Report:
            seen.update(options, plan=plan)
            found: Report = seen["report"]
            return found

        monkeypatch.setattr(throughput, "bench_serve", bench)
        return seen

    def test_flags_reach_the_plan(self, model: str, seen: dict[str, Any]) -> None:
        flags = ["--streams", "1,16", "--requests", "2", "--max-tokens", "24", "--repeats", "4"]
        assert main(["bench", "serve", "-m", model, *flags]) == 0
        assert seen["plan"] == throughput.ServePlan((1, 16), 2, 24, 4)
        assert seen["peer"] == LlamaSpec("ngram-simple")

    def test_only_a_check_fails_when_behind(self, model: str, seen: dict[str, Any]) -> None:
        seen["report"].is_met = False
        assert main(["bench", "serve", "-m", model]) == 0
        assert main(["bench", "serve", "-m", model, "--check"]) == 1

    def test_two_peers_are_refused(self, model: str, seen: dict[str, Any], capsys: Output) -> None:
        flags = ["--peer-spec", "ngram-mod,ngram-simple"]
        assert main(["bench", "serve", "-m", model, *flags]) == 2
        assert "compares with one" in capsys.readouterr().err
