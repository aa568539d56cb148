import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdraft import _native
from blockdraft.bench import decode, kernels, peers
from blockdraft.bench.decode import bench_decode, decode_once, new_engine
from blockdraft.bench.kernels import bench_kernels
from blockdraft.bench.limits import Limits, Work, describe_machine, read_work
from blockdraft.bench.llamacpp import LlamaCpp
from blockdraft.bench.passes import PassTimer, draw_tokens
from blockdraft.bench.peers import FLOORS, Comparison, bench_peers
from blockdraft.bench.report import check_output, format_table, write_json
from blockdraft.bench.startup import STARTUP_LIMITS, Quantity, StartupReport, bench_startup
from blockdraft.bench.subject import Subject
from blockdraft.cli import main
from blockdraft.errors import CapacityError, ConfigError, UnsupportedError

TinyModel = Callable[..., Path]

LONG = {"metadata": {"llama.context_length": 8192}}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits and passes that cost no second to measure."""
    monkeypatch.setattr(kernels, "_BURST_S", 0.001)
    for module in (kernels, decode):
        monkeypatch.setattr(module, "measure_limits", lambda _: Limits(10, 100))


class TestReport:
    def test_table_aligns_first_column_left_and_others_right(self) -> None:
        text = format_table(["task", "ms"], [["a", "1"], ["longer", "12.5"]])
        assert text == "task      ms\na          1\nlonger  12.5"

    def test_json_replaces_the_old_file_whole(self, tmp_path: Path) -> None:
        out = tmp_path / "out.json"
        out.write_text("old")
        write_json(out, {"ms": 1.5})
        assert json.loads(out.read_text()) == {"ms": 1.5}
        assert list(tmp_path.iterdir()) == [out]

    def test_failed_json_leaves_the_old_file(self, tmp_path: Path) -> None:
        out = tmp_path / "out.json"
        out.write_text("old")
        with pytest.raises(TypeError):
            write_json(out, {"good": 1, "bad": object()})
        assert out.read_text() == "old"
        assert list(tmp_path.iterdir()) == [out]

    def test_output_without_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no folder"):
            check_output(tmp_path / "missing" / "out.json")

    def test_output_that_is_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="it is a folder"):
            check_output(tmp_path)


class TestLimits:
    @pytest.mark.parametrize("threads", [1, 2])
    def test_measured_bandwidth_is_plausible(self, threads: int) -> None:
        assert 0.1 < _native.measure_read_bandwidth(threads, 16 << 20) < 10_000

    def test_measured_peak_is_plausible(self) -> None:
        assert 0.5 < _native.measure_int8_peak(1) < 100_000

    @pytest.mark.parametrize("threads", [0, -1, 5000])
    def test_thread_counts_out_of_range_are_refused(self, threads: int) -> None:
        with pytest.raises(ValueError, match=f"threads is {threads}"):
            _native.measure_int8_peak(threads)

    def test_too_few_bytes_are_refused(self) -> None:
        with pytest.raises(ValueError, match="100 bytes are too few for 2 threads"):
            _native.measure_read_bandwidth(2, 100)

    def test_or_better_takes_the_higher_of_each(self) -> None:
        assert Limits(1, 20).or_better(Limits(2, 10)) == Limits(2, 20)

    @pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
    def test_work_counts_the_head_once_and_no_lookup(
        self, tiny_model: TinyModel, tied: bool
    ) -> None:
        path = tiny_model("llama", "Q8_0", tied_head=tied)
        target = Subject(path, "tiny", 1).load(max_rows=1)
        config, work = target.config, read_work(path)
        assert work.head_macs == config.vocab_size * config.hidden_size
        assert work.macs(1, 1) == target.macs_per_row
        assert work.weight_bytes == target.macs_per_row * 34 // 32

    def test_rows_without_logits_do_not_pay_for_the_head(self) -> None:
        assert Work(weight_bytes=1, body_macs=10, head_macs=100).macs(4, 1) == 140


class TestPassTimer:
    @pytest.mark.parametrize("arch", ["llama", "gemma3"])
    def test_timing_rows_commits_nothing(self, tiny_model: TinyModel, arch: str) -> None:
        target = Subject(tiny_model(arch), "tiny", 1).load(max_rows=8)
        timer = PassTimer(target, 140)
        for context in (0, 20, 132):
            timer.extend(context)
            assert len(timer.time_rows(8, 3)) == 3
        with pytest.raises(CapacityError, match="141 positions of 140"):
            timer.time_rows(9, 1)

    def test_prefill_starts_from_nothing(self, tiny_model: TinyModel) -> None:
        target = Subject(tiny_model(), "tiny", 1).load(max_rows=8)
        timer = PassTimer(target, 20)
        for _ in range(3):  # without a fresh start the second would not fit
            assert timer.time_prefill(20) > 0

    def test_more_positions_than_trained_are_refused(self, tiny_model: TinyModel) -> None:
        target = Subject(tiny_model(), "tiny", 1).load(max_rows=8)
        trained = target.config.context_length
        with pytest.raises(CapacityError, match=f"{trained + 1} positions .* {trained}"):
            PassTimer(target, trained + 1)

    def test_tokens_are_the_same_every_time(self) -> None:
        tokens = draw_tokens(100, 50)
        assert (tokens == draw_tokens(100, 50)).all()
        assert 0 <= tokens.min() <= tokens.max() < 50


class TestKernels:
    def test_report_covers_every_size_and_context(self, tiny_model: TinyModel) -> None:
        subject = Subject(tiny_model(layers=1, **LONG), "tiny", 1, "scalar")
        report = bench_kernels(subject, rows=(2, 4), contexts=(0, 16), seconds=0)
        sizes = [(cost.context, cost.rows) for cost in report.passes]
        assert sizes == [(0, 1), (0, 2), (0, 4), (16, 1), (16, 2), (16, 4)]
        assert [cost.ratio for cost in report.passes if cost.rows == 1] == [1, 1]
        assert report.isa == "scalar"
        assert "prefill of 512 tokens" in report.to_text()

    def test_rates_follow_from_times(self, tiny_model: TinyModel) -> None:
        path = tiny_model(**LONG)
        report = bench_kernels(Subject(path, "tiny", 1), rows=(4,), contexts=(0,), seconds=0)
        work, cost = read_work(path), report.passes[1]
        assert cost.gb_per_s == pytest.approx(work.weight_bytes / cost.ms / 1e6)
        assert cost.gmac_per_s == pytest.approx(work.macs(4, 4) / cost.ms / 1e6)
        assert cost.int8_share == pytest.approx(cost.gmac_per_s / report.limits.int8_gmac_per_s)

    def test_json_keys_are_stable(self, tiny_model: TinyModel) -> None:
        subject = Subject(tiny_model(**LONG), "tiny", 1)
        report = bench_kernels(subject, rows=(1,), contexts=(0,), seconds=0).to_json()
        assert {"machine", "model", "threads", "passes", "prefill", "limits"} <= set(report)
        keys = {"rows", "context", "ms", "ratio", "gb_per_s", "gmac_per_s"}
        assert keys <= set(report["passes"][0])
        assert {"tokens", "ms"} <= set(report["prefill"])


class TestDecode:
    def test_run_leaves_the_engine_empty(self, tiny_model: TinyModel) -> None:
        target = Subject(tiny_model(), "tiny", 1).load(max_rows=16)
        engine = new_engine(target, 64, 3)
        rate, outside = decode_once(engine, target, 12, 8, 3)
        assert rate > 0
        assert 0 < outside < 1
        assert not engine.has_work

    def test_json_keys_are_stable(self, tiny_model: TinyModel) -> None:
        subject = Subject(tiny_model(**LONG), "tiny", 1)
        report = bench_decode(subject, num_sequences=2, repeats=1)
        assert [run.name for run in report.runs] == ["plain", "long context", "many sequences"]
        keys = {"tokens_per_s", "outside_native_share", "machine", "model", "threads", "runs"}
        assert keys <= set(report.to_json())
        assert "long context" in report.to_text()


class FakePeer:
    """Stands for llama.cpp: a second per row."""

    name = "fake"
    system = "none"

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path

    def close(self) -> None:
        pass

    def time_rows(self, tokens: Sequence[int], num_repeats: int) -> list[float]:
        return [float(len(tokens))] * num_repeats

    def time_prefill(self, tokens: Sequence[int]) -> float:
        return float(len(tokens))

    def time_decode(self, prompt: Sequence[int], num_tokens: int) -> float:
        return 1.0


class TestPeers:
    def test_compares_every_task(
        self, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "LlamaCpp", FakePeer)
        subject = Subject(tiny_model(**LONG), "tiny", 1)
        report = bench_peers(subject, context=8, rows=(1, 8), repeats=1)
        assert [one.peer_ms for one in report.comparisons] == [1000, 1000, 8000, 512_000]
        assert all(one.speedup == one.peer_ms / one.ours_ms for one in report.comparisons)
        assert report.is_met

    def test_missed_floor_fails(
        self, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "LlamaCpp", FakePeer)
        monkeypatch.setitem(FLOORS, ("llama", 64), peers.Floors(1, 1, 1, 1e9))
        subject = Subject(tiny_model(**LONG), "tiny", 1)
        report = bench_peers(subject, context=0, rows=(8,), repeats=1)
        assert [one.is_met for one in report.comparisons] == [True, True, False]
        assert not report.is_met
        assert "FAIL" in report.to_text()
        assert report.to_json()["passed"] is False

    def test_floor_is_met_at_the_floor(self) -> None:
        exact = Comparison("task", ours_ms=1, peer_ms=2, speedup=2, floor=2)
        assert exact.is_met
        assert not replace(exact, speedup=1.99).is_met
        assert replace(exact, speedup=0.1, floor=None).is_met

    def test_missing_peer_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "llama_cpp", None)
        with pytest.raises(UnsupportedError, match=r"blockdraft\[peers\]"):
            LlamaCpp(tmp_path, num_threads=1, max_positions=1, max_rows=1, context_tokens=[])


class TestStartup:
    @pytest.mark.slow
    def test_report_of_a_model_without_promises(self, tiny_model: TinyModel) -> None:
        report = bench_startup(Subject(tiny_model("llama"), "tiny", 1), repeats=1)
        assert report.help_s > 0
        assert report.first_token_s > 0
        assert report.weight_bytes < report.peak_rss_bytes
        assert [one.limit for one in report.quantities] == [0.3, None, 1.02, None]
        assert "first token, s" in report.to_text()
        keys = {"machine", "model", "help_s", "first_token_s", "peak_rss_bytes", "limits", "passed"}
        assert keys <= set(report.to_json())

    def test_limits_are_kept_at_the_limits(self) -> None:
        fits = StartupReport(
            machine=describe_machine(),
            model="known",
            threads=1,
            repeats=1,
            help_s=0.3,
            first_token_s=1.0,
            peak_rss_bytes=200_000_105,
            weight_bytes=102,
            tensor_bytes=100,
            kv_bytes=3,
            limits=STARTUP_LIMITS["llama", 576],
        )
        assert fits.is_met
        assert not replace(fits, first_token_s=1.01).is_met
        assert not replace(fits, peak_rss_bytes=200_000_106).is_met
        assert not replace(fits, help_s=0.31).is_met
        assert "FAIL" in replace(fits, weight_bytes=103).to_text()

    def test_quantity_without_limit_is_met(self) -> None:
        assert Quantity("x", 1e9, None).is_met

    def test_failed_run_is_named(self, tiny_model: TinyModel) -> None:
        subject = Subject(tiny_model("llama"), "tiny", 1, "sse9")
        with pytest.raises(ConfigError, match=r"code 2: .*sse9"):
            bench_startup(subject, repeats=1)


class TestCommand:
    def test_kernels_prints_and_writes(
        self, tiny_model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out.json"
        flags = ["--rows", "1,2", "--contexts", "0", "--seconds", "0", "-t", "1"]
        model = str(tiny_model(**LONG))
        assert main(["bench", "kernels", "-m", model, *flags, "--json", str(out)]) == 0
        assert "GMAC/s" in capsys.readouterr().out
        assert json.loads(out.read_text())["threads"] == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "kernels, decode, speed, oracle, peers, peers-spec, serve or startup"),
            (["kernels", "--rows", "1,x"], "--rows"),
            (["kernels", "--rows", "0"], "smallest allowed"),
            (["kernels", "--check"], "no flag --check"),
            (["decode", "--busy-core", "99999"], "--busy-core is 99999"),
            (["decode", "--json", "missing/out.json"], "no folder"),
        ],
        ids=["nothing", "no number", "zero rows", "foreign flag", "core", "folder"],
    )
    def test_wrong_flags_are_named(
        self,
        arguments: list[str],
        message: str,
        tiny_model: TinyModel,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        model = ["-m", str(tiny_model())] if arguments else []
        assert main(["bench", *arguments, *model]) == 2
        assert message in capsys.readouterr().err
