"""From files to the parts of a training run: drafter, head, labels, features, held-out sequences.

Knows no loop and no optimizer.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.config import DrafterConfig, ModelConfig
from blockdraft.errors import ConfigError
from blockdraft.train.features import FeatureExtractor, FeatureSource
from blockdraft.train.labels import BlockLabels
from blockdraft.train.loss import BlockLoss, FrozenHead
from blockdraft.train.model import TrainableDrafter
from blockdraft.train.selector import SelectorLoss
from blockdraft.train.settings import TrainingSettings
from blockdraft.train.shape import choose_mask_token, drafter_config
from blockdraft.train.shards import Corpus, CorpusSequence
from blockdraft.train.vocabulary import DraftVocabulary, choose_vocabulary, count_answer_tokens
from blockdraft.train.warm_start import (
    cold_start,
    copied_layers,
    selector_start,
    warm_start,
    why_not_copyable,
)
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from blockdraft.weights.tensors import EMBEDDING, HEAD

__all__ = ["Given", "Parts", "fingerprint", "prepare", "split_corpus"]

_NORM_SEQUENCES = 8
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What an earlier run decided.

    Attributes:
        tensors: Weights under the names of `TrainableDrafter.parameters`.
        mask_token_id: The mask token.
        draft_token_ids: Rows of the training head; None chooses them anew.
    """

    tensors: Mapping[str, NDArray[np.float32]]
    mask_token_id: int
    draft_token_ids: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Everything a loop needs.

    Attributes:
        config: The drafter's.
        drafter: Its weights and passes.
        loss: With the frozen head and the selector.
        labels: Under the draft vocabulary.
        features: Gives features.
        training: Sequences to learn from.
        held_out: Sequences to look at.
        vocabulary: Rows of the head.
        start: "warm", "cold" or "given", and why not warm where that was asked for.
    """

    config: DrafterConfig
    drafter: TrainableDrafter
    loss: BlockLoss
    labels: BlockLabels
    features: FeatureSource
    training: Sequence[CorpusSequence]
    held_out: Sequence[CorpusSequence]
    vocabulary: DraftVocabulary
    start: str


def prepare(
    target_path: Path,
    corpus: Corpus,
    settings: TrainingSettings,
    *,
    given: Given | None = None,
    num_threads: int | None = None,
) -> Parts:
    """Make the parts of a run.

    Args:
        target_path: GGUF file of the target.
        corpus: Its answers.
        settings: Of the run.
        given: What an earlier run decided; None starts anew.
        num_threads: Threads of the native core; None is one per processor.

    Raises:
        ConfigError: Corpus, target and settings do not fit together.
        BlockdraftError: The target cannot be loaded.
    """
    training, held_out = split_corpus(corpus, settings)
    with GGUFFile.open(target_path) as file:
        target = read_model_config(file)
        source = FloatWeights(file)
        embedding = source.matrix(EMBEDDING)
        head = embedding if target.tied_head else source.matrix(HEAD)
        used = count_answer_tokens(corpus, target.vocab_size)
        mask_token_id = (
            _mask_token(file, embedding, corpus, settings.mask_token)
            if given is None
            else given.mask_token_id
        )
        config = drafter_config(settings.shape, target, mask_token_id)
        extractor = FeatureExtractor(target_path, config.target_layer_ids, num_threads=num_threads)
        if given is None:
            tensors, start = _first_weights(
                config, target, source, target_path, training, settings, num_threads
            )
        else:
            tensors, start = dict(given.tensors), "given"
    vocabulary = choose_vocabulary(used, settings.draft_vocab_size)
    if given is not None and given.draft_token_ids is not None:
        kept = given.draft_token_ids
        vocabulary = DraftVocabulary(kept, float(used[kept].sum() / max(used.sum(), 1)))
    table = _on_device(embedding, settings.device)
    drafter = TrainableDrafter(config, tensors, embedding=table, dtype=_DTYPES[settings.dtype])
    return Parts(
        config=config,
        drafter=drafter,
        loss=_loss(drafter, head, vocabulary, settings),
        labels=BlockLabels(vocabulary, target.vocab_size, table.device),
        features=extractor,
        training=training,
        held_out=held_out,
        vocabulary=vocabulary,
        start=start,
    )


def fingerprint(corpus: Sequence[CorpusSequence]) -> str:
    """Checksum of the sequences in order."""
    digest = hashlib.sha256()
    for sequence in corpus:
        digest.update(sequence.prompt_length.to_bytes(8, "little"))
        digest.update(sequence.token_ids.tobytes())
    return digest.hexdigest()


def split_corpus(
    corpus: Corpus, settings: TrainingSettings
) -> tuple[list[CorpusSequence], list[CorpusSequence]]:
    """Sequences to train on and to look at.

    Raises:
        ConfigError: There is nothing to train on.
    """
    training, held_out = corpus.split(settings.evaluation.share)
    # A block needs an anchor and a token after it.
    usable = [each for each in training if len(each.answer_ids) > 1]
    if not usable:
        raise ConfigError("the corpus has no sequence to train on")
    spread = max(1, len(held_out) // max(settings.evaluation.sequences, 1))
    return usable, list(held_out[::spread][: settings.evaluation.sequences])


def _mask_token(
    file: GGUFFile, embedding: NDArray[np.float32], corpus: Corpus, name: str | None
) -> int:
    used = set(np.unique(np.concatenate([each.token_ids for each in corpus])).tolist())
    metadata = file.metadata
    for key in ("bos", "eos", "eot", "unknown", "padding"):
        used.add(metadata.get(f"tokenizer.ggml.{key}_token_id"))
    tokens = list(file.get_list("tokenizer.ggml.tokens", of=str))
    types = list(file.get_list("tokenizer.ggml.token_type", of=int))
    return choose_mask_token(tokens, types, embedding, used, name=name)


def _first_weights(
    config: DrafterConfig,
    target: ModelConfig,
    source: FloatWeights,
    target_path: Path,
    training: Sequence[CorpusSequence],
    settings: TrainingSettings,
    num_threads: int | None,
) -> tuple[dict[str, NDArray[np.float32]], str]:
    reason = why_not_copyable(config, target) if settings.is_warm else "not wanted"
    if reason is not None:
        tensors, start = cold_start(config, settings.seed), f"cold ({reason})"
    else:
        before = [layer - 1 for layer in copied_layers(config, target)]
        extractor = FeatureExtractor(target_path, before, num_threads=num_threads)
        sample = training[:: max(1, len(training) // _NORM_SEQUENCES)][:_NORM_SEQUENCES]
        found = torch.cat(extractor.extract([each.token_ids for each in sample]))
        parts = found.numpy().reshape(len(found), len(before), -1)
        features = {layer: np.ascontiguousarray(parts[:, i]) for i, layer in enumerate(before)}
        tensors, start = warm_start(config, target, source, features, settings.seed), "warm"
    return tensors | selector_start(config, settings.seed), start


def _loss(
    drafter: TrainableDrafter,
    head: NDArray[np.float32],
    vocabulary: DraftVocabulary,
    settings: TrainingSettings,
) -> BlockLoss:
    device, config = drafter.embedding.device, drafter.config
    frozen = FrozenHead(
        weight=torch.tensor(head[vocabulary.token_ids]).to(device, _DTYPES[settings.dtype]),
        token_ids=torch.from_numpy(vocabulary.token_ids).to(device),
        scale=config.logit_scale,
        softcap=config.logit_softcap,
    )
    selector = None
    if drafter.selector is not None and config.selector is not None:
        selector = SelectorLoss(drafter.selector, drafter.embedding, config.selector.top_k)
    return BlockLoss(frozen, settings.objective, selector)


def _on_device(array: NDArray[np.float32], device: str) -> Tensor:
    try:
        return torch.tensor(array).to(device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {error}") from error
