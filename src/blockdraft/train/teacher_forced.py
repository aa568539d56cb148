"""Why teacher-forced figures are not those of real decoding, in numbers.

Drafts at every few tokens of answers that real decoding has written. Against a run's own
evaluation this shows what other prompts, and categories of equal weight, make; against real
decoding, what the places of its blocks make: they begin where the draft before was wrong. Knows no
optimizer and no corpus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blockdraft.bench.evaluation import Answer, DrafterReport
from blockdraft.errors import ConfigError
from blockdraft.train.anchors import BlockSampler
from blockdraft.train.evaluation import EvaluationResult, HeldOut
from blockdraft.train.features import FeatureExtractor
from blockdraft.train.labels import BlockLabels
from blockdraft.train.model import TrainableDrafter
from blockdraft.train.prepare import block_loss
from blockdraft.train.restart import given_drafter
from blockdraft.train.settings import Budget, TrainingSettings
from blockdraft.train.shards import CorpusSequence
from blockdraft.train.vocabulary import DraftVocabulary
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from blockdraft.weights.tensors import EMBEDDING, HEAD

__all__ = ["SameAnswers", "same_answers"]

_STRIDE = 4


@dataclass(frozen=True, slots=True)
class SameAnswers:
    """Teacher-forced figures of real answers; those that end in a loop are left out.

    Attributes:
        tau_by_category: Mean acceptance length of each category.
        survival: Share of blocks that are right up to each position.
    """

    tau_by_category: dict[str, float]
    survival: tuple[float, ...]

    @property
    def tau(self) -> float:
        """Mean over categories."""
        return sum(self.tau_by_category.values()) / len(self.tau_by_category)

    def to_json(self) -> dict[str, Any]:
        """For programs; the keys are stable."""
        return {
            "tau": self.tau,
            "tau_by_category": self.tau_by_category,
            "survival": list(self.survival),
        }

    def explain(self, report: DrafterReport, run: float | None) -> str:
        """The gap for people.

        Args:
            report: Of real decoding.
            run: Teacher-forced tau of the run's own held-out answers, if there was a run.
        """
        kinds = ", ".join(f"{name} {tau:.2f}" for name, tau in self.tau_by_category.items())
        lines = [f"teacher-forced, the same answers: tau {self.tau:.2f} ({kinds})"]
        if run is not None:
            lines.append(
                f"{self.tau - run:+.2f} from the run's {run:.2f}: other prompts, and every"
                " category weighs the same"
            )
        real = report.overall.acceptance.tau
        if real is not None:
            lines.append(
                f"{real - self.tau:+.2f} to real decoding's {real:.2f}: its blocks begin where a"
                " draft was wrong, at harder places"
            )
        return "\n".join(lines)


def same_answers(
    target: Path,
    drafter: Path,
    answers: Sequence[Answer],
    *,
    width: int,
    num_threads: int | None = None,
) -> SameAnswers:
    """Draft at every few tokens of answers.

    Args:
        target: GGUF file.
        drafter: Folder or GGUF file.
        answers: Of real decoding.
        width: Rows of a block.
        num_threads: Threads of the target's passes; None is one per processor.

    Raises:
        ConfigError: No answer has room for a block.
        UnsupportedError: The drafter has parts that cannot be trained on.
        BlockdraftError: A file cannot be read.
    """
    sequences = [_sequence(each) for each in answers if not each.is_loop]
    found = _evaluate(target, drafter, sequences, width, num_threads)
    if not found.stats.blocks:
        raise ConfigError(f"no answer has room for a block of {width} tokens")
    survival = (found.stats.survived / found.stats.blocks).tolist()
    return SameAnswers(found.tau_by_category, tuple(survival))


def _sequence(answer: Answer) -> CorpusSequence:
    token_ids = np.array((*answer.prompt_ids, *answer.token_ids), np.int32)
    return CorpusSequence(token_ids, len(answer.prompt_ids), answer.category, answer.id)


def _evaluate(
    target: Path,
    drafter: Path,
    sequences: Sequence[CorpusSequence],
    width: int,
    num_threads: int | None,
) -> EvaluationResult:
    # Nothing is drawn; blocks of two rows fit every drafter.
    settings = TrainingSettings(
        Budget(steps=1), sampler=BlockSampler(widths=(2,)), selector="tables"
    )
    given, settings = given_drafter(drafter, target, settings)
    with DrafterFile.open(drafter) as drafter_file:
        config = drafter_file.config
    with GGUFFile.open(target) as file:
        model, source = read_model_config(file), FloatWeights(file)
        embedding = source.matrix(EMBEDDING)
        head = embedding if model.tied_head else source.matrix(HEAD)
        tied = torch.tensor(embedding)
    every = np.arange(model.vocab_size)
    token_ids = config.head_token_ids
    vocabulary = DraftVocabulary(every if token_ids is None else np.array(token_ids), 1.0)
    network = TrainableDrafter(
        config, given.tensors, embedding=tied, table_rows=torch.from_numpy(every)
    )
    loss = block_loss(network, head, vocabulary, settings)
    extractor = FeatureExtractor(target, config.target_layer_ids, num_threads=num_threads)
    held_out = HeldOut(sequences, extractor, width=width, stride=_STRIDE)
    return held_out.evaluate(network, loss, BlockLabels(vocabulary, model.vocab_size, "cpu"))
