"""A server in a process of its own."""

import re
import sys
import time
from collections.abc import Iterator

import pytest

from blockdraft.bench.server_process import ServerProcess
from blockdraft.errors import ConfigError

PROGRAM = """
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/drop":
            self.connection.close()
            return
        known = "BLOCKDRAFT_API_KEY" in os.environ
        text = json.dumps({"path": self.path, "body": body, "key": known}).encode()
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()
        self.wfile.write(text)

server = HTTPServer(("127.0.0.1", 0), Handler)
print(f"at http://127.0.0.1:{server.server_port} now", flush=True)
server.serve_forever()
"""


def find_url(said: str) -> str | None:
    match = re.search(r"at (\S+) now", said)
    return None if match is None else match[1]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLOCKDRAFT_API_KEY", "secret")
        with ServerProcess("a server", [sys.executable, "-c", PROGRAM], find_url) as server:
            yield server


def test_asking_gives_the_answers_object(server: ServerProcess) -> None:
    answer = server.ask("/x", {"a": 1})
    assert answer == {"path": "/x", "body": {"a": 1}, "key": False}


def test_a_refusal_is_an_error_with_the_servers_words(server: ServerProcess) -> None:
    with pytest.raises(ConfigError, match=r"a server answers /none with 404: .*path"):
        server.ask("/none", {})


def test_a_connection_that_breaks_is_an_error(server: ServerProcess) -> None:
    with pytest.raises(ConfigError, match="a server broke off at /drop"):
        server.ask("/drop", {})


def test_a_server_that_ends_at_once_is_named_with_its_last_line() -> None:
    command = [sys.executable, "-c", "print('one'); print('no model'); raise SystemExit(3)"]
    with pytest.raises(ConfigError, match="a server ended with code 3: no model"):
        ServerProcess("a server", command, find_url)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="a server cannot be started: No such file"):
        ServerProcess("a server", ["/nowhere/server"], find_url)


def test_a_server_that_is_never_ready_is_ended() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    start_s = time.monotonic()
    with pytest.raises(ConfigError, match="not ready after 0 s"):
        ServerProcess("a server", command, find_url, start_s=0.2)
    assert time.monotonic() - start_s < 15  # it was told to end, not waited for
