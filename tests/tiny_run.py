"""A tiny training run, a few steps long, with everything that an export reads."""

import hashlib
import json
from pathlib import Path

import torch

from blockdraft.train.anchors import BlockSampler
from blockdraft.train.corpus_writer import CorpusWriter
from blockdraft.train.fit import RunFiles, fit
from blockdraft.train.settings import Budget, Evaluation, Optimization, TrainingSettings
from blockdraft.train.shape import DrafterShape
from tests.tiny_corpus import counting_sequence

__all__ = ["SETTINGS", "TinyRun"]

SETTINGS = TrainingSettings(
    Budget(steps=4),
    shape=DrafterShape(
        num_layers=1, taps=(0, 2), block_size=5, window=16, selector_rank=8, selector_top_k=4
    ),
    sampler=BlockSampler(widths=(3, 5)),
    optimization=Optimization(learning_rate=2e-2, sequences_per_step=8),
    evaluation=Evaluation(share=0.2, sequences=3, stride=3),
    draft_vocab_size=64,
    seed=11,
    log_every=2,
)


class TinyRun:
    """A corpus with the prompts it was made from, and a run that learned from it.

    Attributes:
        target: GGUF file of a target of four layers or more.
        prompts: Its prompts, of the sources "steps" (MIT) and, by one in three, "".
        corpus: Folder of the corpus.
        run: Folder of the run.
    """

    def __init__(self, folder: Path, target: Path, settings: TrainingSettings = SETTINGS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.target = target
        self.prompts = folder / "prompts.jsonl"
        self.corpus = folder / "corpus"
        self.run = folder / "run"
        self._write_prompts(24)
        self._write_corpus(24)
        threads = torch.get_num_threads()
        try:
            fit(RunFiles(target, self.corpus, self.run), settings, num_threads=1)
        finally:
            torch.set_num_threads(threads)

    def _write_prompts(self, count: int) -> None:
        lines = []
        for index in range(count):
            line = {"id": f"prompt{index}", "category": "count", "prompt": f"count from {index}"}
            if index % 3:
                line |= {"source": "steps", "licence": "MIT"}
            lines.append(json.dumps(line))
        self.prompts.write_text("\n".join(lines))

    def _write_corpus(self, count: int) -> None:
        header = {
            "target": {
                "sha256": hashlib.sha256(self.target.read_bytes()).hexdigest(),
                "vocab_size": 299,
            },
            "prompts": {
                "files": {self.prompts.name: hashlib.sha256(self.prompts.read_bytes()).hexdigest()}
            },
        }
        with CorpusWriter(self.corpus, header, shard_answers=100) as writer:
            for index in range(count):
                writer.add(counting_sequence(index, answer=20 + index))
