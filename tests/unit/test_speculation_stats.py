"""Counts of rounds, by the conventions of the glossary."""

import pytest

from blockdraft.speculative import NO_DRAFTS, Proposal, RoundCounter


def counted(*rounds: tuple[Proposal, int, int], block_size: int = 5) -> RoundCounter:
    counter = RoundCounter("ngram", block_size)
    for proposal, num_accepted, num_tokens in rounds:
        counter.add_round(proposal, num_accepted=num_accepted, num_tokens=num_tokens)
    return counter


def chain(length: int) -> Proposal:
    return Proposal.chain(range(length))


def test_tau_is_all_tokens_over_all_rounds() -> None:
    stats = counted((chain(4), 2, 3), (NO_DRAFTS, 0, 1), (chain(2), 2, 3)).stats(1.0)
    assert stats.mean_acceptance_length == pytest.approx(7 / 3)
    assert (stats.num_rounds, stats.num_tokens) == (3, 7)


def test_acceptance_rate_is_accepted_over_drafted() -> None:
    stats = counted((chain(4), 2, 3), (NO_DRAFTS, 0, 1), (chain(2), 2, 3)).stats(1.0)
    assert (stats.num_accepted, stats.num_drafted) == (4, 6)
    assert stats.acceptance_rate == pytest.approx(4 / 6)


def test_positions_count_proposals_that_are_long_enough() -> None:
    rounds = [(chain(4), 2, 3), (chain(2), 2, 3), (chain(2), 0, 1), (NO_DRAFTS, 0, 1)]
    stats = counted(*rounds).stats(1.0)
    assert stats.proposed_by_position == (3, 3, 1, 1)
    assert stats.kept_by_position == (2, 2, 0, 0)
    assert stats.accepted_by_position == pytest.approx((2 / 3, 2 / 3, 0, 0))


def test_a_tree_counts_its_depth() -> None:
    tree = Proposal((1, 2, 3), (-1, -1, 0))
    stats = counted((tree, 2, 3)).stats(1.0)
    assert stats.proposed_by_position == stats.kept_by_position == (1, 1)
    assert stats.acceptance_rate == pytest.approx(2 / 3)


def test_a_round_that_the_answer_ends_in_counts_what_was_written() -> None:
    stats = counted((chain(4), 2, 2)).stats(1.0)
    assert stats.mean_acceptance_length == 2.0


def test_nothing_drafted() -> None:
    stats = RoundCounter("ngram", 8).stats(0.0)
    assert (stats.mean_acceptance_length, stats.acceptance_rate) == (1.0, 0.0)
    assert stats.accepted_by_position == ()


def test_time_is_split_into_draft_verify_and_other() -> None:
    counter = counted((chain(1), 1, 2))
    counter.add_time(0.25, 1.0)
    counter.add_time(0.25, 1.0)
    stats = counter.stats(4.0)
    assert (stats.draft_s, stats.verify_s, stats.other_s) == (0.5, 2.0, 1.5)


def test_json_has_the_frozen_keys() -> None:
    assert counted((chain(4), 4, 5)).stats(1.0).to_dict() == {
        "type": "ngram",
        "tau": 5.0,
        "acceptance_rate": 1.0,
        "rounds": 1,
        "accepted_by_position": [1.0, 1.0, 1.0, 1.0],
        "block_size": 5,
    }


def test_choices_count_rounds_by_drafter_and_size() -> None:
    named = Proposal((1, 2), (-1, 0), drafter="suffix")
    stats = counted((named, 1, 2), (chain(2), 0, 1), (chain(2), 2, 3), (NO_DRAFTS, 0, 1)).stats(1.0)
    assert stats.choices == {("suffix", 2): 1, ("ngram", 2): 2, ("", 0): 1}
