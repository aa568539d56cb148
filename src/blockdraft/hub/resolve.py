"""A model name becomes a verified local file.

Knows the cache folder, its locks and its stamps, and nothing of what is inside a model file. The
checksum decides, whatever the source. A file gets its final name only when it is whole and
verified.
"""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from blockdraft.errors import ConfigError, DownloadError
from blockdraft.hub.fetch import Progress, fetch, hash_file
from blockdraft.hub.huggingface import resolve_spec
from blockdraft.hub.table import NAMED_MODELS, NamedModel

__all__ = ["default_cache_dir", "downloaded_path", "resolve", "verified_sha256"]

_LOG = logging.getLogger(__name__)


class _LogProgress:
    """The progress of a caller that gave none: notices are logged, bytes are not shown."""

    def notice(self, message: str) -> None:
        _LOG.warning("%s", message)

    def update(self, step: str, done_bytes: int, total_bytes: int) -> None:
        pass


def default_cache_dir() -> Path:
    """Where downloaded models lie unless the caller says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "blockdraft" / "models"


def downloaded_path(name: str, *, cache_dir: Path | None = None) -> Path | None:
    """The verified local file of a named model, or None when it is not here."""
    model = NAMED_MODELS[name]
    path = (cache_dir or default_cache_dir()) / model.file_name
    return path if _is_stamped(path, model.sha256) else None


def verified_sha256(path: Path) -> str | None:
    """The checksum with which a download was verified; reads no more than its stamp.

    None where ``path`` is no such download, or has changed since.
    """
    try:
        sha256 = _stamp_path(path).read_text().partition(" ")[0]
    except (OSError, UnicodeDecodeError):
        return None
    return sha256 if _is_stamped(path, sha256) else None


def resolve(spec: str, *, progress: Progress | None = None, cache_dir: Path | None = None) -> Path:
    """The local file that ``spec`` stands for, downloaded and verified if need be.

    Args:
        spec: A name in ``NAMED_MODELS``, a path, or ``hf:ORG/REPO[:FILE]``.
        progress: Told about downloads; None logs what must be seen.
        cache_dir: Where downloads are kept; None is ``default_cache_dir()``.

    Raises:
        ConfigError: ``spec`` is none of the three.
        DownloadError: No source could give the file with the right checksum.
    """
    directory = cache_dir or default_cache_dir()
    listener = progress or _LogProgress()
    if spec in NAMED_MODELS:
        try:
            return _resolve_named(NAMED_MODELS[spec], listener, directory)
        except OSError as error:
            raise DownloadError(f"cannot use the model cache {directory}: {error}") from error
    if spec.startswith("hf:"):
        return resolve_spec(spec)
    return _resolve_path(spec)


def _resolve_path(spec: str) -> Path:
    if not spec.strip() or "\0" in spec:
        raise ConfigError(f"{spec!r} is neither a model name nor a path")
    path = Path(spec).expanduser()
    if path.is_dir():
        raise ConfigError(f"{spec} is a directory; a model is one GGUF file")
    if path.exists():
        return path
    known = ", ".join(NAMED_MODELS)
    close = get_close_matches(spec.lower(), NAMED_MODELS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    if "/" in spec or spec.lower().endswith(".gguf"):
        raise ConfigError(f"there is no file {spec} and no model of that name{hint}")
    raise ConfigError(f"{spec} is neither a known model ({known}) nor a file{hint}")


def _resolve_named(model: NamedModel, progress: Progress, directory: Path) -> Path:
    final = directory / model.file_name
    if _is_stamped(final, model.sha256):
        return final
    directory.mkdir(parents=True, exist_ok=True)
    with _exclusive(directory / f"{model.name}.lock", model.name, progress):
        # Another process may have finished it while we waited.
        if not _is_stamped(final, model.sha256) and not _adopt(final, model, progress):
            for left in directory.glob(f"{model.file_name}.partial-*"):
                left.unlink()
            _download(model, final, progress)
    return final


def _adopt(final: Path, model: NamedModel, progress: Progress) -> bool:
    """Check a file that has no stamp; remove it when it is not the model."""
    if not final.exists():
        return False
    found = hash_file(final, model, progress)
    if found == model.sha256:
        _stamp(final, model.sha256)
        return True
    _LOG.warning("removed %s: expected sha256 %s, got %s", final, model.sha256, found)
    final.unlink()
    return False


def _download(model: NamedModel, final: Path, progress: Progress) -> None:
    """Try the sources in order until one gives the file that the checksum names."""
    if model.terms:
        progress.notice(model.terms)
    staging = final.parent / f"{model.name}.staging"
    partial = final.with_name(f"{final.name}.partial-{os.getpid()}")
    reasons = []
    for source in model.sources:
        try:
            fetch(source, model, staging, partial=partial, progress=progress)
            partial.replace(final)
        except DownloadError as error:
            reasons.append(f"{source}: {error}")
            if source is not model.sources[-1]:
                _LOG.warning("%s; trying the next source", reasons[-1])
        else:
            _stamp(final, model.sha256)
            shutil.rmtree(staging)
            return
        finally:
            partial.unlink(missing_ok=True)
    raise DownloadError(f"cannot download {model.name}; " + "; ".join(reasons))


def _stamp_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.verified")


def _stamp_text(path: Path, sha256: str) -> str:
    status = path.stat()
    return f"{sha256} {status.st_size} {status.st_mtime_ns}\n"


def _stamp(path: Path, sha256: str) -> None:
    """Note that ``path`` was verified, so that the next run need not read all of it."""
    _stamp_path(path).write_text(_stamp_text(path, sha256))


def _is_stamped(path: Path, sha256: str) -> bool:
    """Whether ``path`` was verified and has kept its size and time of change since."""
    try:
        return _stamp_path(path).read_text() == _stamp_text(path, sha256)
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return False


@contextmanager
def _exclusive(path: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file ``path``; the system frees it when a process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.notice(f"waiting for another process that downloads {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
