"""Mutants of drafting: each is a plausible mistake, and the identity check must notice it.

The mutant that reads attention by slot instead of position is one of the native core
(``siblings-as-ancestors`` in ``tests/mutants``); those of a drafter's cache are beside its tests.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockdraft.config import SamplingParams
from blockdraft.engine import Request, engine, sequence
from blockdraft.engine.sampling import SampleRow
from blockdraft.engine.sequence import Gain, SequenceState
from blockdraft.models.batching import BatchBuilder, RowSlice
from blockdraft.models.target import TargetModel, load_target
from blockdraft.speculative import Proposal, Verdict
from blockdraft.speculative.verify import Pick
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.rounds import History, assert_identical, histories

TinyModel = Callable[..., Path]

PROMPT = tuple(range(5, 45))
PLAIN = SamplingParams(temperature=1.0, top_k=0, min_p=0.0, top_p=1.0, seed=2)
# A few tokens are wanted so much that only the penalty for having just been written moves on.
PENALIZED = SamplingParams(
    temperature=1.0,
    presence_penalty=2.0,
    frequency_penalty=2.0,
    repeat_last_n=-1,
    seed=2,
    logit_bias=tuple((token_id, 12.0) for token_id in range(50, 58)),
)
NUM_TOKENS = 40

original_fill = BatchBuilder._fill_rows
original_row = SequenceState.sample_row
original_kept = sequence.kept_rows


def shifted_rows(self: BatchBuilder, row: int, num_rows: int, part: RowSlice) -> None:
    """The positions of drafts are one too high."""
    original_fill(self, row, num_rows, part)
    if part.num_logits > 1:
        self._positions[row + 1 : row + num_rows] += 1


def shifted_noise(self: SequenceState, path: Sequence[int] = ()) -> SampleRow:
    """The noise after a draft is that of the position before."""
    row = original_row(self, path)
    return SampleRow(row.sampling, row.position - bool(path), row.recent)


def noise_of_the_round(self: SequenceState, path: Sequence[int] = ()) -> SampleRow:
    row = original_row(self, path)
    assert self.rounds is not None
    return SampleRow(row.sampling, self.rounds._num_rounds, row.recent)


def history_without_drafts(self: SequenceState, path: Sequence[int] = ()) -> SampleRow:
    row = original_row(self, path)
    return SampleRow(row.sampling, row.position, original_row(self).recent)


def keeps_the_first_rows(num_pending: int, gain: Gain | None) -> Sequence[int]:
    """Accepted rows of a tree are not gathered."""
    return range(len(original_kept(num_pending, gain)))


def rejected_rows_stay(num_pending: int, gain: Gain | None) -> Sequence[int]:
    """K/V of one rejected draft is committed in place of the last accepted one."""
    kept = [*original_kept(num_pending, gain)]
    return [*kept[:-1], kept[-1] + 1] if gain is not None and len(kept) > 1 else kept


def stops_at_the_end(
    self: SequenceState, proposal: Proposal, verdict: Verdict, logits: object = None
) -> Gain:
    """Only the last token of a round is compared with the stop tokens."""
    written: list[int | None] = []
    reason: Any = None
    for token_id in verdict.token_ids[:-1]:
        self._token_ids[self._num_tokens] = token_id
        self._num_tokens += 1
        written.append(token_id)
    last, reason = self._write(verdict.token_ids[-1])
    return Gain((*written, last), verdict.rows, verdict.num_accepted, reason)


def ignores_parents(proposal: Proposal, pick: Pick) -> Verdict:
    """Any later node whose token is right is followed."""
    rows, token_ids = [0], list[int]()
    next_token = pick(0, token_ids)
    for node, drafted in enumerate(proposal.token_ids):
        if drafted == next_token:
            rows.append(node + 1)
            token_ids.append(drafted)
            next_token = pick(node + 1, token_ids)
    return Verdict(tuple(rows), (*token_ids, next_token))


MUTANTS: dict[str, tuple[object, str, object]] = {
    "position of drafts": (BatchBuilder, "_fill_rows", shifted_rows),
    "position of noise": (SequenceState, "sample_row", shifted_noise),
    "noise keyed by round": (SequenceState, "sample_row", noise_of_the_round),
    "history without drafts": (SequenceState, "sample_row", history_without_drafts),
    "cache not rolled back": (engine, "kept_rows", rejected_rows_stay),
    "tree not gathered": (engine, "kept_rows", keeps_the_first_rows),
    "stop at the end of a block": (SequenceState, "take", stops_at_the_end),
    "parents ignored": (engine, "verify", ignores_parents),
}


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> TargetModel:
    return load_target(tiny_model("llama", "Q8_0"), num_threads=1, max_rows=64)


@pytest.fixture(scope="module")
def requests(target: TargetModel) -> list[Request]:
    request = Request(PROMPT, PLAIN, NUM_TOKENS)
    stop = histories(target, [request])[0].output[20]
    return [
        request,
        Request(PROMPT, PENALIZED, NUM_TOKENS),
        Request(PROMPT, PLAIN, NUM_TOKENS, frozenset({stop})),
    ]


@pytest.fixture(scope="module")
def plain(target: TargetModel, requests: list[Request]) -> list[History]:
    return [histories(target, [request])[0] for request in requests]


def compare(target: TargetModel, requests: list[Request], plain: list[History]) -> None:
    full = [plain[0], plain[1], plain[0]]  # the third request stops where the first goes on
    for name, seed in (("oracle", 0), ("mixture", 0), ("random-tree", 0), ("random-tree", 1)):
        for request, expected, answer in zip(requests, plain, full, strict=True):
            draw = DRAFTERS[name]
            drafter = ScriptedDrafter(draw, 7, [answer.token_ids], vocab_size=299, seed=seed)
            assert_identical(histories(target, [request], drafter)[0], expected)


def test_the_check_passes_without_a_mutant(
    target: TargetModel, requests: list[Request], plain: list[History]
) -> None:
    compare(target, requests, plain)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_dies(
    target: TargetModel,
    requests: list[Request],
    plain: list[History],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    owner, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises((AssertionError, ValueError)):
        compare(target, requests, plain)
