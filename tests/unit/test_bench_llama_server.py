"""llama.cpp's server: settings, commands, what it says of itself."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockdraft.bench import llama_process, llama_server
from blockdraft.bench.llama_process import Settings
from blockdraft.bench.llama_server import (
    LlamaFiles,
    LlamaSettings,
    LlamaSpec,
    parse_specs,
    program_of,
    start_llama,
    system_of,
)
from blockdraft.errors import ConfigError, UnsupportedError

MODEL = Path("m.gguf")


class TestSpecs:
    def test_types_with_and_without_a_k(self) -> None:
        specs = parse_specs("ngram-mod,draft-dflash,draft-dflash:7")
        assert [spec.name for spec in specs] == ["ngram-mod", "draft-dflash", "draft-dflash:7"]
        assert [spec.needs_drafter for spec in specs] == [False, True, True]
        assert specs[2].n_max == 7

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("ngram-mod:3", "a K is only for .* not for ngram-mod"),
            ("draft-dflash:x", "'x' is not a number of drafts"),
            ("draft-dflash:0", "'0' is not a number of drafts"),
        ],
        ids=["lookup", "no-number", "zero"],
    )
    def test_a_k_that_means_nothing_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            parse_specs(text)


def settings_of(spec: LlamaSpec, files: LlamaFiles) -> LlamaSettings:
    return LlamaSettings(MODEL, 2, parallel=4, context=300, spec=spec, files=files)


class Started:
    """Stands for `ServerProcess`: keeps how it was made."""

    def __init__(self, name: str, command: list[str], find_url: Any) -> None:
        self.name, self.command, self.find_url = name, command, find_url


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "ServerProcess", Started)


@pytest.mark.usefixtures("started")
class TestStart:
    def test_the_context_is_for_all_slots_in_llama_cpps_steps(self) -> None:
        assert settings_of(LlamaSpec(), LlamaFiles()).ctx_size == 512 * 4

    def test_a_program_gets_the_flags_of_its_command_line(self) -> None:
        files = LlamaFiles(Path("d.gguf"), Path("llama-server"))
        server: Any = start_llama(settings_of(LlamaSpec("draft-dflash", 7), files))
        line = " ".join(server.command)
        assert line.startswith("llama-server -m m.gguf -t 2 -tb 2 -np 4 -c 2048 --host 127.0.0.1")
        assert "--spec-type draft-dflash -md d.gguf" in line
        assert line.endswith("--spec-draft-n-max 7")
        assert server.find_url("") is None  # nobody listens there

    def test_plain_decoding_needs_no_flag(self) -> None:
        files = LlamaFiles(binary=Path("llama-server"))
        server: Any = start_llama(settings_of(LlamaSpec(), files))
        assert "--spec-type" not in server.command

    def test_the_package_is_started_as_a_module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llama_server, "find_spec", lambda _: object())
        server: Any = start_llama(settings_of(LlamaSpec("ngram-mod"), LlamaFiles(Path("d.gguf"))))
        assert server.command[:3] == [sys.executable, "-m", "blockdraft.bench.llama_process"]
        assert '"drafter": null' in server.command[3]
        assert server.find_url("load\nlistening on http://127.0.0.1:1\n") == "http://127.0.0.1:1"
        assert server.find_url("listening on http://127.0.0.1:") is None  # half a line

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llama_server, "find_spec", lambda _: None)
        with pytest.raises(UnsupportedError, match="pip install xllamacpp"):
            start_llama(settings_of(LlamaSpec(), LlamaFiles()))

    def test_a_missing_drafter_is_named(self) -> None:
        with pytest.raises(ConfigError, match="draft-dflash needs a drafter in a GGUF file"):
            start_llama(settings_of(LlamaSpec("draft-dflash"), LlamaFiles()))


def test_what_it_says_of_itself() -> None:
    package: Any = SimpleNamespace(said="program: llama.cpp (x)\nsystem_info: CPU : AVX2 = 1 | \n")
    assert program_of(package) == "llama.cpp (x)"
    assert system_of(package) == "CPU : AVX2 = 1"
    program: Any = SimpleNamespace(said="build: 11312 (0c1e)\n")
    assert program_of(program) == "llama.cpp (llama-server 11312)"
    assert system_of(program) == "not said"


class Namespace(SimpleNamespace):
    """Makes what is asked for."""

    def __getattr__(self, name: str) -> "Namespace":
        made = Namespace()
        setattr(self, name, made)
        return made


API: Any = SimpleNamespace(
    CommonParams=Namespace,
    common_speculative_type=SimpleNamespace(
        __members__={"COMMON_SPECULATIVE_TYPE_NONE": 0, "COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH": 4}
    ),
)
KNOWN: Settings = {
    "model": "m.gguf",
    "threads": 2,
    "parallel": 4,
    "ctx_size": 2048,
    "spec_type": "draft-dflash",
    "drafter": "d.gguf",
    "n_max": 7,
}


def test_the_packages_parameters() -> None:
    params = llama_process._params(API, KNOWN)
    assert (params.model.path, params.n_parallel, params.n_ctx) == ("m.gguf", 4, 2048)
    draft = params.speculative.draft
    assert params.speculative.types == [4]
    assert (draft.mparams.path, draft.n_max) == ("d.gguf", 7)
    assert params.cpuparams.n_threads == draft.cpuparams_batch.n_threads == 2


def test_an_unknown_way_to_draft_is_named() -> None:
    unknown: Settings = {**KNOWN, "spec_type": "magic"}
    with pytest.raises(UnsupportedError, match="no --spec-type magic"):
        llama_process._params(API, unknown)
