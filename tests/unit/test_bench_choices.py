"""Who drafted how much: shares over rounds and over categories."""

import pytest

from blockdraft.bench.choices import average_choices, choices_of
from blockdraft.speculative import NO_DRAFTS, Proposal, RoundCounter, SpeculationStats


def stats_of(*rounds: tuple[str, int]) -> SpeculationStats:
    counter = RoundCounter("ngram+dflash", 8)
    for drafter, size in rounds:
        proposal = Proposal((1,) * size, tuple(range(-1, size - 1)), drafter=drafter)
        counter.add_round(proposal if size else NO_DRAFTS, num_accepted=0, num_tokens=1)
    return counter.stats(1.0)


def test_shares_are_of_all_rounds_of_all_answers() -> None:
    found = choices_of([stats_of(("ngram", 3), ("", 0)), stats_of(("ngram", 7), ("dflash", 3))])
    assert found.by_drafter == {"ngram": 0.5, "none": 0.25, "dflash": 0.25}
    assert found.by_size == {0: 0.25, 3: 0.5, 7: 0.25}
    assert found.mean_nodes == pytest.approx(13 / 4)


def test_no_round_has_no_share() -> None:
    found = choices_of([stats_of()])
    assert (found.by_drafter, found.by_size, found.mean_nodes) == ({}, {}, 0)


def test_an_average_gives_each_category_the_same_weight() -> None:
    few = choices_of([stats_of(("ngram", 2))])
    many = choices_of([stats_of(*[("", 0)] * 9)])
    found = average_choices([few, many])
    assert found.by_drafter == {"ngram": 0.5, "none": 0.5}
    assert found.by_size == {0: 0.5, 2: 0.5}


def test_json_keys_are_stable() -> None:
    assert choices_of([stats_of(("ngram", 2))]).to_json() == {
        "drafters": {"ngram": 1.0},
        "sizes": {"2": 1.0},
        "mean_nodes": 2.0,
    }
