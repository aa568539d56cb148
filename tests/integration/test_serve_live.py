"""A real server under load, and faults in the middle of its answers."""

import json
import threading
from typing import Any

import pytest

from tests.serving import Failing, ScriptSampler, ids, live, plain_http, script_session, wait_for

PROMPT = {"prompt": "a", "max_tokens": 60}


def test_a_full_queue_answers_with_retry_after() -> None:
    sampler = ScriptSampler(ids("hello$"), num_prompt=2)
    sampler.hold.clear()
    session = script_session(sampler=sampler)
    with live(session, max_running=1, max_waiting=1) as url:
        found: list[int] = []

        def post() -> None:
            found.append(
                plain_http.post(f"{url}/v1/completions", json=PROMPT, timeout=20).status_code
            )

        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: plain_http.get(f"{url}/health").json()["waiting"] == 2)
        refused = plain_http.post(f"{url}/v1/completions", json=PROMPT)
        sampler.hold.set()
        for thread in threads:
            thread.join()
    assert (refused.status_code, found) == (429, [200, 200])
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"


def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = script_session(sampler=Failing(ids("hel"), num_prompt=2))
    with live(session) as url:
        text = plain_http.post(f"{url}/v1/completions", json=PROMPT | {"stream": True}).text
        whole = plain_http.post(f"{url}/v1/completions", json=PROMPT)
        assert plain_http.get(f"{url}/health").json()["running"] == 0
    last = text.strip().rpartition("\n\n")[2]
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    assert "[DONE]" not in text
    assert whole.status_code == 500
    assert "ArithmeticError" in caplog.text
    assert "secret" not in text + whole.text + caplog.text


def raising(_: object) -> Any:
    raise ArithmeticError("in a grammar")


def test_a_fault_in_a_grammar_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_rule(wanted: Any, _grammars: Any) -> Any:
        return None if wanted is None else raising

    monkeypatch.setattr("blockdraft.serve.chat.format_rule", format_rule)
    sampler = ScriptSampler(ids("hello there$"), num_prompt=15)
    session = script_session(sampler=sampler)
    body = {"messages": [{"role": "user", "content": "a"}], "stream": True}
    with live(session) as url:
        sampler.hold.clear()
        path = f"{url}/v1/chat/completions"
        with plain_http.stream("POST", path, json=body, timeout=20) as good:
            broken = body | {"response_format": {"type": "json_object"}}
            threading.Timer(0.2, sampler.hold.set).start()
            assert '"server_error"' in plain_http.post(path, json=broken, timeout=20).text
            assert good.read().endswith(b"data: [DONE]\n\n")
        wait_for(lambda: session.engine.used_cache_bytes == 0)
