"""How far a smaller model drafts, and in how many passes."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft import _native
from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVLayout, KVPool, SequenceCache
from blockdraft.ops.batch import Batch, Candidates
from blockdraft.speculative import AutoregressiveDrafter, DraftTask
from blockdraft.speculative.drafter import Stepwise

LAYOUT = KVLayout(1, 16, (0,))
GREEDY, HOT = SamplingParams(temperature=0.0), SamplingParams(temperature=2.0, seed=1)


class Counting:
    """A model whose likeliest token is the one after the token read, with probability 0.8.

    Attributes:
        rows: Rows of each sequence in each pass.
    """

    def __init__(self, context_length: int = 1000) -> None:
        self.config: Any = SimpleNamespace(context_length=context_length)
        self.layout = LAYOUT
        self.max_rows = 16
        self.rows: list[list[int]] = []

    def run(self, batch: Batch) -> tuple[NDArray[np.float32], Candidates]:
        self.rows.append(np.diff(batch.row_starts).tolist())
        first = batch.token_ids[batch.logit_rows] + 1
        token_ids = np.stack([first, first + 100], axis=1)
        logits = np.log(np.full(token_ids.shape, (0.8, 0.2), np.float32))
        return first[:, None].astype(np.float32), Candidates(
            token_ids, logits, np.exp(logits), None
        )


def pick(logits: NDArray[np.float32], rows: Sequence[tuple[DraftTask, Sequence[int]]]) -> list[int]:
    assert len(logits) == len(rows)
    return [int(value) for value in logits[:, 0]]


def drafter_of(num_drafts: int = 4, **options: Any) -> tuple[AutoregressiveDrafter, Counting]:
    model: Any = Counting(options.pop("context_length", 1000))
    return AutoregressiveDrafter(model, num_drafts, pick=pick, **options), model


def task_of(num_tokens: int, params: SamplingParams = GREEDY, **options: Any) -> DraftTask:
    cache = SequenceCache(KVPool(LAYOUT, 1 << 20))
    tokens = np.arange(num_tokens, dtype=np.int32)
    options.setdefault("max_drafts", 63)
    return DraftTask(0, tokens, params=params, choice=0, cache=cache, **options)


def test_a_chain_with_its_probabilities() -> None:
    drafter, model = drafter_of(3)
    (found,) = drafter.propose([task_of(5)])
    assert found.token_ids == (5, 6, 7)
    assert found.is_chain
    assert found.probs == pytest.approx((0.8, 0.8, 0.8))
    assert model.rows == [[5], [1], [1]]
    assert isinstance(drafter, Stepwise)
    assert drafter.num_steps == 3


def test_a_hot_row_is_as_sure_as_its_noise_lets_it() -> None:
    (found,) = drafter_of(1)[0].propose([task_of(5, HOT)])
    noise = [np.exp(_native.gumbel(1, 0, 5, token_id)) for token_id in (5, 105)]
    known = 2 * noise[0] / (2 * noise[0] + noise[1])  # 0.8^(1/2) : 0.2^(1/2) = 2 : 1
    assert found.probs == pytest.approx((np.sqrt(2 / 3 * known),))


def test_only_what_is_new_is_read() -> None:
    drafter, model = drafter_of(2)
    task = task_of(5)
    assert task.cache is not None
    drafter.propose([task])
    assert task.cache.length == 5
    later = DraftTask(0, np.arange(8, dtype=np.int32), 63, GREEDY, 0, task.cache)
    model.rows.clear()
    drafter.propose([later])
    assert model.rows == [[3], [1]]
    drafter.propose([later])  # the same once more: the anchor is read again
    assert model.rows[2:] == [[1], [1]]


def test_sequences_share_passes_and_long_prompts_take_several() -> None:
    drafter, model = drafter_of(2)
    found = drafter.propose([task_of(5), task_of(20), task_of(3)])
    assert [each.token_ids for each in found] == [(5, 6), (20, 21), (3, 4)]
    assert model.rows == [[5, 11], [9, 3], [1, 1, 1]]


@pytest.mark.parametrize(
    ("options", "task", "expected"),
    [
        ({}, {"max_drafts": 2}, 2),
        ({}, {"max_depth": 1}, 1),
        ({"min_prob": 0.9}, {}, 0),
        ({"min_prob": 0.7}, {}, 4),
        ({}, {"least_chance": 0.6}, 3),  # 0.8, 0.64, 0.51: after that no other
        ({}, {"least_chance": 1.0}, 1),
        ({"context_length": 7}, {}, 2),
        ({"context_length": 5}, {}, 0),
    ],
)
def test_where_a_proposal_ends(
    options: dict[str, Any], task: dict[str, Any], expected: int
) -> None:
    (found,) = drafter_of(4, **options)[0].propose([task_of(5, **task)])
    assert len(found) == expected


def test_some_end_before_others() -> None:
    drafter, model = drafter_of(3)
    found = drafter.propose([task_of(5, max_drafts=1), task_of(5)])
    assert [len(each) for each in found] == [1, 3]
    assert model.rows == [[5, 5], [1], [1]]


def test_no_draft_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft tokens is 0; it must be at least 1"):
        drafter_of(0)
