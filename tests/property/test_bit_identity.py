"""The same tokens give the same K/V and logits, byte for byte, whatever the passes look like.

The reference is the scalar path, one row per pass, one thread.
"""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockdraft import _native
from blockdraft.kv_cache import page_view
from blockdraft.weights.gguf import GGUFFile
from tests.marks import with_slow
from tests.passes import Replay, TracedModels, assert_same, run_pass
from tests.tiny import TENSOR_TYPES

TinyModel = Callable[..., Path]

ISAS = _native.isa_names()
ALL_PATHS = [(isa, num_threads) for isa in ISAS for num_threads in (1, 2)]
OTHER_PATHS = ALL_PATHS[1:]
# Threads share the work alike on every path: two of them on the slowest are for the slow tests.
RARE = {("scalar", 2)} if len(ISAS) > 1 else set()
MARKED_PATHS = with_slow(ALL_PATHS, RARE)
NUM_TOKENS = 140  # three pages and chunks, the last one broken
LONG = 9  # a stream of more chunks than one unit of split attention takes
SHORT = 3
LENGTHS = {0: NUM_TOKENS, 1: 70, 2: 30, SHORT: 60, LONG: 330}

# Every architecture, tensor types of every scale layout, and shapes off the usual path.
CASES: dict[str, dict[str, Any]] = {
    "llama-Q4_0": {"arch": "llama", "tensor_type": "Q4_0"},
    "qwen2-Q6_K": {"arch": "qwen2", "tensor_type": "Q6_K", "layers": 1},
    "qwen3-Q2_K": {"arch": "qwen3", "tensor_type": "Q2_K", "layers": 1},
    "gemma3-Q5_1": {"arch": "gemma3", "tensor_type": "Q5_1"},
    "llama-BF16": {"arch": "llama", "tensor_type": "BF16"},
    # Types of all kinds read the same input; 80 dimensions are no multiple of 64.
    "qwen3-mixed": {
        "arch": "qwen3",
        "tensor_type": "Q8_0",
        "head_dim": 80,
        "layers": 1,
        "tensor_types": {"blk.0.attn_v.weight": "F16", "blk.0.ffn_up.weight": "F32"},
    },
    # A gate so wide that one row of it is cut over threads, a window of several chunks, soft caps.
    "gemma3-wide": {
        "arch": "gemma3",
        "tensor_type": "IQ4_NL",
        "layers": 2,
        "ffn": 2048,
        "window": 300,
        "metadata": {
            "gemma3.attn_logit_softcapping": 30.0,
            "gemma3.final_logit_softcapping": 20.0,
        },
    },
}
# The scalar path is slow and takes rows one by one; tests with fixed passes run it.
PATHS = st.sampled_from([path for path in OTHER_PATHS if path[0] != "scalar"] or OTHER_PATHS)
ORDERS = st.sampled_from([*permutations((0, 1, 2))])
# Passes run between draws, which the health check takes for slow drawing.
any_passes = settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def traced(tiny_model: TinyModel) -> TracedModels:
    def path_of(case: str) -> Path:
        return tiny_model(**CASES.get(case) or {"arch": "llama", "tensor_type": case, "layers": 1})

    return TracedModels(path_of, LENGTHS)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_hashes_tell_positions_apart(traced: TracedModels, case: str) -> None:
    reference = traced.reference(case)
    assert len({*reference.logits.values()}) == len({*reference.kv.values()}) == NUM_TOKENS
    assert all(np.isfinite(np.frombuffer(row, "f4")).all() for row in reference.logits.values())


@pytest.mark.parametrize(("isa", "num_threads"), MARKED_PATHS[1:])
@pytest.mark.parametrize("case", CASES)
def test_one_row_at_a_time(traced: TracedModels, case: str, isa: str, num_threads: int) -> None:
    assert_same(traced.replay(case, isa, num_threads).run(1), traced.reference(case))


@pytest.mark.parametrize(("isa", "num_threads"), MARKED_PATHS)
@pytest.mark.parametrize("case", CASES)
def test_all_rows_in_one_pass(traced: TracedModels, case: str, isa: str, num_threads: int) -> None:
    assert_same(traced.replay(case, isa, num_threads).run(NUM_TOKENS), traced.reference(case))


@pytest.mark.parametrize("tensor_type", TENSOR_TYPES)
def test_every_tensor_type_and_row_count(traced: TracedModels, tensor_type: str) -> None:
    """Rows in blocks of 16, 8, 4, 2 and 1."""
    for isa in ISAS:
        trace = traced.replay(tensor_type, isa, 1, stream=SHORT).run(15, 17, 6, 22)
        assert_same(trace, traced.reference(tensor_type, SHORT))


@st.composite
def subsets(draw: st.DrawFn, count: int) -> list[int]:
    flags = int.from_bytes(draw(st.binary(min_size=8, max_size=8)))  # one draw for all
    return [ordinal for ordinal in range(count) if flags >> ordinal & 1]


