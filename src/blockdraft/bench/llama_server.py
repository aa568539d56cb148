"""Starts llama.cpp's own server: from the ``xllamacpp`` package, or a program built elsewhere.

Its own defaults except: threads, slots, context, way to draft. Knows no measurement.
"""

import json
import re
import socket
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from blockdraft.bench.llama_process import Settings
from blockdraft.bench.server_process import ServerProcess
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.weights.gguf import GGUFFile

__all__ = [
    "LlamaFiles",
    "LlamaSettings",
    "LlamaSpec",
    "parse_specs",
    "program_of",
    "spec_of",
    "start_llama",
    "system_of",
]

_URL = re.compile(r"^listening on (http://\S+)\n", re.MULTILINE)
_PROGRAM = re.compile(r"^program: (.*)$", re.MULTILINE)
_BUILD = re.compile(r"(?:build|build_info|version)\s*[:=]\s*(\S+)")
_SYSTEM = re.compile(r"system_info: (.*)$", re.MULTILINE)
_CTX_STEP = 256  # llama.cpp sizes its cache in these steps
_NETWORKS = ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")


@dataclass(frozen=True, slots=True)
class LlamaSpec:
    """A way to draft, by llama.cpp's names.

    Attributes:
        type: As of its ``--spec-type``.
        n_max: Its ``--spec-draft-n-max``; None is its default.
    """

    type: str = "none"
    n_max: int | None = None

    @property
    def name(self) -> str:
        """As on our command line."""
        return self.type if self.n_max is None else f"{self.type}:{self.n_max}"

    @property
    def needs_drafter(self) -> bool:
        """Whether a network drafts."""
        return self.type in _NETWORKS


@dataclass(frozen=True, slots=True)
class LlamaFiles:
    """What llama.cpp needs besides the model.

    Attributes:
        drafter: A GGUF file, for ways to draft that need one.
        binary: A ``llama-server``; None is the ``xllamacpp`` package.
    """

    drafter: Path | None = None
    binary: Path | None = None


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """How a server of llama.cpp is started.

    Attributes:
        model: The file.
        num_threads: Of every pass.
        parallel: Answers at once.
        context: The most tokens of each.
        spec: How it drafts.
        files: Its drafter and its program.
    """

    model: Path
    num_threads: int
    parallel: int
    context: int
    spec: LlamaSpec = LlamaSpec()
    files: LlamaFiles = LlamaFiles()

    @property
    def ctx_size(self) -> int:
        """Tokens of all answers together."""
        return -(-self.context // _CTX_STEP) * _CTX_STEP * self.parallel


def parse_specs(text: str) -> tuple[LlamaSpec, ...]:
    """Ways to draft from ``TYPE[:K],...``.

    Raises:
        ConfigError: A K is no number, or its type has none.
    """
    specs = []
    for part in text.split(","):
        name, colon, size = part.partition(":")
        if not colon:
            specs.append(LlamaSpec(name))
            continue
        if name not in _NETWORKS:
            raise ConfigError(f"{part}: a K is only for {', '.join(_NETWORKS)}, not for {name}")
        if not size.isdecimal() or int(size) < 1:
            raise ConfigError(f"{part}: {size!r} is not a number of drafts")
        specs.append(LlamaSpec(name, int(size)))
    return tuple(specs)


def spec_of(drafter: Path) -> LlamaSpec:
    """How llama.cpp drafts with a GGUF file: by blocks, or with a smaller model.

    Raises:
        FileFormatError: It is damaged.
    """
    with GGUFFile.open(drafter) as file:
        is_block = file.metadata.get("general.architecture") == "dflash"
    return LlamaSpec("draft-dflash" if is_block else "draft-simple")


def start_llama(settings: LlamaSettings) -> ServerProcess:
    """The running server.

    Raises:
        ConfigError: It does not start, or a network drafts and there is no GGUF file of it.
        UnsupportedError: ``xllamacpp`` is not installed and no program is given.
    """
    spec = settings.spec
    if spec.needs_drafter and settings.files.drafter is None:
        raise ConfigError(f"{spec.type} needs a drafter in a GGUF file: -md FILE.gguf")
    name = f"llama.cpp's server with {spec.name}"
    if settings.files.binary is not None:
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        return ServerProcess(
            name, _binary_command(settings, port), lambda _: url if _is_healthy(url) else None
        )
    if find_spec("xllamacpp") is None:
        raise UnsupportedError(
            "comparing with llama.cpp's server needs xllamacpp (pip install xllamacpp),"
            " or a llama-server built for this machine: --llama-server PATH"
        )
    known: Settings = {
        "model": str(settings.model),
        "threads": settings.num_threads,
        "parallel": settings.parallel,
        "ctx_size": settings.ctx_size,
        "spec_type": spec.type,
        "drafter": str(settings.files.drafter) if spec.needs_drafter else None,
        "n_max": spec.n_max,
    }
    command = [sys.executable, "-m", "blockdraft.bench.llama_process", json.dumps(known)]
    return ServerProcess(name, command, lambda said: _first(_URL, said))


def program_of(server: ServerProcess) -> str:
    """Program and version, as far as it says them."""
    build = _first(_BUILD, server.said)
    return _first(_PROGRAM, server.said) or f"llama.cpp (llama-server {build or 'of a file'})"


def system_of(server: ServerProcess) -> str:
    """Instruction sets and options of its build, as far as it says them."""
    return (_first(_SYSTEM, server.said) or "not said").strip(" |")


def _binary_command(settings: LlamaSettings, port: int) -> list[str]:
    threads = f"{settings.num_threads}"
    command = [str(settings.files.binary), "-m", str(settings.model), "-t", threads, "-tb", threads]
    command += ["-np", f"{settings.parallel}", "-c", f"{settings.ctx_size}"]
    command += ["--host", "127.0.0.1", "--port", f"{port}"]
    spec = settings.spec
    if spec.type != "none":
        command += ["--spec-type", spec.type]
    if spec.needs_drafter:
        command += ["-md", str(settings.files.drafter), "-td", threads, "-tbd", threads]
    if spec.n_max is not None:
        command += ["--spec-draft-n-max", f"{spec.n_max}"]
    return command


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _is_healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=1) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match[1]
