from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request
from blockdraft.engine.sampling import SampleRow
from blockdraft.errors import CapacityError, ConfigError
from blockdraft.session import AnswerSettings, Result, Session
from tests.fake_codec import ALPHABET, FakeCodec, text_of
from tests.fake_target import FakeSampler, FakeTarget

PARAMS = SamplingParams(seed=5)


class Script:
    """A sampler that writes one text, whatever the logits; position 1 is its first character."""

    def __init__(self, text: str) -> None:
        self._text = text

    def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
        return [ALPHABET.index(self._text[row.position - 2]) for row in rows]


def session_of(script: str | None = None, *, context_length: int = 512) -> Session:
    sampler = FakeSampler() if script is None else Script(script)
    engine = Engine(
        FakeTarget(), max_cache_bytes=1 << 24, context_length=context_length, sampler=sampler
    )
    return Session(engine, FakeCodec())


def ask(session: Session, *, max_tokens: int | None = 20, stop: Sequence[str] = ()) -> Result:
    # The prompt is two tokens: the first token and "a".
    return session.generate("a", params=PARAMS, max_tokens=max_tokens, stop=stop)


def test_answer_ends_with_the_models_end_token() -> None:
    result = ask(session_of("hello$"))
    assert (result.text, result.finish_reason) == ("hello", "stop")
    assert text_of(result.token_ids) == "hello"
    assert result.timings.predicted_tokens == 5
    assert result.timings.prompt_tokens == 2


def test_answer_ends_at_max_tokens() -> None:
    result = ask(session_of("hello$"), max_tokens=3)
    assert (result.text, result.finish_reason) == ("hel", "length")


def test_stop_string_cuts_text_before_it_and_ids_after_the_token_that_completed_it() -> None:
    session = session_of("one, two; three$")
    result = ask(session, stop=["; t"])
    assert (result.text, result.finish_reason) == ("one, two", "stop")
    assert text_of(result.token_ids) == "one, two; t"
    assert result.timings.predicted_tokens == len(result.token_ids)
    assert (session.engine.has_work, session.engine.used_cache_bytes) == (False, 0)


def test_stop_string_may_be_a_plain_string() -> None:
    assert ask(session_of("abcdef$"), stop="cd").text == "ab"


def test_stop_string_on_the_last_token_says_stop() -> None:
    result = ask(session_of("abcdef$"), max_tokens=4, stop=["d"])
    assert (result.text, result.finish_reason) == ("abc", "stop")


def test_held_text_is_shown_when_the_answer_ends() -> None:
    assert ask(session_of("so far,$"), stop=[", but"]).text == "so far,"


def test_half_a_character_is_shown_when_the_answer_ends() -> None:
    assert ask(session_of("ab%$")).text == "ab%"


def test_chunks_join_to_the_result() -> None:
    session = session_of("wait, w%hat?$")
    with session.stream("a", params=PARAMS, stop=[", when"]) as stream:
        chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == stream.result.text == "wait, w%hat?"
    ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    assert tuple(ids) == stream.result.token_ids
    assert all(chunk.text for chunk in chunks)


def test_generate_batch_and_stream_write_the_same() -> None:
    prompts = ["a", "bc", "the end.", "a b c d"]
    single = [session_of().generate(text, params=PARAMS, max_tokens=9) for text in prompts]
    batch = session_of().batch(prompts, params=PARAMS, max_tokens=9)
    assert [result.token_ids for result in batch] == [result.token_ids for result in single]
    assert [result.text for result in batch] == [result.text for result in single]


def test_streams_may_be_read_in_turn() -> None:
    session = session_of()
    texts = {
        prompt: session_of().generate(prompt, params=PARAMS, max_tokens=9).text
        for prompt in ("x", "yy")
    }
    streams = {prompt: session.stream(prompt, params=PARAMS, max_tokens=9) for prompt in texts}
    next(streams["x"])
    next(streams["yy"])
    for prompt, stream in streams.items():
        list(stream)
        assert stream.result.text == texts[prompt]


def test_missing_seed_is_drawn_and_reproduces_the_answer() -> None:
    session = session_of()
    first = session.generate("a", max_tokens=9)
    second = session.generate("a", max_tokens=9)
    assert first.seed != second.seed
    assert max(first.seed, second.seed) < 2**53  # exact where JSON numbers are doubles
    again = session.generate("a", params=SamplingParams(seed=first.seed), max_tokens=9)
    assert again.token_ids == first.token_ids


def test_given_seed_is_reported() -> None:
    assert ask(session_of("a$")).seed == 5


