import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request, scheduler
from blockdraft.speculative import NgramDrafter
from tests.fake_target import FakeSampler, FakeTarget

REQUESTS = st.builds(
    Request,
    st.lists(st.integers(0, 47) | st.integers(0, 2), min_size=1, max_size=120).map(tuple),
    st.builds(SamplingParams, seed=st.integers(0, 2**64 - 1), repeat_penalty=st.just(1.1)),
    st.integers(1, 12),
    st.frozensets(st.integers(0, 47), max_size=2),
    st.integers(0, 2),
)


def run_alone(request: Request) -> list[int | None]:
    engine = Engine(FakeTarget(max_rows=128), max_cache_bytes=1 << 24, sampler=FakeSampler())
    engine.add(request)
    token_ids = []
    while engine.has_work:
        token_ids += [event.token_id for event in engine.step()]
    return token_ids


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=6),
    arrivals=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    max_rows=st.integers(1, 40),
    spare_pages=st.integers(0, 6),
    num_drafts=st.integers(0, 9),
    growth_and_kept=st.tuples(st.sampled_from([1, 256]), st.integers(0, 9)),
)
def test_every_request_gets_its_own_tokens(
    requests: list[Request],
    arrivals: list[int],
    max_rows: int,
    spare_pages: int,
    num_drafts: int,
    growth_and_kept: tuple[int, int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "GROWTH", growth_and_kept[0])
        engine, target, budget = small_engine(requests, max_rows, spare_pages, num_drafts)
        engine.keep_prefixes(growth_and_kept[1] * target.layout.full_page_bytes)
        check(engine, budget, requests, arrivals)
    assert max(target.pass_rows) <= max_rows


def small_engine(
    requests: list[Request], max_rows: int, spare_pages: int, num_drafts: int
) -> tuple[Engine, FakeTarget, int]:
    """An engine with room for the longest request, and how much that is."""
    target = FakeTarget(max_rows=max_rows)
    longest = max(len(request.token_ids) + request.max_tokens for request in requests)
    page_bytes = target.layout.full_page_bytes + target.layout.window_page_bytes
    budget = target.layout.max_bytes(longest, rows_per_pass=max_rows) + spare_pages * page_bytes
    drafter = NgramDrafter(num_drafts) if num_drafts else None
    engine = Engine(target, max_cache_bytes=budget, sampler=FakeSampler(), drafter=drafter)
    return engine, target, budget


def check(engine: Engine, budget: int, requests: list[Request], arrivals: list[int]) -> None:
    tokens: dict[int, list[int | None]] = {}
    firsts: list[int] = []
    for request, pause in zip(requests, arrivals, strict=False):
        tokens[engine.add(request)] = []
        for _ in range(pause):
            collect(engine, tokens, firsts)
        assert engine.used_cache_bytes <= budget
    num_steps = 0
    while engine.has_work:
        collect(engine, tokens, firsts)
        assert engine.used_cache_bytes <= budget
        num_steps += 1
        assert num_steps < 2000
    assert list(tokens.values()) == [run_alone(request) for request in requests]
    assert firsts == sorted(firsts)
    engine.keep_prefixes(0)
    assert engine.used_cache_bytes == 0


def collect(engine: Engine, tokens: dict[int, list[int | None]], firsts: list[int]) -> None:
    for event in engine.step():
        if not tokens[event.request_id]:
            firsts.append(event.request_id)
        tokens[event.request_id].append(event.token_id)
