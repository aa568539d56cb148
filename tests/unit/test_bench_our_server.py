"""``blockdraft serve`` as a program of its own."""

from pathlib import Path
from typing import Any

import pytest

from blockdraft.bench import our_server
from blockdraft.bench.our_server import draft_flags, start_ours
from blockdraft.bench.subject import Subject
from blockdraft.cli import command_parser
from blockdraft.cli.options import draft_config
from blockdraft.config import DraftConfig


@pytest.mark.parametrize(
    "drafting",
    [
        DraftConfig(),
        DraftConfig("ngram,suffix", draft_n_max=3, suffix_cache="f", suffix_corpus="c", trace="t"),
        DraftConfig("dflash", "d.gguf", policy="fixed", draft_tree=4, draft_p_min=0.25),
    ],
    ids=["default", "lookups", "network"],
)
def test_the_flags_ask_for_the_same_drafting(drafting: DraftConfig) -> None:
    args = command_parser("serve").parse(draft_flags(drafting))
    assert draft_config(args) == drafting


def test_plain_decoding_is_asked_for() -> None:
    args = command_parser("serve").parse(draft_flags(DraftConfig("none")))
    assert draft_config(args).spec_type == "none"


def test_the_server_is_found_by_what_it_announces(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(our_server, "ServerProcess", lambda *args: made.append(args))
    start_ours(Subject(Path("m.gguf"), "m", 2, "scalar"), DraftConfig("none"), parallel=16)
    ((name, command, find_url),) = made
    assert name == "blockdraft serve plain"
    line = " ".join(command)
    assert "serve -m m.gguf -t 2 -np 16 --port 0 --isa scalar" in line
    said = "blockdraft: m at http://127.0.0.1:80/v1, described at http://127.0.0.1:80/docs\n"
    assert find_url(said) == "http://127.0.0.1:80"
    assert find_url(said[:40]) is None
