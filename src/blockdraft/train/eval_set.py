"""Prompts on which a drafter is evaluated: named sets, or what a corpus holds out.

Both choices are by a hash of the prompt's id, the same on every machine. Knows no model: a prompt
that is too long for the context is skipped where it is answered.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.errors import ConfigError
from blockdraft.train.prompts import Prompt, PromptFile, read_prompts
from blockdraft.train.shards import Corpus
from blockdraft.weights.replacing import replacing

__all__ = ["EVAL_SETS", "eval_set", "held_out_prompts", "write_prompts"]

EVAL_SETS = ("quick", "full")
"""Names of the sets: `QUICK`, and with it `PER_SOURCE` prompts of each of `SOURCES` it lacks."""

QUICK, ALL = "bench_quick.jsonl", "bench.jsonl.gz"
SOURCES = ("humaneval", "mbpp-sanitized-test", "gsm8k-test", "mt-bench")
PER_SOURCE = 20


def eval_set(name: str, data: Path) -> tuple[SpeedPrompt, ...]:
    """The set called ``name``, from the folder of benchmark prompts.

    Raises:
        ConfigError: There is no such set, a file is missing or damaged, or a source has too few
            prompts.
    """
    if name not in EVAL_SETS:
        raise ConfigError(f"the evaluation set is {name!r}; it must be {' or '.join(EVAL_SETS)}")
    quick = read_prompts(str(data / QUICK)).prompts
    if name == "quick":
        return tuple(map(_speed_prompt, quick))
    every = read_prompts(str(data / ALL)).prompts
    chosen = list(quick)
    taken = {prompt.id for prompt in quick}
    for source in SOURCES:
        found = [each for each in every if each.source == source and each.id not in taken]
        if len(found) < PER_SOURCE:
            raise ConfigError(
                f"{data / ALL} has {len(found)} more prompts of {source}, not {PER_SOURCE}"
            )
        chosen += _drawn(found, PER_SOURCE)
    return tuple(map(_speed_prompt, chosen))


def held_out_prompts(
    corpus: Corpus, share: float, files: Iterable[PromptFile], *, limit: int
) -> tuple[SpeedPrompt, ...]:
    """Prompts of a corpus that a run with the same share did not learn from.

    Args:
        corpus: The corpus.
        share: What the run holds out.
        files: The prompts that the corpus answers.
        limit: The most prompts; categories get the same number as far as they have them.
    """
    _, held_out = corpus.split(share)
    ids = {sequence.prompt_id for sequence in held_out}
    found = [each for file in files for each in file.prompts if each.id in ids]
    names = sorted({each.category for each in found})
    queues = [_drawn([each for each in found if each.category == name], limit) for name in names]
    chosen: list[Prompt] = []
    while any(queues) and len(chosen) < limit:
        chosen += [queue.pop(0) for queue in queues if queue]
    return tuple(map(_speed_prompt, chosen[:limit]))


def write_prompts(path: Path, prompts: Iterable[SpeedPrompt]) -> None:
    """Write prompts as the JSON lines that `bench.prompts` reads."""
    with replacing(path) as file:
        for prompt in prompts:
            line = {"id": prompt.id, "category": prompt.category, "prompt": prompt.prompt}
            file.write(json.dumps(line).encode() + b"\n")


def _drawn(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    return sorted(prompts, key=lambda one: hashlib.sha256(one.id.encode()).digest())[:count]


def _speed_prompt(prompt: Prompt) -> SpeedPrompt:
    return SpeedPrompt(prompt.id, prompt.category, prompt.text)
