"""Who may talk to a server: hosts, web pages, keys, bodies."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from blockdraft.errors import ConfigError
from blockdraft.serve.guard import Guard
from blockdraft.serve.settings import is_loopback
from tests.serving import LOCAL, settings_of

JSON = {"content-type": "application/json"}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(body or b"ok")(scope, receive, send)


def client_of(base_url: str = LOCAL, **changes: Any) -> TestClient:
    guard = Guard(echo, settings_of(**changes), open_paths={"/health"})
    return TestClient(guard, base_url=base_url)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("127.1.2.3", 200),
        ("[::1]:8080", 200),
        ("app.localhost", 200),
        ("LOCALHOST.", 200),
        ("models.lan", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.0.7:8080", 403),
        ("localhost@evil.example", 400),
        ("local host", 403),
        ("", 400),
        ("localhost:port", 400),
    ],
)
def test_only_names_of_this_machine_are_answered(host: str, status: int) -> None:
    client = client_of(allowed_hosts=("models.lan",))
    assert client.get("/", headers={"host": host}).status_code == status


@pytest.mark.parametrize(("host", "status"), [("192.168.0.7:8080", 200), ("evil.example", 403)])
def test_an_open_server_answers_to_addresses_but_not_to_names(host: str, status: int) -> None:
    client = client_of(host="0.0.0.0", open_to_all=True)
    assert client.get("/", headers={"host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost:8080", 200),
        ("http://localhost:3000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("file://localhost:8080", 403),
        ("https://good.example", 200),
        ("https://good.example.evil.example", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_web_pages_of_other_origins_are_refused(
    method: str, origin: str | None, status: int
) -> None:
    client = client_of(cors_origins=("https://good.example",))
    headers = {} if origin is None else {"origin": origin}
    response = client.request(method, "/", headers=headers)
    assert response.status_code == status
    allowed = response.headers.get("access-control-allow-origin")
    assert allowed == ("https://good.example" if origin == "https://good.example" else None)


def test_a_preflight_is_answered_for_allowed_pages_only() -> None:
    client = client_of(cors_origins=("https://good.example",), api_key="secret")
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    good = client.options("/", headers={"origin": "https://good.example", **asked})
    assert good.status_code == 204
    assert good.headers["access-control-allow-headers"] == "x-a"
    bad = client.options("/", headers={"origin": "https://evil.example", **asked})
    assert bad.status_code == 403
    assert "access-control-allow-origin" not in bad.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer secret"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secre"}, 401),
        ({"authorization": "Bearer secrets"}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": b"Bearer \xff"}, 401),
    ],
)
def test_the_key_opens(headers: Any, status: int) -> None:
    client = client_of(api_key="secret")
    response = client.get("/", headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("key", ["", "x", "secret", "x" * 5000])
def test_keys_are_compared_in_equal_time(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return given == known

    monkeypatch.setattr("blockdraft.serve.guard.hmac.compare_digest", compare_digest)
    client_of(api_key="secret").get("/", headers={"x-api-key": key})
    assert [(len(given), len(known)) for given, known in compared] == [(32, 32)]


def test_open_paths_need_no_key() -> None:
    assert client_of(api_key="secret").get("/health").status_code == 200


def test_bodies_have_a_limit() -> None:
    client = client_of(max_body_bytes=10)
    assert client.post("/", content=b"x" * 10, headers=JSON).text == "x" * 10
    for content in (b"x" * 11, iter([b"x" * 6] * 2)):  # with a length, and in chunks
        response = client.post("/", content=content, headers=JSON)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("kind", "status"),
    [("application/json; charset=utf-8", 200), ("text/plain", 415), (None, 415)],
)
def test_bodies_are_json(kind: str | None, status: int) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert client_of().post("/", content=b"{}", headers=headers).status_code == status


def test_slow_bodies_are_given_up() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.sleep(0.03)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    asyncio.run(Guard(echo, settings_of(body_s=0.1))(scope, receive, send))
    assert sent[0]["status"] == 408


def test_responses_are_not_for_other_pages() -> None:
    headers = client_of().get("/").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": "0.0.0.0"}, "host 0.0.0.0 can be reached from other machines"),
        ({"host": "::"}, "an API key is needed; --no-api-key does without"),
        ({"host": "my-machine"}, "can be reached"),
        ({"api_key": " "}, "the API key is empty"),
        ({"port": 65536}, "port is 65536"),
        ({"cors_origins": ("good.example",)}, "CORS origin good.example must look like"),
        ({"cors_origins": ("https://good.example/",)}, "must look like"),
        ({"max_waiting": -1}, "max_waiting is -1"),
    ],
)
def test_dangerous_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(**changes)


def test_a_key_or_consent_opens_to_others() -> None:
    settings_of(host="0.0.0.0", api_key="secret")
    settings_of(host="0.0.0.0", open_to_all=True)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("10.0.0.1", False), ("a", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
