"""From files to the parts of a training run: drafter, head, labels, features, held-out sequences.

Knows no loop and no optimizer.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.config import DrafterConfig, ModelConfig
from blockdraft.errors import ConfigError
from blockdraft.train.features import FeatureExtractor, FeatureSource
from blockdraft.train.head import FrozenHead
from blockdraft.train.labels import BlockLabels
from blockdraft.train.loss import BlockLoss
from blockdraft.train.model import TrainableDrafter
from blockdraft.train.selector import SelectorLoss
from blockdraft.train.settings import TrainingSettings
from blockdraft.train.shape import choose_mask_token, drafter_config
from blockdraft.train.shards import Corpus, CorpusSequence
from blockdraft.train.soft_labels import Teacher, taps_with_teacher
from blockdraft.train.vocabulary import DraftVocabulary, choose_vocabulary, count_answer_tokens
from blockdraft.train.warm_start import (
    cold_start,
    copied_layers,
    selector_start,
    warm_start,
    why_not_copyable,
)
from blockdraft.weights.drafter_names import SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import FloatWeights
from blockdraft.weights.tensors import EMBEDDING, HEAD, OUTPUT_NORM

__all__ = ["Given", "Parts", "block_loss", "fingerprint", "prepare", "split_corpus"]

_NORM_SEQUENCES = 8
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_TABLES = (SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR)


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
        config: The drafter's, with the draft vocabulary.
        drafter: Its weights and passes.
        loss: With the frozen head and the selector.
        labels: Under the draft vocabulary.
        features: Gives features.
        taps: Target layers that they are outputs of.
        teacher: Gives soft labels; None where the objective has none.
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
    taps: tuple[int, ...]
    teacher: Teacher | None
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
        vocabulary = _vocabulary(used, settings.draft_vocab_size, given)
        config = replace(
            drafter_config(settings.shape, target, mask_token_id),
            head_token_ids=vocabulary.head_token_ids(target.vocab_size),
        )
        taps = config.target_layer_ids
        if settings.objective.soft:
            taps = taps_with_teacher(taps, target.num_layers)
        extractor = FeatureExtractor(target_path, taps, num_threads=num_threads)
        if given is None:
            tensors, start = _first_weights(
                config, target, source, target_path, training, settings, num_threads
            )
        else:
            tensors, start = dict(given.tensors), "given"
        tensors |= _selector(config, settings, given, embedding, vocabulary)
        output_norm = source.vector(OUTPUT_NORM).copy()
    table = _on_device(embedding, settings.device)
    table_rows = None
    if settings.selector == "tables":
        table_rows = torch.from_numpy(vocabulary.row_of(target.vocab_size))
    drafter = TrainableDrafter(
        config, tensors, embedding=table, dtype=_DTYPES[settings.dtype], table_rows=table_rows
    )
    teacher = None
    if settings.objective.soft:
        teacher = Teacher(torch.from_numpy(output_norm).to(table.device), target.norm_eps)
    return Parts(
        config=config,
        drafter=drafter,
        loss=block_loss(drafter, head, vocabulary, settings),
        labels=BlockLabels(vocabulary, target.vocab_size, table.device),
        features=extractor,
        taps=taps,
        teacher=teacher,
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
    return tensors, start


def _vocabulary(used: NDArray[np.int64], size: int | None, given: Given | None) -> DraftVocabulary:
    if given is None or given.draft_token_ids is None:
        return choose_vocabulary(used, size)
    kept = given.draft_token_ids
    return DraftVocabulary(kept, float(used[kept].sum() / max(used.sum(), 1)))


def _selector(
    config: DrafterConfig,
    settings: TrainingSettings,
    given: Given | None,
    embedding: NDArray[np.float32],
    vocabulary: DraftVocabulary,
) -> dict[str, NDArray[np.float32]]:
    """First weights of a selector: maps, or the draft vocabulary's rows of tables."""
    token_ids, is_free = vocabulary.token_ids, settings.selector == "tables"
    if given is None:
        start = selector_start(config, settings.seed)
        made = {name: embedding[token_ids] @ start[name].T for name in _TABLES if name in start}
        return start | made if is_free else start
    # A drafter's folder has whole tables, a checkpoint what was trained.
    whole = {name: given.tensors[name] for name in _TABLES if name in given.tensors}
    if not is_free:
        return {}
    return {name: rows[token_ids] for name, rows in whole.items() if len(rows) == len(embedding)}


def block_loss(
    drafter: TrainableDrafter,
    head: NDArray[np.float32],
    vocabulary: DraftVocabulary,
    settings: TrainingSettings,
) -> BlockLoss:
    """The loss of a drafter under the rows of its target's head that it drafts from."""
    device, config = drafter.embedding.device, drafter.config
    frozen = FrozenHead(
        weight=torch.tensor(head[vocabulary.token_ids]).to(device, _DTYPES[settings.dtype]),
        token_ids=torch.from_numpy(vocabulary.token_ids).to(device),
        scale=config.logit_scale,
        softcap=config.logit_softcap,
    )
    selector = None
    if drafter.selector is not None and config.selector is not None:
        selector = SelectorLoss(drafter.selector, config.selector.top_k)
    return BlockLoss(frozen, settings.objective, selector)


def _on_device(array: NDArray[np.float32], device: str) -> Tensor:
    try:
        return torch.tensor(array).to(device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {error}") from error
