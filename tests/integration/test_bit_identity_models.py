"""Real models: the same tokens give the same K/V and logits in any passes, on any path.

The reference is the best path of the machine with two threads and one row per pass, but for the
middle of the prompt, which runs in chunks. The scalar path, a hundred times slower, joins in for
the first tokens.
"""

from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path

import pytest

from blockdraft import _native
from blockdraft.models.target import TargetModel
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import PackedWeights
from tests.passes import Replay, Trace, assert_same, run_pass, token_stream

pytestmark = pytest.mark.model

ISAS = _native.isa_names()
BEST, SECOND = ISAS[-1], ISAS[-2:][0]
# Gemma's window is 512: its prompt goes beyond, and single rows cross it.
NUM_TOKENS = {"smollm2-135m": 300, "qwen2.5-coder-0.5b": 300, "gemma3-270m": 575}
NUM_SINGLE = (30, 70)  # rows that the reference takes one by one at the start and at the end
MIXED = (64, 2, 33, 3, 17, 5, 8, 16, 4, 24, 48, 7, 12, 2, 6, 9)


class Models:
    """One set of packed weights, recorded for every path and thread count."""

    def __init__(self, path: Path) -> None:
        with GGUFFile.open(path) as file:
            config = read_model_config(file)
            weights = PackedWeights(file, 2)
            self._models = {
                (isa, threads): TargetModel(
                    config, weights, num_threads=threads, isa=isa, taps=(), max_rows=256
                )
                for isa in ISAS
                for threads in (1, 2)
            }
        self.num_tokens = 0
        self.reference = Trace()

    def replay(self, isa: str, threads: int, *, seed: int = 0, count: int = 0) -> Replay:
        """A new sequence over the prompt, or over ``count`` tokens of another."""
        model = self._models[isa, threads]
        return Replay(model, token_stream(seed, count or self.num_tokens, model.config.vocab_size))


@pytest.fixture(scope="module", params=[*NUM_TOKENS])
def models(request: pytest.FixtureRequest, model_path: Callable[[str], Path]) -> Models:
    models = Models(model_path(request.param))
    models.num_tokens = NUM_TOKENS[request.param]
    replay = models.replay(BEST, 2)
    replay.run(1)
    models.reference = replay.trace
    return models


def some(count: int) -> list[int]:
    """Rows of a pass that want logits: few, since a large head costs more than the rest."""
    return list(range(0, count, max(1, count // 8)))


def run_in(replay: Replay, sizes: Iterable[int]) -> Trace:
    """Passes of these sizes over and over, logits of some rows."""
    for size in cycle(sizes):
        if not replay.left:
            return replay.trace
        count = min(size, replay.left)
        replay.advance(count, some(count))
    raise AssertionError("no sizes")


@pytest.mark.parametrize(
    ("isa", "threads", "count"), [("scalar", 2, 3), (SECOND, 1, 20), (BEST, 1, 30)]
)
def test_one_row_at_a_time(models: Models, isa: str, threads: int, count: int) -> None:
    """Every other path, for as many tokens as its speed allows."""
    replay = models.replay(isa, threads)
    for _ in range(count):
        replay.advance(1)
    assert_same(replay.trace, models.reference)


def test_scalar_rows_together(models: Models) -> None:
    replay = models.replay("scalar", 2)
    replay.advance(4)
    assert_same(replay.trace, models.reference)


@pytest.mark.parametrize(("isa", "threads"), [(BEST, 1), (SECOND, 2)])
def test_passes_of_2_to_64_rows(models: Models, isa: str, threads: int) -> None:
    sizes = [*MIXED[3 * threads :], *MIXED[: 3 * threads]]
    assert_same(run_in(models.replay(isa, threads), sizes), models.reference)


@pytest.mark.parametrize(("isa", "threads"), [(BEST, 2), (SECOND, 1)])
def test_chunked_prefill(models: Models, isa: str, threads: int) -> None:
    """Passes as large as a plan takes."""
    assert_same(run_in(models.replay(isa, threads), [256]), models.reference)


def test_neighbours(models: Models) -> None:
    """Other sequences before and after, of other lengths, decoding or in their prompt."""
    replay = models.replay(BEST, 2)
    before = models.replay(BEST, 2, seed=1, count=30)
    after = models.replay(BEST, 2, seed=2, count=240)
    for count in (40, 1, 2, 60, 1, 16, 8):
        parts = [
            before.part(3, wanted=()),
            replay.part(count, some(count)),
            after.part(32 - count // 2, wanted=[0]),
        ]
        results = run_pass(replay.model, parts)
        for one, part, logits in zip((before, replay, after), parts, results, strict=True):
            one.accept(part, logits)
    assert_same(replay.trace, models.reference)
