"""A server in a process of its own, and questions to it over HTTP.

Knows commands, addresses and JSON; no models. Whatever the server says goes to a file that is gone
with it.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from blockdraft.errors import ConfigError

__all__ = ["ServerProcess"]

_POLL_S = 0.05
_STOP_S = 20.0
_HIDDEN = ("BLOCKDRAFT_API_KEY", "LLAMA_API_KEY")
"""Of the environment: a measured server asks for no key."""


class ServerProcess:
    """A running server; leaving its ``with`` block ends it.

    Args:
        name: In messages.
        command: What runs it.
        find_url: The address of a server that is ready, from what it has said; None before.
        start_s: Seconds that it may take to be ready.

    Raises:
        ConfigError: It cannot be started, ends at once or is not ready in time.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        find_url: Callable[[str], str | None],
        *,
        start_s: float = 120.0,
    ) -> None:
        self.name = name
        environment = {key: value for key, value in os.environ.items() if key not in _HIDDEN}
        descriptor, path = tempfile.mkstemp(prefix="blockdraft-bench-", suffix=".log")
        self._log = Path(path)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closed with us, which ends servers that read it
                stdout=descriptor,
                stderr=descriptor,
                env=environment,
            )
        except OSError as error:
            self._log.unlink()
            raise ConfigError(f"{name} cannot be started: {error.strerror or error}") from error
        finally:
            os.close(descriptor)
        try:
            self.url = self._await(find_url, start_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self._log.read_text("utf-8", errors="replace")

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that a POST gives; safe from any thread.

        Raises:
            ConfigError: The server refuses or breaks off; the message has its words.
        """
        connection = HTTPConnection(urlsplit(self.url).netloc)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body).encode(), headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            if response.status != 200:
                raise ConfigError(f"{self.name} answers {path} with {response.status}: {text}")
            answer: dict[str, Any] = json.loads(text)
            return answer
        except (OSError, HTTPException, ValueError) as error:
            raise ConfigError(f"{self.name} broke off at {path}: {error}") from error
        finally:
            connection.close()

    def close(self) -> None:
        """End the server."""
        process = self._process
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._log.unlink(missing_ok=True)

    def _await(self, find_url: Callable[[str], str | None], start_s: float) -> str:
        end_s = time.monotonic() + start_s
        while time.monotonic() < end_s:
            code = self._process.poll()
            said = self.said
            if code is not None:
                last = (said.strip().splitlines() or ["it said nothing"])[-1]
                raise ConfigError(f"{self.name} ended with code {code}: {last}")
            url = find_url(said)
            if url is not None:
                return url
            time.sleep(_POLL_S)
        raise ConfigError(f"{self.name} is not ready after {start_s:.0f} s")
