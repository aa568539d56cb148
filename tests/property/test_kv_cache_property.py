from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blockdraft.errors import CapacityError
from blockdraft.kv_cache import KVLayout, KVPool, SequenceCache
from tests.fake_target import write_cache_slots, write_slots

LAYOUT = KVLayout(1, 16, (0,), (1,), window=50, largest_block=12)
PAGE_BYTES = LAYOUT.full_page_bytes + LAYOUT.window_page_bytes
MAX_ROWS = 90


def write_straight(token_ids: list[int]) -> str:
    """The hash of a cache that was written once and never rolled back."""
    pool = KVPool(LAYOUT, 1 << 24)
    cache = SequenceCache(pool)
    cache.reserve(len(token_ids))
    write_cache_slots(cache, LAYOUT, 0, token_ids)
    cache.commit(range(len(token_ids)))
    return cache.state_hash()


class TwoCaches(RuleBasedStateMachine):
    """Passes, commits and rollbacks on two caches of one pool, against plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(LAYOUT, 12 * PAGE_BYTES)
        self.caches = [SequenceCache(self.pool), SequenceCache(self.pool)]
        self.tokens: list[list[int]] = [[], []]
        self.next_token = 0

    @rule(which=st.integers(0, 1), num_rows=st.integers(1, MAX_ROWS), data=st.data())
    def run_pass(self, which: int, num_rows: int, data: st.DataObject) -> None:
        cache, tokens = self.caches[which], self.tokens[which]
        used = self.pool.used_bytes
        try:
            cache.reserve(num_rows)
        except CapacityError:
            assert self.pool.used_bytes == used
            return
        drafted = [(self.next_token + i) % 1000 for i in range(num_rows)]
        self.next_token += num_rows
        # In a tree a row's position is its place among the kept ones; scattered rows are later
        # siblings, so they are written as what they become.
        rows = data.draw(
            st.one_of(
                st.just(list(range(num_rows))),
                st.lists(st.integers(0, num_rows - 1), unique=True, max_size=8).map(sorted),
            )
        )
        places = {row: i for i, row in enumerate(rows)}
        values = [(token, cache.length + places.get(i, i)) for i, token in enumerate(drafted)]
        write_slots(LAYOUT, cache.full_pages(), cache.length, values, windowed=False)
        write_slots(LAYOUT, cache.window_pages(), cache.length, values, windowed=True)
        cache.commit(rows)
        tokens += [drafted[row] for row in rows]

    @rule(which=st.integers(0, 1), back=st.integers(0, 12))
    def roll_back(self, which: int, back: int) -> None:
        length = max(0, len(self.tokens[which]) - back)
        try:
            self.caches[which].rollback(length)
        except CapacityError:
            # Only a rollback below an earlier one may reach behind the window.
            assert length > 50
            return
        del self.tokens[which][length:]

    @rule(which=st.integers(0, 1))
    @precondition(lambda self: any(self.tokens))
    def release(self, which: int) -> None:
        self.caches[which].release()
        self.tokens[which] = []

    @invariant()
    def state_is_as_if_written_straight(self) -> None:
        for cache, tokens in zip(self.caches, self.tokens, strict=True):
            assert cache.length == len(tokens)
            assert cache.state_hash() == write_straight(tokens)

    @invariant()
    def bytes_are_those_of_the_pages(self) -> None:
        used = 0
        for cache in self.caches:
            num_full = int((cache.full_pages() != 0).sum())
            num_window = int((cache.window_pages() != 0).sum())
            held = num_full * LAYOUT.full_page_bytes + num_window * LAYOUT.window_page_bytes
            slots = cache.num_pages * 64
            assert held <= LAYOUT.max_bytes(slots, rows_per_pass=MAX_ROWS)
            used += held
        assert self.pool.used_bytes == used


TestTwoCaches = TwoCaches.TestCase
TestTwoCaches.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
