"""Starts ``blockdraft serve`` as a program of its own. Knows its flags, no measurement."""

import re
import sys

from blockdraft.bench.server_process import ServerProcess
from blockdraft.bench.subject import Subject
from blockdraft.config import DraftConfig

__all__ = ["draft_flags", "start_ours"]

_URL = re.compile(r" at (http://\S+)/v1, .*\n")


def draft_flags(drafting: DraftConfig) -> list[str]:
    """The flags that ask for ``drafting``."""
    flags: list[str] = ["--spec-policy", drafting.policy]
    for flag, value in (
        ("--spec-type", drafting.spec_type),
        ("-md", drafting.drafter),
        ("--spec-draft-n-max", drafting.draft_n_max),
        ("--spec-draft-tree", drafting.draft_tree),
        ("--spec-draft-p-min", drafting.draft_p_min or None),
        ("--spec-suffix-cache", drafting.suffix_cache),
        ("--spec-suffix-corpus", drafting.suffix_corpus),
        ("--spec-trace", drafting.trace),
    ):
        if value is not None:
            flags += [flag, f"{value}"]
    return flags


def start_ours(subject: Subject, drafting: DraftConfig, *, parallel: int) -> ServerProcess:
    """The running server.

    Raises:
        ConfigError: It does not start.
    """
    command = [sys.executable, "-m", "blockdraft", "serve", "-m", str(subject.path)]
    command += ["-t", f"{subject.num_threads}", "-np", f"{parallel}", "--port", "0"]
    if subject.isa is not None:
        command += ["--isa", subject.isa]
    command += draft_flags(drafting)
    name = "blockdraft serve" + (" plain" if drafting.spec_type == "none" else "")
    return ServerProcess(name, command, _find_url)


def _find_url(said: str) -> str | None:
    match = _URL.search(said)
    return None if match is None else match[1]