@any_passes
@given(case=st.sampled_from([*CASES]), path=PATHS, data=st.data())
def test_any_cut(
    traced: TracedModels, case: str, path: tuple[str, int], data: st.DataObject
) -> None:
    """Chunks of any sizes; logits of any of their rows."""
    replay = traced.replay(case, *path)
    while replay.left:
        count = data.draw(st.integers(2, 64).map(lambda n: min(n, replay.left)))
        replay.advance(count, data.draw(subsets(count)))
    assert_same(replay.trace, traced.reference(case))


@any_passes
@given(case=st.sampled_from([*CASES]), path=PATHS, data=st.data())
def test_any_neighbours(
    traced: TracedModels, case: str, path: tuple[str, int], data: st.DataObject
) -> None:
    """Three sequences of other tokens and lengths share passes, in any order and proportion."""
    replays = {stream: traced.replay(case, *path, stream=stream) for stream in (0, 1, 2)}
    while any(replay.left for replay in replays.values()):
        order = [s for s in data.draw(ORDERS) if replays[s].left]
        rows = {s: data.draw(st.integers(0, 32).map(lambda n: n and 1 << n % 6)) for s in order}
        taking = [s for s in order if rows[s]] or order[:1]
        parts = [replays[s].part(max(1, min(rows[s], replays[s].left))) for s in taking]
        results = run_pass(traced.model(case, *path), parts)
        for stream, part, logits in zip(taking, parts, results, strict=True):
            replays[stream].accept(part, logits)
    for stream, replay in replays.items():
        assert_same(replay.trace, traced.reference(case, stream))


def advance_after_detour(replay: Replay, wrong: int, right: int, kept_wrong: int) -> None:
    """A pass of ``right`` true and ``wrong`` false tokens; some false ones are committed first."""
    part = replay.part(right)
    false_ids = (part.token_ids[:1] + np.arange(1, wrong + 1, dtype=np.int32)) % 299
    detour = type(part)(replay.cache, np.concatenate([part.token_ids, false_ids]))
    logits = run_pass(replay.model, [detour])[0]
    length = replay.cache.length + right
    replay.cache.commit(range(right + kept_wrong))
    replay.cache.rollback(length)
    replay.trace.logits |= dict(zip(range(length - right, length), logits, strict=False))
    replay.trace_kv(range(length - right, length))


@any_passes
@given(case=st.sampled_from([*CASES]), path=PATHS, data=st.data())
def test_rollback_leaves_no_trace(
    traced: TracedModels, case: str, path: tuple[str, int], data: st.DataObject
) -> None:
    """Rejected drafts, committed or not, and prefixes that are written again."""
    replay = traced.replay(case, *path)
    while replay.left:
        right = data.draw(st.integers(1, 40).map(lambda n: min(n, replay.left)))
        wrong = data.draw(st.integers(0, 24))
        advance_after_detour(replay, wrong, right, data.draw(st.integers(0, wrong)))
        redo = data.draw(st.sampled_from([0, 0, 1, 7, 30]))
        replay.cache.rollback(max(0, replay.cache.length - redo))
    replay.trace.state = replay.cache.state_hash()
    assert_same(replay.trace, traced.reference(case))


@pytest.mark.parametrize("case", ["llama-Q4_0", "gemma3-wide"])
def test_split_attention(traced: TracedModels, case: str) -> None:
    """Few queries over many chunks: two threads take runs of chunks, one takes all of them."""
    best = ISAS[-1]
    whole = traced.replay(case, best, 1, stream=LONG).run(200, 1)
    for isa, num_threads, counts in (
        (best, 2, [200, 1]),
        (best, 2, [250, 2]),
        (ISAS[0], 2, [64, 64, 64, 63, 1]),
        (best, 1, [256]),
    ):
        assert_same(traced.replay(case, isa, num_threads, stream=LONG).run(*counts), whole)


def test_huge_keys_and_values_are_stored_finite(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Beyond float16's range they saturate; an infinity would spoil rows that do not see it."""
    path = tmp_path / "huge.gguf"
    path.write_bytes(tiny_model("llama", "Q4_1").read_bytes())
    with GGUFFile.open(path) as file:
        info = file.tensor("blk.0.attn_norm.weight")
        weight = file.read("blk.0.attn_norm.weight").view("f4") * np.float32(1e5)
    with path.open("r+b") as stream:
        stream.seek(info.offset)
        stream.write(weight.tobytes())
    traced = TracedModels(lambda _: path, {0: 100})
    reference = traced.reference("huge")
    replay = traced.replay("huge", ISAS[-1], 2)
    assert_same(replay.run(37), reference)
    layout = replay.cache._pool.layout
    page = page_view(int(replay.cache.full_pages()[0]), layout.full_page_bytes).view(np.float16)
    assert np.abs(page.astype(np.float32)).max() == 65504
    for isa in ISAS:
        assert_same(traced.replay("huge", isa, 1).run(1), reference)
