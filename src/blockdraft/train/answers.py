"""Answers of the target in continuous batches, judged and written in the order of their prompts.

An answer is a function of the target, the prompt and the settings alone, and so is the verdict on
it: a corpus that was interrupted and continued is the same, sequence by sequence, as one made at a
stretch. Knows no files but those of the corpus, and no training.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from blockdraft.bench.gains import ends_in_a_loop
from blockdraft.config import SamplingParams
from blockdraft.engine import Engine, Request, Target
from blockdraft.errors import ConfigError
from blockdraft.session.prompt import TextCodec, encode_prompt
from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.duplicates import NearDuplicates
from blockdraft.train.prompts import Prompt
from blockdraft.train.shards import CorpusSequence

__all__ = [
    "AnswerSettings",
    "Progress",
    "Task",
    "generate",
    "max_cache_bytes",
    "new_engine",
    "task_maker",
]

_LOOP_CHECK_TOKENS = 8
_RUN_TOKENS = 8
_RATE_WINDOW_S = 120.0


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How prompts are answered.

    Attributes:
        max_tokens: The most tokens of an answer.
        max_prompt_tokens: Longer prompts are skipped.
        greedy_share: Share of the prompts that are answered greedily, chosen by a hash.
        temperature: Of the other answers; top-k, top-p and min-p are the defaults.
        seed: Decides who is greedy and how the others are drawn.
        near_duplicate: Jaccard index of token runs from which a later answer is dropped.
        max_repeated: Share of an answer's token runs that stand in it already from which it is
            dropped; catches loops of any period.
    """

    max_tokens: int = 256
    max_prompt_tokens: int = 256
    greedy_share: float = 0.5
    temperature: float = 0.8
    seed: int = 0
    near_duplicate: float = 0.8
    max_repeated: float = 0.5

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            ConfigError: A setting is out of range; the message names it.
        """
        for name in ("max_tokens", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.greedy_share <= 1:
            raise ConfigError(f"greedy_share is {self.greedy_share}; it must be in [0, 1]")
        for name, most in (("temperature", 100), ("near_duplicate", 1), ("max_repeated", 1)):
            if not 0 < getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be in (0, {most}]")

    @property
    def sampled(self) -> SamplingParams:
        """How a sampled answer is picked, but for its seed."""
        return SamplingParams(temperature=self.temperature)

    def sampling(self, prompt_id: str) -> SamplingParams:
        """How the answer to one prompt is picked."""
        digest = hashlib.sha256(f"{self.seed}:{prompt_id}".encode()).digest()
        is_greedy = int.from_bytes(digest[:4], "little") < self.greedy_share * 2**32
        seed = int.from_bytes(digest[8:16], "little")
        return replace(self.sampled, temperature=0.0 if is_greedy else self.temperature, seed=seed)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt as the target reads it.

    Attributes:
        prompt: The prompt.
        token_ids: Its ids, chat template included.
    """

    prompt: Prompt
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a corpus is.

    Attributes:
        num_answered: Answers kept and dropped, of earlier runs too.
        counts: By kind, as in the manifest.
        tokens_per_s: Tokens lately written per second, those of dropped answers included.
        answers_per_s: Answers lately ended per second; 0 before the first.
    """

    num_answered: int
    counts: dict[str, int]
    tokens_per_s: float
    answers_per_s: float


def task_maker(codec: TextCodec, settings: AnswerSettings) -> Callable[[Prompt], Task | None]:
    """A function from a prompt to its task, or None where the prompt is too long."""

    def make(prompt: Prompt) -> Task | None:
        token_ids = tuple(encode_prompt(codec, prompt.text, raw=None))
        return Task(prompt, token_ids) if len(token_ids) <= settings.max_prompt_tokens else None

    return make


def new_engine(target: Target, settings: AnswerSettings, parallel: int) -> Engine:
    """An engine that answers ``parallel`` prompts at once, with the K/V memory for them.

    Raises:
        ConfigError: A prompt and an answer exceed the target's context, or a pass has not so many
            rows.
    """
    longest = settings.max_prompt_tokens + settings.max_tokens
    trained = target.config.context_length
    if longest > trained:
        raise ConfigError(
            f"prompts of {settings.max_prompt_tokens} tokens and answers of "
            f"{settings.max_tokens} exceed the context of {trained}"
        )
    cache_bytes = max_cache_bytes(target, settings, parallel)
    return Engine(target, max_cache_bytes=cache_bytes, max_running=parallel)


def max_cache_bytes(target: Target, settings: AnswerSettings, parallel: int) -> int:
    """K/V memory of ``parallel`` answers of full length."""
    longest = settings.max_prompt_tokens + settings.max_tokens
    layout = target.new_cache_pool(0).layout
    return parallel * layout.max_bytes(longest, rows_per_pass=target.max_rows)


def generate(
    engine: Engine,
    tasks: Iterator[Task],
    writer: CorpusWriter,
    *,
    settings: AnswerSettings,
    end_ids: frozenset[int],
    parallel: int,
    notify: Callable[[Progress], None] | None = None,
) -> None:
    """Answer the tasks that the corpus does not have yet, and write them.

    After an exception (Ctrl-C, say) the corpus has every answer that was judged; leave the
    writer's ``with`` block to put them on the disk.

    Args:
        engine: Of `new_engine`.
        tasks: All tasks of the plan, the ones done included, in its order.
        writer: Where the answers go.
        settings: How to answer.
        end_ids: Tokens that end an answer; they stay part of it.
        parallel: Answers at once.
        notify: Told about every step.

    Raises:
        ConfigError: The answers in the folder are not those of the first tasks.
    """
    _skip_answered(tasks, writer)
    judge = _Judge(writer, settings)
    running: dict[int, tuple[int, Task, _Answer]] = {}
    meter = _Meter()
    waiting = enumerate(tasks)
    try:
        while True:
            for order, task in islice(waiting, parallel - len(running)):
                answer = _Answer(end_ids)
                request = Request(
                    task.token_ids,
                    settings.sampling(task.prompt.id),
                    settings.max_tokens,
                    stop_rule=answer,
                )
                running[engine.add(request)] = (order, task, answer)
            if not running:
                break
            events = engine.step()
            ended = [event.request_id for event in events if event.finish_reason is not None]
            for request_id in ended:
                judge.take(*running.pop(request_id))
            meter.count(len(events), len(ended))
            if notify is not None:
                notify(meter.progress(writer))
    finally:
        for request_id in running:
            engine.cancel(request_id)


def _skip_answered(tasks: Iterator[Task], writer: CorpusWriter) -> None:
    """Pass over the tasks that the corpus has; check that they are those it was made of."""
    passed = (task.prompt.id for task in islice(tasks, writer.num_answered))
    for sequence in writer.resumed:
        if sequence.prompt_id not in passed:  # consumes the iterator: the order counts
            raise ConfigError(
                f"the corpus has an answer to {sequence.prompt_id}, which is not among the first "
                f"{writer.num_answered} prompts of this plan"
            )
    for _ in passed:
        pass


class _Answer:
    """Stop rule of one answer: collects its tokens, ends it with its turn or with a loop."""

    def __init__(self, end_ids: frozenset[int]) -> None:
        self.token_ids: list[int] = []
        self.is_loop = False
        self._end_ids = end_ids

    def __call__(self, token_id: int) -> bool:
        self.token_ids.append(token_id)
        if token_id in self._end_ids:
            return True
        # A loop costs time until its end, and it never leaves one by itself when greedy.
        if len(self.token_ids) % _LOOP_CHECK_TOKENS == 0:
            self.is_loop = ends_in_a_loop(self.token_ids)
        return self.is_loop


class _Judge:
    """Puts ended answers in the order of their tasks, and keeps or drops each."""

    def __init__(self, writer: CorpusWriter, settings: AnswerSettings) -> None:
        self._writer = writer
        self._next = 0
        self._early: dict[int, tuple[Task, _Answer]] = {}
        self._max_repeated = settings.max_repeated
        self._seen = NearDuplicates(settings.near_duplicate)
        for sequence in writer.resumed:
            self._seen.add(sequence.answer_ids)

    def take(self, order: int, task: Task, answer: _Answer) -> None:
        """Take an answer; those that waited for it are judged too."""
        self._early[order] = (task, answer)
        while self._next in self._early:
            self._decide(*self._early.pop(self._next))
            self._next += 1

    def _decide(self, task: Task, answer: _Answer) -> None:
        if answer.is_loop or ends_in_a_loop(answer.token_ids):
            self._writer.drop("loop")
        elif _repeated_share(answer.token_ids) >= self._max_repeated:
            self._writer.drop("repetitive")
        elif not self._seen.add(answer.token_ids):
            self._writer.drop("near_duplicate")
        else:
            token_ids = np.array([*task.token_ids, *answer.token_ids], np.int32)
            prompt = task.prompt
            num_prompt = len(task.token_ids)
            self._writer.add(CorpusSequence(token_ids, num_prompt, prompt.category, prompt.id))


def _repeated_share(token_ids: Sequence[int]) -> float:
    """Share of the runs of tokens that are there already: high in loops of any period."""
    num_runs = len(token_ids) - _RUN_TOKENS + 1
    runs = {tuple(token_ids[start : start + _RUN_TOKENS]) for start in range(num_runs)}
    return 1 - len(runs) / num_runs if num_runs > 0 else 0.0


class _Meter:
    """Rates over the last minutes."""

    def __init__(self) -> None:
        self._readings = deque([(time.perf_counter(), 0, 0)])

    def count(self, num_tokens: int, num_answers: int) -> None:
        """Add what a step gave."""
        now_s = time.perf_counter()
        _, tokens, answers = self._readings[-1]
        self._readings.append((now_s, tokens + num_tokens, answers + num_answers))
        while self._readings[0][0] < now_s - _RATE_WINDOW_S:
            self._readings.popleft()

    def progress(self, writer: CorpusWriter) -> Progress:
        """The state of the corpus with the present rates."""
        first, last = self._readings[0], self._readings[-1]
        seconds, tokens, answers = (new - old for old, new in zip(first, last, strict=True))
        seconds = max(seconds, 1e-9)
        return Progress(writer.num_answered, writer.counts, tokens / seconds, answers / seconds)
