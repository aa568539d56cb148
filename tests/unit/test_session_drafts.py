"""Text over rounds of several tokens: stop strings, chunks and counters as in plain decoding."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdraft.config import DraftConfig, SamplingParams
from blockdraft.engine import Engine
from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.session import Result, Session
from blockdraft.session.drafting import vocabulary_of
from blockdraft.speculative import write_suffix_corpus
from blockdraft.weights.gguf import GGUFFile
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.fake_codec import ALPHABET, FakeCodec, text_of
from tests.fake_target import VOCAB_SIZE, FakeTarget
from tests.unit.test_session import Script

PARAMS = SamplingParams(seed=5)


def session_of(script: str, name: str | None = None, *, num_drafts: int = 7) -> Session:
    """A session that writes ``script`` after the prompt "a", with or without drafts."""
    answer = [0, *(ALPHABET.index(letter) for letter in "a" + script)]
    drafter = None
    if name is not None:
        drafter = ScriptedDrafter(
            DRAFTERS[name], num_drafts, [answer] * 9, vocab_size=VOCAB_SIZE, seed=1
        )
    engine = Engine(
        FakeTarget(), max_cache_bytes=1 << 24, sampler=Script(script + "z" * 40), drafter=drafter
    )
    return Session(engine, FakeCodec())


def ask(session: Session, *, max_tokens: int = 40, stop: Sequence[str] = ()) -> Result:
    return session.generate("a", params=PARAMS, max_tokens=max_tokens, stop=stop)


def outcome(result: Result) -> tuple[object, ...]:
    timings = result.timings
    return (
        result.text,
        result.token_ids,
        result.finish_reason,
        timings.predicted_tokens,
        timings.prompt_tokens,
    )


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(
    ("script", "max_tokens", "stop"),
    [
        ("hello there$", 40, []),
        ("hello there, you", 9, []),
        ("one, two; three, four$", 40, ["; t"]),
        ("abcdefghijkl$", 40, ["cd", "gh"]),
        ("abcdefghijkl$", 4, ["d"]),
        ("so far, so good$", 40, [", but"]),
        ("ab%c%$", 40, []),
        ("abc%", 4, ["zz"]),
    ],
    ids=["end", "limit", "stop", "two-stops", "stop-at-limit", "held", "half", "half-at-limit"],
)
def test_everything_is_as_without_drafts(
    name: str, script: str, max_tokens: int, stop: list[str]
) -> None:
    session = session_of(script, name)
    found = ask(session, max_tokens=max_tokens, stop=stop)
    plain = ask(session_of(script), max_tokens=max_tokens, stop=stop)
    assert outcome(found) == outcome(plain)
    assert (session.engine.has_work, session.engine.used_cache_bytes) == (False, 0)


def test_a_stop_string_cuts_inside_a_round() -> None:
    result = ask(session_of("abcdefghijkl$", "oracle"), stop=["de"])
    assert (result.text, text_of(result.token_ids)) == ("abc", "abcde")
    assert result.finish_reason == "stop"
    assert result.stats is not None
    # The first token is the prompt's; the round wrote b c d e of its eight tokens.
    assert (result.stats.num_rounds, result.stats.num_tokens) == (1, 4)
    assert (result.stats.num_drafted, result.stats.num_accepted) == (7, 4)


def test_neighbours_go_on_after_a_stop_string() -> None:
    session = session_of("abcdefghijkl$", "oracle")
    stopped = session.stream("a", params=PARAMS, stop=["bc"])
    other = session.stream("a", params=PARAMS)
    assert [chunk.text for chunk in stopped] == ["a", ""]
    assert "".join(chunk.text for chunk in other) == "abcdefghijkl"


def test_chunks_tell_drafts_from_the_targets_own_tokens() -> None:
    session = session_of("abcdefgh$", "oracle", num_drafts=2)
    chunks = list(session.stream("a", params=PARAMS))
    assert [chunk.text for chunk in chunks] == list("abcdefgh")
    marks = "".join("D" if chunk.is_drafted else "t" for chunk in chunks)
    assert marks == "tDDtDDtD"


def test_stats_are_in_the_result_and_its_keys() -> None:
    result = ask(session_of("abcdefgh$", "oracle", num_drafts=2))
    assert result.to_dict()["speculation"] == {
        "type": "scripted",
        "tau": 8 / 3,
        "acceptance_rate": 1.0,
        "rounds": 3,
        "accepted_by_position": [1.0, 1.0],
        "block_size": 3,
    }
    assert ask(session_of("abc$")).to_dict()["speculation"] is None


def test_an_answer_may_be_written_without_drafts() -> None:
    session = session_of("abcdefgh$", "oracle")
    result = session.generate("a", params=PARAMS, draft=False)
    assert (result.text, result.stats) == ("abcdefgh", None)


class TestSuffix:
    """A session that looks into what it wrote before."""

    def ask(self, model: Path, **settings: Any) -> Result:
        drafting = DraftConfig("suffix", policy="fixed", **settings)
        session = Session.load(model, num_threads=1, ctx_size=128, drafting=drafting)
        return session.generate(
            "the way", params=SamplingParams(temperature=0, seed=0), max_tokens=40
        )

    def test_earlier_answers_make_the_next_one_faster(
        self, tiny_model: Callable[..., Path], tmp_path: Path
    ) -> None:
        model, cache = tiny_model(), str(tmp_path / "cache")
        plain = self.ask(model)
        first, second = (self.ask(model, suffix_cache=cache) for _ in range(2))
        assert plain.token_ids == first.token_ids == second.token_ids
        rounds = [one.stats.num_rounds for one in (plain, first, second) if one.stats is not None]
        assert rounds[0] == rounds[1] > rounds[2]

    def test_answers_that_were_made_before_are_drafted_from(
        self, tiny_model: Callable[..., Path], tmp_path: Path
    ) -> None:
        model, corpus = tiny_model(), tmp_path / "answers"
        plain = self.ask(model)
        with GGUFFile.open(model) as file:
            answers = [np.array(plain.token_ids, np.int32)] * 20
            write_suffix_corpus(corpus, answers, vocabulary_of(file))
        found = self.ask(model, suffix_corpus=str(corpus))
        assert found.token_ids == plain.token_ids
        assert found.stats is not None
        assert plain.stats is not None
        assert found.stats.num_rounds < 0.6 * plain.stats.num_rounds
        with pytest.raises(ConfigError, match=f"^{corpus}: has answers in a vocabulary of"):
            self.ask(tiny_model("gemma3", "Q8_0"), suffix_corpus=str(corpus))

    def test_answers_of_another_vocabulary_are_refused(
        self, tiny_model: Callable[..., Path], tmp_path: Path
    ) -> None:
        cache = tmp_path / "cache"
        self.ask(tiny_model(), suffix_cache=str(cache))
        with pytest.raises(ConfigError, match=f"^{cache}: has answers in a vocabulary of"):
            self.ask(tiny_model("gemma3", "Q8_0"), suffix_cache=str(cache))
        cache.write_bytes(b"nonsense")
        with pytest.raises(FileFormatError, match=f"^{cache}: is no suffix cache"):
            self.ask(tiny_model(), suffix_cache=str(cache))
