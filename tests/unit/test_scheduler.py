"""Who runs next: prompts beside decoding, and memory that is not enough for all."""

from dataclasses import replace

import pytest

from blockdraft.engine import Engine, Request, TokenEvent, scheduler
from blockdraft.ops.batch import Batch, PassResult
from tests.fake_target import FakeSampler, FakeTarget, fake_config
from tests.unit.test_engine import PARAMS, REQUEST, output_of, run_all

STREAM = Request((1, 2, 3), PARAMS, max_tokens=400)


class PricedTarget(FakeTarget):
    """Has a clock of its own, which a pass moves on by what its rows would cost."""

    now_s = 0.0

    def forward(self, batch: Batch) -> PassResult:
        self.now_s += 0.002 + 0.0005 * max(0, batch.num_rows - 4)
        return PassResult(super().forward(batch).logits)


def priced_engine() -> tuple[Engine, PricedTarget]:
    target = PricedTarget(fake_config(context_length=4096), max_rows=256)
    return (
        Engine(target, max_cache_bytes=1 << 26, sampler=FakeSampler(), clock=lambda: target.now_s),
        target,
    )


def test_a_stream_is_hardly_slower_beside_a_prompt_of_2000_tokens() -> None:
    engine, target = priced_engine()
    stream = engine.add(STREAM)
    for _ in range(8):
        engine.step()
    prompt = engine.add(replace(STREAM, token_ids=(5,) * 2000, max_tokens=1))
    gaps: list[float] = []
    seen: set[int] = set()
    while prompt not in seen:
        before_s = target.now_s
        seen = {event.request_id for event in engine.step()}
        assert stream in seen
        gaps.append((target.now_s - before_s) / 0.002)
    assert max(gaps) <= 3.0
    # The rest of each round is the prompt's: it takes less than twice as long as alone.
    assert sum(gaps) * 0.002 < 2 * 2000 * 0.0005


def test_a_prompt_alone_is_read_in_full_passes() -> None:
    engine, target = priced_engine()
    engine.add(replace(STREAM, token_ids=(5,) * 700, max_tokens=1))
    run_all(engine)
    assert target.pass_rows == [256, 256, 188]


# --- memory


@pytest.fixture
def short_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is promised for 16 tokens at a time."""
    monkeypatch.setattr(scheduler, "GROWTH", 16)


def events_of(engine: Engine, *, most_running: list[int]) -> list[TokenEvent]:
    events = []
    while engine.has_work:
        events += engine.step()
        most_running.append(engine.num_running)
    return events


@pytest.mark.usefixtures("short_promises")
@pytest.mark.parametrize("spare_pages", [0, 3])
def test_requests_that_might_write_much_run_together_and_all_end(spare_pages: int) -> None:
    target = FakeTarget()
    layout = target.layout
    page_bytes = layout.full_page_bytes + layout.window_page_bytes
    budget = layout.max_bytes(133, rows_per_pass=16) + spare_pages * page_bytes
    engine = Engine(target, max_cache_bytes=budget, sampler=FakeSampler())
    requests = [replace(STREAM, params=replace(PARAMS, seed=i), max_tokens=130) for i in range(3)]
    ids = [engine.add(request) for request in requests]
    running: list[int] = []
    events = events_of(engine, most_running=running)
    assert max(running) > 1  # each was promised all the memory before
    assert min(running[:40]) > 1
    ends = [event.request_id for event in events if event.finish_reason == "length"]
    assert ends == ids  # first come, first served
    for request, request_id in zip(requests, ids, strict=True):
        alone = Engine(FakeTarget(), max_cache_bytes=budget, sampler=FakeSampler())
        alone.add(request)
        assert output_of(events, request_id) == output_of(run_all(alone), 0)
    assert engine.used_cache_bytes == 0


def test_a_request_that_waits_is_not_overtaken_by_a_small_one() -> None:
    target = FakeTarget()
    engine = Engine(
        target,
        max_cache_bytes=target.layout.max_bytes(300, rows_per_pass=16),
        sampler=FakeSampler(),
    )
    engine.add(replace(STREAM, token_ids=(1,) * 250, max_tokens=20))
    engine.add(replace(STREAM, token_ids=(2,) * 200, max_tokens=2))
    engine.add(replace(REQUEST, max_tokens=1))
    firsts = [event.request_id for event in run_all(engine) if event.finish_reason]
    assert firsts == [0, 1, 2]


@pytest.mark.usefixtures("short_promises")
def test_who_was_sent_back_can_be_cancelled() -> None:
    target = FakeTarget()
    budget = target.layout.max_bytes(203, rows_per_pass=16)
    engine = Engine(target, max_cache_bytes=budget, sampler=FakeSampler())
    ids = [engine.add(replace(STREAM, max_tokens=200)) for _ in range(2)]
    engine.step()
    num_steps = 1
    while engine.num_running == 2:
        engine.step()
        num_steps += 1
    stats = engine.cancel(ids[1])
    assert stats.predicted_tokens == num_steps - 1 > 50
    assert output_of(run_all(engine), ids[0])
    assert engine.used_cache_bytes == 0
