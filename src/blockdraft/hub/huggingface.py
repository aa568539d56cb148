"""The one door to ``huggingface_hub``: a file of a repository on the Hugging Face hub.

Imports it only when a hub is asked for. Knows nothing of named models or checksum tables.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from blockdraft.errors import ConfigError, DownloadError

__all__ = ["choose_file", "download_file", "resolve_dataset", "resolve_spec"]

_SPEC = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^:]+))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_JSON_LINES = (".jsonl", ".jsonl.gz")
_TIMEOUT_S = 4.0


def resolve_spec(spec: str) -> Path:
    """The local copy of ``hf:ORG/REPO[:FILE]``, in the cache of ``huggingface_hub``.

    FILE is a path in the repository or a part of one file's name, such as ``Q4_K_M``. A copy that
    was downloaded before is used without asking the hub.

    Raises:
        ConfigError: ``spec`` is malformed or names no single GGUF file.
        DownloadError: The hub cannot be reached or what came is damaged.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ConfigError(f"{spec!r} is not of the form hf:ORG/REPO or hf:ORG/REPO:FILE")
    repo, wanted = match["repo"], match["file"] or ""
    if not wanted.lower().endswith(".gguf"):
        wanted = choose_file(_list_files(repo), repo, wanted)
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(repo, wanted)
    except (ImportError, ValueError) as error:
        raise DownloadError(f"cannot look for {spec}: {error}") from error
    if isinstance(cached, str):
        return Path(cached)
    path = download_file(repo, wanted, "main")
    _check_blob(path)
    return path


def resolve_dataset(spec: str) -> Path:
    """The local copy of a JSON lines file of a dataset, ``hf:ORG/DATASET[:FILE]``.

    Without FILE the dataset must have one file of JSON lines. Kept in the cache of
    ``huggingface_hub``.

    Raises:
        ConfigError: ``spec`` is malformed or names no single file of JSON lines.
        DownloadError: The hub cannot be reached or refuses.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ConfigError(f"{spec!r} is not of the form hf:ORG/DATASET or hf:ORG/DATASET:FILE")
    repo, wanted = match["repo"], match["file"] or ""
    if not wanted.endswith(_JSON_LINES):
        every = sorted(name for name in _list_files(repo, "dataset") if name.endswith(_JSON_LINES))
        fitting = [name for name in every if wanted in name]
        if len(fitting) != 1:
            about = f"{len(fitting)} files of JSON lines of the dataset {repo} fit"
            names = ", ".join(every) or "none"
            raise ConfigError(f"{about}; name one as hf:{repo}:FILE from: {names}")
        wanted = fitting[0]
    return download_file(repo, wanted, "main", kind="dataset")


def choose_file(files: Sequence[str], repo: str, wanted: str) -> str:
    """The one GGUF file of ``files`` whose name contains ``wanted``, in any case.

    Without ``wanted`` the only file, or else the only one of type Q4_K_M.

    Raises:
        ConfigError: None or several fit; the message lists what there is.
    """
    every = sorted(name for name in files if name.lower().endswith(".gguf"))
    for part in (wanted,) if wanted else ("", "q4_k_m"):
        fitting = [name for name in every if part.lower() in name.lower()]
        if len(fitting) == 1:
            return fitting[0]
    if not every:
        raise ConfigError(f"{repo} has no GGUF file")
    about = f"{len(fitting)} GGUF files of {repo} have {wanted!r} in their name"
    if not wanted:
        about = f"{repo} has {len(every)} GGUF files"
    raise ConfigError(f"{about}; name one as hf:{repo}:FILE from: {', '.join(every)}")


def download_file(
    repo: str, file: str, revision: str, *, local_dir: Path | None = None, kind: str = "model"
) -> Path:
    """Download one file, into ``local_dir`` or the cache of ``huggingface_hub``.

    Args:
        repo: ORG/REPO.
        file: Path in the repository.
        revision: Branch, tag or commit.
        local_dir: Where to put it; None is the cache.
        kind: What the repository is, "model" or "dataset".

    Raises:
        DownloadError: The hub cannot be reached or refuses.
    """
    _probe()
    from huggingface_hub import hf_hub_download

    try:
        return Path(
            hf_hub_download(repo, file, revision=revision, local_dir=local_dir, repo_type=kind)
        )
    except Exception as error:
        # Its errors come from three libraries and share no base below Exception.
        raise DownloadError(f"cannot download {file} of {repo}: {_reason(error)}") from error


def _list_files(repo: str, kind: str = "model") -> list[str]:
    _probe()
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(repo, repo_type=kind)
    except Exception as error:
        raise DownloadError(f"cannot list the files of {repo}: {_reason(error)}") from error


def _probe() -> None:
    """Refuse at once when no hub answers: ``hf_hub_download`` itself tries for 25 seconds."""
    try:
        from huggingface_hub import constants, get_session
    except ImportError as error:
        raise DownloadError("the package huggingface_hub is not installed") from error
    try:
        get_session().head(constants.ENDPOINT, timeout=_TIMEOUT_S)
    except Exception as error:
        raise DownloadError(f"{constants.ENDPOINT} cannot be reached: {_reason(error)}") from error


def _check_blob(path: Path) -> None:
    """Compare a large file with its name in the cache, which is the sha256 the hub announced."""
    blob = path.resolve()
    if _SHA256.fullmatch(blob.name) is None:
        return
    with blob.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != blob.name:
        path.unlink()
        blob.unlink()
        raise DownloadError(f"{path.name} is damaged: expected sha256 {blob.name}, got {found}")


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
