"""The files of the web page and the policy that they come with."""

import re
from pathlib import Path

import pytest

import blockdraft.serve
from blockdraft.config import SamplingParams
from blockdraft.serve.page_routes import PAGE_PATHS
from tests.serving import client_of, script_session

FOLDER = Path(blockdraft.serve.__file__).parent / "page"
KINDS = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}


def test_the_page_needs_no_key_and_trusts_nothing() -> None:
    with client_of(script_session(), api_key="secret") as client:
        response = client.get("/")
        assert response.status_code == 200
        assert client.get("/v1/models").status_code == 401
    rules = response.headers["content-security-policy"].split("; ")
    assert dict(rule.split(" ", 1) for rule in rules) == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]
    assert response.headers.get_list("referrer-policy") == ["no-referrer"]
    assert response.headers["x-dns-prefetch-control"] == "off"


def test_every_file_is_served_as_what_it_is() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert {"/", *(f"/page/{name}" for name in names)} == PAGE_PATHS
    with client_of(script_session()) as client:
        for name in names:
            response = client.get(f"/page/{name}")
            assert response.content == (FOLDER / name).read_bytes()
            assert response.headers["content-type"].startswith(KINDS[name.rpartition(".")[2]])
            assert "default-src 'none'" in response.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/page/", "/page/app.py", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/a/b.js"]
)
def test_nothing_else_is_served(path: str) -> None:
    with client_of(script_session()) as client:
        assert client.get(path).status_code == 404


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_html() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    wanted = re.findall(r'(?:href|src)="([^"]+)"', texts["index.html"])
    assert wanted
    assert {f"/{address}" for address in wanted} <= PAGE_PATHS
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?! [^>]*src)", texts["index.html"])
    for name, text in texts.items():
        assert len(text.splitlines()) < 400
        assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|\beval\b", text)
        code = "\n".join(line for line in text.splitlines() if not line.startswith("/"))
        others = re.findall(r"url\(|@import|https?://[a-z]\S+", code)
        assert [each for each in others if "www.w3.org/2000/svg" not in each] == [], name


def test_the_model_says_what_a_request_gets_that_says_nothing() -> None:
    params = SamplingParams(temperature=0.0, top_k=7)
    with client_of(script_session(), params=params, max_tokens=9) as client:
        found = client.get("/v1/models/tiny").json()["meta"]["defaults"]
    assert (found["temperature"], found["top_k"], found["max_tokens"]) == (0.0, 7, 9)
    assert "seed" not in found
