"""Ways to write one answer over one target: they differ in time, not in tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockdraft.bench.subject import Subject
from blockdraft.bench.ways import (
    FIXED_SIZES,
    GREEDY,
    fixed_ways,
    lone_ways,
    spoiled,
    two_ways,
)
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.session import Session
from blockdraft.session.drafting import vocabulary_of
from blockdraft.speculative import Controller, write_suffix_corpus
from blockdraft.speculative.costs import CostCurve, CostModel
from blockdraft.weights.gguf import GGUFFile
from tests.native_dflash import network

PROMPT = "a b a b a b"
NETWORK = network(is_dflash2=True, is_causal=False, top_k=64, block_size=6)


@pytest.fixture(scope="module")
def subject(tiny_model: Callable[..., Path]) -> Subject:
    return Subject(tiny_model("llama", "Q8_0", layers=5), "tiny", 1)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> DraftConfig:
    path = NETWORK.write_folder(tmp_path_factory.mktemp("drafters") / "dflash2")
    return DraftConfig(drafter=str(path))


@pytest.fixture(scope="module")
def session(subject: Subject, drafting: DraftConfig) -> Session:
    return Session.load(subject.path, num_threads=1, drafting=drafting)


def test_fixed_settings_are_every_drafter_with_every_size_it_has_room_for(
    session: Session, subject: Subject, drafting: DraftConfig
) -> None:
    ways = list(fixed_ways(session, subject, drafting))
    lookups = [f"{kind} K{size}" for kind in ("ngram", "suffix") for size in FIXED_SIZES]
    networks = [f"dflash K{size}" for size in FIXED_SIZES if size < NETWORK.block_size]
    assert [way.name for way in ways] == lookups + networks
    assert len({id(way.session.engine.target) for way in ways}) == 1
    sizes = [way.session.engine.drafter for way in ways]
    assert [one.block_size - 1 for one in sizes if one is not None] == [
        *FIXED_SIZES * 2,
        1,
        2,
        3,
        5,
    ]


def test_without_a_network_only_lookups_are_fixed(subject: Subject) -> None:
    drafting = DraftConfig("ngram")
    session = Session.load(subject.path, num_threads=1, drafting=drafting)
    names = [way.name for way in fixed_ways(session, subject, drafting)]
    assert len(names) == 2 * len(FIXED_SIZES)


def test_every_drafter_is_tried_by_itself(
    session: Session, subject: Subject, drafting: DraftConfig
) -> None:
    ways = list(lone_ways(session, subject, drafting))
    assert [way.name for way in ways] == ["ngram", "suffix", "dflash"]
    assert len({id(way.session.engine.target) for way in ways}) == 1
    drafters = [way.session.engine.drafter for way in ways]
    assert all(isinstance(one, Controller) for one in drafters)
    assert [one.type_name for one in drafters if one is not None] == ["ngram", "suffix", "dflash"]


def test_a_drafter_alone_has_only_what_it_uses(
    session: Session, subject: Subject, drafting: DraftConfig, tmp_path: Path
) -> None:
    corpus = tmp_path / "answers"
    with GGUFFile.open(subject.path) as file:
        write_suffix_corpus(corpus, [np.arange(20, dtype=np.int32)], vocabulary_of(file))
    whole = replace(drafting, draft_tree=4, draft_p_min=0.1, suffix_corpus=str(corpus))
    assert len(list(lone_ways(session, subject, whole))) == 3
    assert whole.alone("suffix") == DraftConfig(
        "suffix", draft_p_min=0.1, suffix_corpus=str(corpus)
    )
    assert whole.alone("ngram") == DraftConfig("ngram")
    network = whole.alone("dflash")
    assert (network.drafter, network.draft_tree, network.suffix_corpus) == (whole.drafter, 4, None)


def test_one_drafter_is_alone_in_any_case(subject: Subject) -> None:
    drafting = DraftConfig("ngram")
    session = Session.load(subject.path, num_threads=1, drafting=drafting)
    with pytest.raises(ConfigError, match="ngram is alone"):
        list(lone_ways(session, subject, drafting))


def test_every_way_writes_the_same(
    session: Session, subject: Subject, drafting: DraftConfig
) -> None:
    others = list(fixed_ways(session, subject, drafting))[::4]
    others += lone_ways(session, subject, drafting)
    wrong = two_ways(spoiled(session, subject, drafting))[1]
    answers = [way.answer(PROMPT, 24) for way in (*two_ways(session), *others, wrong)]
    assert len({answer.token_ids for answer in answers}) == 1
    assert answers[0].stats is None


@pytest.mark.parametrize("has_network", [True, False], ids=["network", "lookup"])
def test_a_spoiled_session_accepts_next_to_nothing(
    has_network: bool,
    subject: Subject,
    drafting: DraftConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Drafts cost nothing beside a pass: else a tiny model has none that pay.
    costs = CostModel(CostCurve({1: 1.0, 16: 1.01}))
    monkeypatch.setattr("blockdraft.bench.ways.measure_costs", lambda _: costs)
    wanted = drafting if has_network else DraftConfig("ngram")
    session = Session.load(subject.path, num_threads=1, drafting=wanted)
    found = spoiled(session, subject, wanted).generate(PROMPT, params=GREEDY, max_tokens=24)
    assert found.stats is not None
    assert found.stats.type_name == "adversary"
    assert found.stats.num_drafted > 0
    assert found.stats.num_accepted <= 1  # a wrong token is right by chance
