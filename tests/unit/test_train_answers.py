"""Generation on a target without a network: order, verdicts, interruption."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blockdraft.engine import Engine
from blockdraft.errors import ConfigError
from blockdraft.kv_cache import PAGE_POSITIONS
from blockdraft.ops.batch import Batch
from blockdraft.train.answers import (
    AnswerSettings,
    Progress,
    Task,
    generate,
    max_cache_bytes,
    new_engine,
    task_maker,
)
from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.prompts import Prompt
from blockdraft.train.shards import Corpus, CorpusSequence
from tests.fake_codec import FakeCodec
from tests.fake_target import VOCAB_SIZE, FakeTarget, fake_config

HEADER = {"target": {"sha256": "ab", "vocab_size": VOCAB_SIZE}}
SETTINGS = AnswerSettings(max_tokens=14, max_prompt_tokens=20)
END = 1

Notify = Callable[[Progress], None]


class QuickTarget(FakeTarget):
    """Picks by the tokens before, kept by page and slot."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens: dict[tuple[int, int], int] = {}

    def _write(self, batch: Batch, sequence: int) -> None:
        start, end = batch.row_starts[sequence : sequence + 2].tolist()
        base = int(batch.base_lengths[sequence])
        for slot, token_id in enumerate(batch.token_ids[start:end].tolist(), base):
            self._tokens[self._key(batch, sequence, slot)] = token_id

    def _logits(self, batch: Batch, row: int, sequence: int) -> NDArray[np.float64]:
        length = int(batch.base_lengths[sequence]) + row - int(batch.row_starts[sequence]) + 1
        slots = (self._key(batch, sequence, slot) for slot in range(length))
        digest = hashlib.sha256(bytes(self._tokens[slot] for slot in slots)).digest()
        return np.random.default_rng(list(digest[:8])).standard_normal(VOCAB_SIZE)

    def _key(self, batch: Batch, sequence: int, slot: int) -> tuple[int, int]:
        return int(batch.full_pages[sequence][slot // PAGE_POSITIONS]), slot % PAGE_POSITIONS


class ScriptedTarget(QuickTarget):
    """Picks by the position alone."""

    def __init__(self, script: Callable[[int], int]) -> None:
        super().__init__()
        self._script = script

    def _logits(self, batch: Batch, row: int, sequence: int) -> NDArray[np.float64]:
        logits = np.zeros(VOCAB_SIZE)
        logits[self._script(int(batch.positions[row]))] = 99
        return logits


def tasks(number: int, *, twins: bool = False) -> Iterator[Task]:
    """Different prompts, unless they are twins."""
    for i in range(number):
        prompt = Prompt(f"p{i}", "code", "", "text")
        yield Task(prompt, (2, 3, 3 if twins else 3 + i % 40, 3 if twins else 3 + i // 40))


def run(
    folder: Path,
    found: Iterator[Task],
    *,
    settings: AnswerSettings = SETTINGS,
    parallel: int = 8,
    target: FakeTarget | None = None,
    notify: Notify | None = None,
) -> tuple[Corpus, dict[str, int]]:
    engine = new_engine(target or QuickTarget(), settings, parallel)
    with CorpusWriter(folder, HEADER, shard_answers=7) as writer:
        generate(
            engine,
            found,
            writer,
            settings=settings,
            end_ids=frozenset({END}),
            parallel=parallel,
            notify=notify,
        )
    return Corpus.open(folder), writer.counts


def facts(corpus: Sequence[CorpusSequence]) -> list[tuple[str, int, list[int]]]:
    return [(one.prompt_id, one.prompt_length, one.token_ids.tolist()) for one in corpus]


class TestOrder:
    def test_batch_gives_what_one_after_the_other_gives(self, tmp_path: Path) -> None:
        together, _ = run(tmp_path / "8", tasks(30), parallel=8)
        alone, _ = run(tmp_path / "1", tasks(30), parallel=1)
        assert facts(together) == facts(alone)
        assert [one.prompt_id for one in together] == [f"p{i}" for i in range(30)]
        assert len({len(one.token_ids) for one in together}) > 4

    def test_prompt_and_end_token_are_kept(self, tmp_path: Path) -> None:
        corpus, _ = run(tmp_path, tasks(30))
        for task, one in zip(tasks(30), corpus, strict=True):
            assert tuple(one.token_ids[: one.prompt_length]) == task.token_ids
            answer = one.answer_ids.tolist()
            assert END not in answer[:-1]
            assert answer[-1] == END or len(answer) == SETTINGS.max_tokens
        assert sum(one.token_ids[-1] == END for one in corpus) > 3

    @pytest.mark.parametrize("stops", [(5,), (30,), (9, 20, 21)])
    def test_interrupted_and_continued_equals_at_a_stretch(
        self, stops: tuple[int, ...], tmp_path: Path
    ) -> None:
        wanted, counts = run(tmp_path / "whole", tasks(40))
        for stop in stops:
            steps = iter(range(stop))

            def notify(progress: Progress, steps: Iterator[int] = steps) -> None:
                if next(steps, None) is None:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                run(tmp_path / "cut", tasks(40), notify=notify)
        assert len(Corpus.open(tmp_path / "cut")) < 40
        found, found_counts = run(tmp_path / "cut", tasks(40))
        assert facts(found) == facts(wanted)
        assert found_counts == counts

    def test_an_interrupted_engine_is_left_empty(self, tmp_path: Path) -> None:
        def notify(progress: Progress) -> None:
            raise KeyboardInterrupt

        engine = new_engine(QuickTarget(), SETTINGS, 8)
        writer = CorpusWriter(tmp_path, HEADER, shard_answers=7)
        with writer, pytest.raises(KeyboardInterrupt):
            generate(
                engine,
                tasks(9),
                writer,
                settings=SETTINGS,
                end_ids=frozenset(),
                parallel=8,
                notify=notify,
            )
        assert not engine.has_work

    def test_prompts_do_not_queue_up(self, tmp_path: Path) -> None:
        engine = new_engine(QuickTarget(), SETTINGS, 3)
        busy = []

        def notify(progress: Progress) -> None:
            busy.append(engine.num_running + engine.num_waiting)

        with CorpusWriter(tmp_path, HEADER, shard_answers=7) as writer:
            generate(
                engine,
                tasks(12),
                writer,
                settings=SETTINGS,
                end_ids=frozenset({END}),
                parallel=3,
                notify=notify,
            )
        assert max(busy) <= 3

    def test_more_tasks_extend_a_corpus(self, tmp_path: Path) -> None:
        run(tmp_path / "a", tasks(10))
        longer, _ = run(tmp_path / "a", tasks(20))
        assert facts(longer) == facts(run(tmp_path / "b", tasks(20))[0])

    def test_other_prompts_than_those_of_the_folder_are_refused(self, tmp_path: Path) -> None:
        run(tmp_path, tasks(10))
        with pytest.raises(ConfigError, match="p0, which is not among the first 10 prompts"):
            run(tmp_path, iter(list(tasks(20))[5:]))

    def test_prompts_in_another_order_are_refused(self, tmp_path: Path) -> None:
        run(tmp_path, tasks(10))
        with pytest.raises(ConfigError, match="which is not among the first 10 prompts"):
            run(tmp_path, iter(list(tasks(10))[::-1]))


class TestVerdicts:
    def test_loops_are_dropped_and_cut_short(self, tmp_path: Path) -> None:
        target = ScriptedTarget(lambda position: 5 + position % 3)
        settings = replace(SETTINGS, max_tokens=200)
        corpus, counts = run(tmp_path, tasks(4), target=target, settings=settings)
        assert len(corpus) == 0
        assert counts == {"loop": 4}
        assert len(target.pass_rows) < 60

    def test_a_loop_at_the_limit_of_tokens_is_dropped(self, tmp_path: Path) -> None:
        target = ScriptedTarget(lambda position: position % 40 if position < 7 else 5)
        settings = replace(SETTINGS, max_tokens=52)  # 48 equal tokens, not at a multiple of 8
        _, counts = run(tmp_path, tasks(1), target=target, settings=settings)
        assert counts == {"loop": 1}

    @pytest.mark.parametrize(("period", "counts"), [(24, "repetitive"), (47, "kept")])
    def test_long_periods_are_repetitive(self, period: int, counts: str, tmp_path: Path) -> None:
        target = ScriptedTarget(lambda position: 1 + position % period)
        settings = replace(SETTINGS, max_tokens=80)
        engine = new_engine(target, settings, 1)
        with CorpusWriter(tmp_path, HEADER, shard_answers=7) as writer:
            generate(engine, tasks(1), writer, settings=settings, end_ids=frozenset(), parallel=1)
        assert writer.counts[counts] == 1

    def test_near_duplicates_are_dropped_in_later_runs_too(self, tmp_path: Path) -> None:
        greedy = replace(SETTINGS, greedy_share=1.0)
        _, counts = run(tmp_path, tasks(3, twins=True), settings=greedy)
        assert (counts["kept"], counts["near_duplicate"]) == (1, 2)
        _, counts = run(tmp_path, tasks(5, twins=True), settings=greedy)
        assert (counts["kept"], counts["near_duplicate"]) == (1, 4)

    def test_sampled_twins_differ(self, tmp_path: Path) -> None:
        sampled = replace(SETTINGS, greedy_share=0.0)
        assert run(tmp_path, tasks(5, twins=True), settings=sampled)[1]["kept"] == 5


class TestSettings:
    @pytest.mark.parametrize(
        ("share", "low", "high"), [(0, 0, 0), (0.25, 200, 300), (1, 1000, 1000)]
    )
    def test_greedy_share(self, share: float, low: int, high: int) -> None:
        settings = AnswerSettings(greedy_share=share, temperature=0.9)
        found = [settings.sampling(f"p{i}") for i in range(1000)]
        assert {params.temperature for params in found} <= {0.0, 0.9}
        assert low <= sum(params.temperature == 0 for params in found) <= high
        assert len({params.seed for params in found}) == 1000

    def test_seed_changes_the_noise(self) -> None:
        one, two = (AnswerSettings(seed=seed).sampling("p") for seed in (1, 2))
        assert one.seed != two.seed

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
            ({"max_prompt_tokens": 0}, "max_prompt_tokens is 0"),
            ({"greedy_share": 1.5}, r"greedy_share is 1.5; it must be in \[0, 1\]"),
            ({"temperature": 0.0}, r"temperature is 0.0; it must be in \(0, 100\]"),
            ({"near_duplicate": 0.0}, r"near_duplicate is 0.0; it must be in \(0, 1\]"),
            ({"max_repeated": 1.5}, r"max_repeated is 1.5; it must be in \(0, 1\]"),
        ],
    )
    def test_wrong_settings_are_named(self, change: dict[str, float], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            AnswerSettings(**change)  # type: ignore[arg-type]


def test_tasks_use_the_chat_template_and_leave_out_long_prompts() -> None:
    codec = FakeCodec(has_template=True)
    make = task_maker(codec, AnswerSettings(max_prompt_tokens=16))
    prompt = Prompt("p", "code", "", "ab")
    task = make(prompt)
    assert task == Task(
        prompt, tuple(codec.encode("<user>ab<model>", add_special=True, parse_special=True))
    )
    assert len(task.token_ids) == 16
    assert make(replace(prompt, text="abc")) is None


def test_an_engine_has_memory_for_all_answers_and_no_more() -> None:
    target = FakeTarget()
    engine = new_engine(target, SETTINGS, 4)
    assert isinstance(engine, Engine)
    layout = target.layout
    assert max_cache_bytes(target, SETTINGS, 4) == 4 * layout.max_bytes(34, rows_per_pass=16)


def test_what_exceeds_the_context_is_refused() -> None:
    target = FakeTarget(fake_config(context_length=33))
    with pytest.raises(
        ConfigError, match="prompts of 20 tokens and answers of 14 exceed the context of 33"
    ):
        new_engine(target, SETTINGS, 1)


def test_progress_counts_tokens_and_answers(tmp_path: Path) -> None:
    seen: list[Progress] = []
    _, counts = run(tmp_path, tasks(20), notify=seen.append)
    assert seen[-1].num_answered == 20
    assert seen[-1].counts == counts
    assert seen[0].tokens_per_s > 0
    assert seen[0].answers_per_s == 0
    assert seen[-1].answers_per_s > 0