def test_batch_draws_a_seed_for_each_prompt() -> None:
    results = session_of().batch(["a", "a", "a"], max_tokens=3)
    assert len({result.seed for result in results}) == 3


def test_max_tokens_defaults_to_the_room_in_the_context() -> None:
    result = ask(session_of("x" * 60, context_length=40), max_tokens=None)
    assert (len(result.token_ids), result.finish_reason) == (38, "length")


def test_prompt_that_fills_the_context_is_refused_with_numbers() -> None:
    with pytest.raises(CapacityError, match=r"512 prompt tokens leave no room in the .* 512"):
        session_of().generate("a" * 511)


def test_closing_a_stream_cancels_and_frees() -> None:
    session = session_of("hello there$")
    stream = session.stream("a", params=PARAMS)
    assert next(stream).text == "h"
    next(stream)
    stream.close()
    stream.close()
    assert (session.engine.has_work, session.engine.used_cache_bytes) == (False, 0)
    assert (stream.result.text, stream.result.finish_reason) == ("he", "cancelled")
    assert list(stream) == []


def test_dropping_a_stream_cancels() -> None:
    session = session_of("hello there$")
    for _ in session.stream("a", params=PARAMS):
        break
    assert not session.engine.has_work


def test_interrupt_cancels_everything() -> None:
    class Interrupted(Script):
        def pick(self, logits: NDArray[np.float32], rows: Sequence[SampleRow]) -> list[int]:
            if rows[0].position > 4:
                raise KeyboardInterrupt
            return super().pick(logits, rows)

    engine = Engine(FakeTarget(), max_cache_bytes=1 << 24, sampler=Interrupted("hello$"))
    session = Session(engine, FakeCodec())
    other = session.stream("b", params=PARAMS)
    stream = session.stream("a", params=PARAMS)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert (engine.has_work, engine.used_cache_bytes) == (False, 0)
    assert (stream.result.text, stream.result.finish_reason) == ("hel", "cancelled")
    assert other.result.finish_reason == "cancelled"


def test_bad_prompt_in_a_batch_cancels_the_others() -> None:
    session = session_of()
    with pytest.raises(CapacityError):
        session.batch(["a", "a" * 600], params=PARAMS, max_tokens=3)
    assert not session.engine.has_work


def test_empty_stop_string_is_refused_before_anything_runs() -> None:
    session = session_of()
    with pytest.raises(ConfigError, match="stop string is empty"):
        session.generate("a", stop=["x", ""])
    assert not session.engine.has_work


def test_result_before_the_end_is_refused() -> None:
    stream = session_of("ab$").stream("a", params=PARAMS)
    with pytest.raises(ConfigError, match="not ended"):
        _ = stream.result
    stream.close()


def test_requests_of_others_in_the_engine_are_named() -> None:
    session = session_of("ab$")
    session.engine.add(Request((0, 3), PARAMS, 3))
    with pytest.raises(ConfigError, match="request 0 was not made by this session"):
        session.generate("a", params=PARAMS)


def test_result_has_the_keys_that_others_read() -> None:
    found = ask(session_of("ab$")).to_dict()
    assert list(found) == [
        "text", "token_ids", "finish_reason", "seed", "timings", "speculation"
    ]  # fmt: skip
    assert list(found["timings"]) == [
        "prompt_tokens", "prompt_s", "predicted_tokens", "predicted_s", "tokens_per_s", "ttft_s",
        "cached_tokens",
    ]  # fmt: skip
    assert found["token_ids"] == [ALPHABET.index("a"), ALPHABET.index("b")]


def test_an_error_of_a_rule_is_raised_at_its_place_in_the_text() -> None:
    def rule(output: NDArray[np.int32]) -> NDArray[np.uint32]:
        if len(output) == 3:
            raise LookupError("a rule failed")
        return np.full(2, 2**32 - 1, np.uint32)

    session = session_of("hello$")
    other = session.stream("a", params=PARAMS)
    stream = session.start([0, 3], AnswerSettings(PARAMS, token_rule=rule))
    assert [next(stream).text for _ in "hel"] == list("hel")
    with pytest.raises(LookupError):
        next(stream)
    assert stream.result.finish_reason == "failed"
    assert "".join(chunk.text for chunk in other) == "hello"


def test_drained_pieces_run_nothing() -> None:
    session = session_of("hello$")
    stream = session.start([0, 3], AnswerSettings(PARAMS, num_logprobs=1))
    assert stream.drain() == []
    while not stream.has_ended:
        session.advance()
    chunks = stream.drain()
    assert "".join(chunk.text for chunk in chunks) == "hello"
    assert [len(chunk.logprobs) for chunk in chunks] == [1] * 5
    assert list(stream) == []
