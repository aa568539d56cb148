"""A server that is told to stop: running answers end, new ones are refused, in bounded time."""

import json
import threading
from typing import Any

from tests.serving import ScriptSampler, ids, live_server, plain_http, script_session, wait_for

PROMPT = {"prompt": "a", "max_tokens": 60, "stream": True}


def held(text: str) -> ScriptSampler:
    """A sampler that waits to be released."""
    sampler = ScriptSampler(ids(text), num_prompt=2)
    sampler.hold.clear()
    return sampler


def events(text: str) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in text.strip().split("\n\n"))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_running_answers_end_and_new_ones_are_refused() -> None:
    sampler = held("hello there$")
    session = script_session(sampler=sampler)
    with (
        live_server(session) as (url, server),
        plain_http.stream("POST", f"{url}/v1/completions", json=PROMPT) as response,
    ):
        server.should_exit = True
        wait_for(lambda: plain_http.get(f"{url}/health").status_code == 503)
        refused = plain_http.post(f"{url}/v1/completions", json=PROMPT)
        sampler.hold.set()
        text = response.read().decode()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert "shutting down" in refused.json()["error"]["message"]
    assert text.endswith("data: [DONE]\n\n")
    assert "".join(each["choices"][0]["text"] for each in events(text)) == "hello there"


class Slow(ScriptSampler):
    """Takes its time for every token."""

    def pick(self, logits: Any, rows: Any) -> list[int]:
        threading.Event().wait(0.01)
        return super().pick(logits, rows)


def test_answers_beyond_the_time_to_stop_are_cut_with_an_error() -> None:
    session = script_session(sampler=Slow(ids("x" * 500), num_prompt=2))
    body = PROMPT | {"max_tokens": 490}
    with live_server(session, drain_s=0.3) as (url, server):
        whole: list[int] = []

        def post() -> None:
            found = plain_http.post(
                f"{url}/v1/completions", json=body | {"stream": False}, timeout=20
            )
            whole.append(found.status_code)

        thread = threading.Thread(target=post)
        thread.start()
        with plain_http.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as response:
            wait_for(lambda: session.engine.num_running == 2)
            server.should_exit = True
            text = response.read().decode()
        thread.join()
    last = events(text)[-1]["error"]
    assert (last["type"], last["message"]) == ("server_error", "the server is shutting down")
    assert whole == [503]
    assert session.engine.used_cache_bytes == 0
