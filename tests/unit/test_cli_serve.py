"""``blockdraft serve``: flags become settings; dangerous ones are refused before a model loads."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from blockdraft.cli import main
from blockdraft.serve import ServeSettings
from tests.fake_session import FakeSession

Output = pytest.CaptureFixture[str]
TinyModel = Callable[..., Path]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """What every model name loads."""
    fake = FakeSession()
    monkeypatch.setattr("blockdraft.session.Session.load", fake.load)
    monkeypatch.setattr("blockdraft.cli.sessions.find_model", Path)
    monkeypatch.delenv("BLOCKDRAFT_API_KEY", raising=False)
    return fake


@pytest.fixture
def served(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """Settings of the servers that would run."""
    found: list[ServeSettings] = []

    def serve(session: Any, settings: ServeSettings, **options: Any) -> None:
        found.append(settings)
        options["on_ready"]("http://127.0.0.1:8080")

    monkeypatch.setattr("blockdraft.serve.serve", serve)
    return found


def test_defaults_are_for_this_machine_alone(served: list[ServeSettings], capsys: Output) -> None:
    assert main(["serve"]) == 0
    (settings,) = served
    assert (settings.host, settings.port, settings.api_key) == ("127.0.0.1", 8080, None)
    assert settings.cors_origins == ()
    assert settings.model_id == "smollm2-135m"
    assert "smollm2-135m at http://127.0.0.1:8080/v1" in capsys.readouterr().err


def test_flags_become_settings(served: list[ServeSettings], session: FakeSession) -> None:
    flags = "-np 3 --queue 5 --port 9 --temp 0.5 -n 40 --stop x --cors-origin http://a"
    memory = ["--cache-mib", "7", "--cache-ram", "5"]
    assert main(["serve", "-m", "dir/My.gguf", *flags.split(), *memory]) == 0
    (settings,) = served
    assert (settings.max_running, settings.max_waiting, settings.port) == (3, 5, 9)
    assert (settings.params.temperature, settings.max_tokens) == (0.5, 40)
    assert (settings.stop, settings.cors_origins) == (("x",), ("http://a",))
    assert settings.model_id == "My"
    assert session.loads[0][1]["max_cache_bytes"] == 7 << 20
    assert session.kept_bytes == [5 << 20]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["-m", "hf:org/repo"], "hf:org/repo"),
        (["-m", "a/b.Q4_0.gguf"], "b.Q4_0"),
        (["-m", "x.gguf", "-a", "mine"], "mine"),
    ],
)
def test_the_model_has_a_name(served: list[ServeSettings], flags: list[str], name: str) -> None:
    main(["serve", *flags])
    assert served[0].model_id == name


def test_the_key_may_come_from_the_environment(
    served: list[ServeSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_API_KEY", "secret")
    main(["serve", "--host", "0.0.0.0"])
    main(["serve", "--api-key", "other"])
    main(["serve", "--host", "0.0.0.0", "--no-api-key"])
    assert [settings.api_key for settings in served] == ["secret", "other", None]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "an API key is needed; --no-api-key does without"),
        (["--api-key", "x", "--no-api-key"], "contradict each other"),
        (["--port", "70000"], "port is 70000"),
        (["--parallel", "0"], "0 is below the smallest allowed, 1"),
        (["-ngl", "99"], "there is no flag -ngl: the model runs on the CPU"),
    ],
)
def test_bad_flags_load_no_model(
    session: FakeSession, capsys: Output, flags: list[str], message: str
) -> None:
    assert main(["serve", *flags]) == 2
    assert message in capsys.readouterr().err
    assert session.loads == []


def test_a_missing_extra_is_named(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.delitem(sys.modules, "blockdraft.serve")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "blockdraft.serve.server")
    assert main(["serve"]) == 2
    assert "serving needs the package uvicorn: pip install 'blockdraft[serve]'" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_sigterm_lets_running_answers_end(tiny_model: TinyModel) -> None:
    command = [sys.executable, "-m", "blockdraft", "serve", "-m", str(tiny_model()), "-t", "1"]
    with subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stderr is not None
        url = re.findall(r"http://\S+(?=/v1)", process.stderr.readline())[0]
        body = {"prompt": "a", "max_tokens": 1500, "stream": True, "logit_bias": {"2": -100}}
        with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_taken_port_is_named(tiny_model: TinyModel) -> None:
    command = [sys.executable, "-m", "blockdraft", "serve", "-m", str(tiny_model()), "-t", "1"]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = re.findall(r":(\d+)/v1", process.stderr.readline())[0]
        second = subprocess.run(
            [*command, "--port", port], stderr=subprocess.PIPE, text=True, check=False
        )
        process.terminate()
    assert second.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in second.stderr
