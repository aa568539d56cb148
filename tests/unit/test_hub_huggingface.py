"""The door to the Hugging Face hub, with its client faked."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from blockdraft import hub
from blockdraft.errors import ConfigError, DownloadError
from blockdraft.hub import huggingface


class TestHuggingFace:
    FILES = ("README.md", "m-q4_k_m.gguf", "m-q8_0.gguf")

    @pytest.mark.parametrize(
        ("files", "wanted", "chosen"),
        [
            (FILES, "", "m-q4_k_m.gguf"),
            (FILES, "Q8_0", "m-q8_0.gguf"),
            (("a/only.gguf", "x.txt"), "", "a/only.gguf"),
        ],
        ids=["usual type", "by type", "only one"],
    )
    def test_chosen_file(self, files: Sequence[str], wanted: str, chosen: str) -> None:
        assert huggingface.choose_file(files, "o/r", wanted) == chosen

    @pytest.mark.parametrize(
        ("files", "wanted", "message"),
        [
            (("README.md",), "", "o/r has no GGUF file"),
            (("a.gguf", "b.gguf"), "", "has 2 GGUF files; name one as hf:o/r:FILE from: a"),
            (FILES, "q2", "0 GGUF files of o/r have 'q2' in their name"),
            (FILES, "m-", "2 GGUF files of o/r have 'm-' in their name"),
        ],
    )
    def test_no_single_file(self, files: Sequence[str], wanted: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            huggingface.choose_file(files, "o/r", wanted)

    @pytest.mark.parametrize("spec", ["hf:o/r", "hf:o/r:f.gguf"])
    def test_unreachable_hub_is_named(self, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
        def head(url: str, timeout: float) -> None:
            assert timeout <= 5
            raise OSError("no route")

        session = SimpleNamespace(head=head)
        monkeypatch.setattr("huggingface_hub.get_session", lambda: session)
        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
        with pytest.raises(DownloadError, match="cannot be reached: no route"):
            hub.resolve(spec)

    def test_cached_copy_needs_no_hub(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(
            "huggingface_hub.try_to_load_from_cache", lambda *args: str(tmp_path / "f.gguf")
        )
        assert hub.resolve("hf:o/r:f.gguf") == tmp_path / "f.gguf"

    @pytest.mark.parametrize(
        ("spec", "chosen"),
        [
            ("hf:o/d", "train.jsonl"),
            ("hf:o/d:a/x.jsonl.gz", "a/x.jsonl.gz"),
            ("hf:o/d:tr", "train.jsonl"),
        ],
    )
    def test_dataset(
        self, spec: str, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked: list[tuple[object, ...]] = []

        def download(repo: str, file: str, *, repo_type: str, **options: object) -> str:
            asked.append((repo, file, repo_type))
            return str(tmp_path / file)

        monkeypatch.setattr(huggingface, "_probe", lambda: None)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
        monkeypatch.setattr(
            "huggingface_hub.HfApi.list_repo_files",
            lambda self, repo, repo_type: ["README.md", "train.jsonl"],
        )
        assert hub.resolve_dataset(spec) == tmp_path / chosen
        assert asked == [("o/d", chosen, "dataset")]

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("hf:o", "'hf:o' is not of the form hf:ORG/DATASET or hf:ORG/DATASET:FILE"),
            ("hf:o/d", "2 files of JSON lines of the dataset o/d fit; name one as hf:o/d:FILE"),
            ("hf:o/d:c", "0 files of JSON lines .* from: a.jsonl, b.jsonl.gz"),
        ],
    )
    def test_no_single_file_of_a_dataset(
        self, spec: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(huggingface, "_probe", lambda: None)
        monkeypatch.setattr(
            "huggingface_hub.HfApi.list_repo_files",
            lambda self, repo, repo_type: ["b.jsonl.gz", "a.jsonl", "c.txt"],
        )
        with pytest.raises(ConfigError, match=message):
            hub.resolve_dataset(spec)

    @pytest.fixture
    def blob(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes, str], Path]:
        """A function that makes the hub download a file in its cache's layout."""

        def put(data: bytes, name: str) -> Path:
            (tmp_path / name).write_bytes(data)
            link = tmp_path / "f.gguf"
            link.symlink_to(tmp_path / name)
            monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
            monkeypatch.setattr(huggingface, "_probe", lambda: None)
            monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *a, **k: str(link))
            return link

        return put

    def test_download_is_compared_with_the_announced_checksum(
        self, blob: Callable[[bytes, str], Path]
    ) -> None:
        link = blob(b"good", hashlib.sha256(b"good").hexdigest())
        assert hub.resolve("hf:o/r:f.gguf") == link

    def test_damaged_download_is_removed(self, blob: Callable[[bytes, str], Path]) -> None:
        link = blob(b"bad", "2" * 64)
        with pytest.raises(DownloadError, match=f"expected sha256 {'2' * 64}, got "):
            hub.resolve("hf:o/r:f.gguf")
        assert not link.is_symlink()

    def test_refusal_of_the_hub_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: object, **options: object) -> str:
            raise ValueError("404\nand much more")

        monkeypatch.setattr(huggingface, "_probe", lambda: None)
        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
        with pytest.raises(DownloadError, match=r"cannot download f\.gguf of o/r: 404$"):
            hub.resolve("hf:o/r:f.gguf")
