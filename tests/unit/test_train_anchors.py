"""Blocks of training: which, with which labels, and the vocabulary they are drafted from."""

import numpy as np
import pytest

from blockdraft.errors import ConfigError
from blockdraft.train.anchors import NO_LABEL, Blocks, BlockSampler, spread_blocks
from blockdraft.train.vocabulary import choose_vocabulary, count_answer_tokens
from tests.tiny_corpus import counting_sequence

SEQUENCE = counting_sequence(0, prompt=10, answer=54)


def test_a_draw_depends_on_seed_epoch_and_sequence_alone() -> None:
    def draw(seed: int, epoch: int, index: int) -> tuple[list[int], int]:
        blocks = BlockSampler(seed=seed).draw(SEQUENCE, epoch=epoch, index=index)
        return blocks.positions.tolist(), blocks.width

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({str(draw(*key)) for key in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))}) == 4


def test_anchors_are_answer_tokens_that_have_a_successor() -> None:
    seen: set[int] = set()
    for epoch in range(40):
        positions = BlockSampler().draw(SEQUENCE, epoch=epoch, index=0).positions
        assert len(positions) == round(64 * 176 / 512)
        assert (np.diff(positions) > 0).all()
        seen |= set(positions.tolist())
    assert seen == set(range(10, 63))


def test_short_answers_give_every_anchor_they_have() -> None:
    short = counting_sequence(0, prompt=200, answer=3)
    assert BlockSampler().draw(short, epoch=0, index=0).positions.tolist() == [200, 201]


def test_widths_are_mixed() -> None:
    sampler = BlockSampler(widths=(3, 5))
    widths = [sampler.draw(SEQUENCE, epoch=epoch, index=0).width for epoch in range(60)]
    assert 15 < widths.count(3) < 45
    assert widths.count(3) + widths.count(5) == 60


def test_labels_end_with_the_sequence() -> None:
    blocks = Blocks(SEQUENCE, np.array([10, 61]), 4)
    ids = SEQUENCE.token_ids
    assert blocks.tokens().tolist() == [ids[10:14].tolist(), [ids[61], ids[62], ids[63], NO_LABEL]]
    assert (blocks.num_rows, blocks.num_features) == (8, 61)


def test_spread_blocks_are_whole() -> None:
    blocks = spread_blocks(SEQUENCE, 8, 5)
    assert blocks is not None
    assert blocks.positions.tolist() == list(range(10, 57, 5))
    assert (blocks.tokens() != NO_LABEL).all()
    assert spread_blocks(counting_sequence(0, answer=7), 8, 5) is None


@pytest.mark.parametrize(
    ("options", "message"), [({"widths": (1, 4)}, "widths"), ({"anchors_per_512": 0}, "anchors")]
)
def test_impossible_blocks_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockSampler(**options)  # type: ignore[arg-type]


def test_the_vocabulary_is_what_answers_use_most() -> None:
    counts = count_answer_tokens([SEQUENCE], 299)
    assert counts.sum() == 54
    assert counts[40] == SEQUENCE.answer_ids.tolist().count(40)
    counts = np.array([5, 0, 9, 5, 1])
    chosen = choose_vocabulary(counts, 3)
    assert chosen.token_ids.tolist() == [0, 2, 3]
    assert chosen.coverage == pytest.approx(19 / 20)
    assert chosen.row_of(5).tolist() == [0, -1, 1, 2, -1]
    assert choose_vocabulary(counts, None).token_ids.tolist() == [0, 1, 2, 3, 4]
