"""From the settings of a session to its drafter, loaded and checked against the target.

Knows no text. The drafter's file is open before the target is loaded: it says which layers the
target has to give features of.
"""

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from blockdraft import hub
from blockdraft._native import OrderedText
from blockdraft.assets import find_shipped
from blockdraft.config import NO_CORPUS, DraftConfig, DrafterConfig
from blockdraft.errors import ConfigError
from blockdraft.models.drafter import DrafterModel, load_drafter
from blockdraft.models.small import SmallModel, check_small, load_small
from blockdraft.models.target import TargetModel
from blockdraft.session.costs import load_costs
from blockdraft.session.draft_picks import SampledDrafts
from blockdraft.speculative import (
    AutoregressiveDrafter,
    Controller,
    DFlashDrafter,
    Drafter,
    DraftLimits,
    NgramDrafter,
    SuffixCache,
    SuffixDrafter,
    Vocabulary,
    open_suffix_corpus,
)
from blockdraft.weights.drafter import DrafterFile, check_fits, check_tokens
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import SUPPORTED_ARCHITECTURES, read_model_config

__all__ = [
    "most_drafts",
    "new_drafter",
    "open_drafter",
    "settle",
    "taps_of",
    "vocabulary_of",
]

_LOG = logging.getLogger(__name__)

_TOP_K = 8
"""Candidates of each row of a network that has no selector of its own."""

_TREE_NODES = 15
"""Nodes of a tree from which those that pay are taken: a pass then has at most 16 rows."""

_FEW_DRAFTS = 7
"""Drafts of a round where no block says how many there may be."""


def settle(config: DraftConfig, target: Path) -> DraftConfig:
    """How a session on the file ``target`` drafts: with what is shipped where nothing else is said.

    Raises:
        ConfigError: A drafter is asked for, and none is given or shipped.
        FileFormatError: The installation is damaged, or not complete.
    """
    if not config.is_open:
        return config
    shipped = find_shipped(target, sha256=hub.verified_sha256(target))
    if shipped is None:
        return config.settled(None)
    drafter, corpus = shipped.drafter, shipped.suffix_corpus
    settled = config.settled(
        None if drafter is None else str(drafter.path), None if corpus is None else str(corpus.path)
    )
    for asset in shipped.assets:
        if str(asset.path) in (settled.drafter, settled.suffix_corpus):
            asset.check()
            _LOG.info("drafting with %s, made for %s", asset.path, shipped.target)
    return settled


@contextmanager
def open_drafter(
    config: DraftConfig, target: GGUFFile, *, cache_dir: Path | None = None
) -> Iterator[DrafterFile | GGUFFile | None]:
    """The open file of the drafter, or of a smaller model; None for ways to draft without one.

    Args:
        config: How the session drafts; `settle` has closed it.
        target: The target's open file.
        cache_dir: Where downloads are kept; None is the user's cache.

    Raises:
        ConfigError: It is not there, or was made for another target.
        FileFormatError: It is damaged.
        UnsupportedError: It is of another kind.
    """
    if not config.needs_drafter:
        yield None
        return
    assert config.drafter is not None
    path = Path(config.drafter).expanduser()
    if not path.is_dir():
        path = hub.resolve(config.drafter, cache_dir=cache_dir)
    # What it is, the settings may say; else the file does.
    is_told = config.spec_type is not None
    may_be_model = "draft-simple" in config.kinds if is_told else not path.is_dir()
    if may_be_model:
        with GGUFFile.open(path) as model:
            if is_told or _is_target(model):
                check_small(model, target)
                yield model
                return
    with DrafterFile.open(path) as file:
        _check(file, target)
        yield file


def taps_of(file: DrafterFile | GGUFFile | None) -> tuple[int, ...]:
    """Layers of the target whose output a drafter reads."""
    return file.config.target_layer_ids if isinstance(file, DrafterFile) else ()


def new_drafter(
    config: DraftConfig,
    file: DrafterFile | GGUFFile | None,
    target: TargetModel,
    target_file: GGUFFile,
    *,
    cache_dir: Path | None = None,
) -> Drafter | None:
    """What drafts by ``config``; None for plain decoding.

    Args:
        config: How the session drafts.
        file: What `open_drafter` gave.
        target: The target, loaded with the taps that the file asks for.
        target_file: Its open file.
        cache_dir: Where downloads are kept, and what passes cost beside it.

    Raises:
        ConfigError: The drafter or the file of earlier answers does not fit the target, or a
            setting the drafter.
        FileFormatError: The file of earlier answers is damaged.
    """
    if isinstance(file, GGUFFile):
        with _named(file):
            config = config.drafts_with("draft-simple")
    drafters: list[Drafter] = []
    num_drafts = config.draft_n_max or _FEW_DRAFTS
    if "ngram" in config.kinds:
        drafters.append(NgramDrafter(num_drafts))
    if "suffix" in config.kinds:
        limits = DraftLimits(min_prob=config.draft_p_min)
        cache, corpus = _open_cache(config, target_file), _open_corpus(config, target_file)
        drafters.append(SuffixDrafter(num_drafts, limits, cache=cache, corpus=corpus))
    model: DrafterModel | SmallModel | None = None
    if isinstance(file, GGUFFile):
        model = load_small(file, target, target_file=target_file)
        drafters.append(_new_small(config, model, target))
    elif file is not None:
        model = load_drafter(file, target, target_file=target_file, top_k=_TOP_K)
        with _named(file):
            drafters.append(_new_network(config, model))
    if not drafters:
        return None
    if config.policy == "fixed":
        (drafter,) = drafters
        return drafter
    trace = _open_trace(config)
    files = [target_file.path] + ([] if file is None else [file.path])
    controller = Controller(
        drafters,
        load_costs(target, model, files, cache_dir=cache_dir),
        accepted=file.config.accepted if isinstance(file, DrafterFile) else (),
        trace=trace,
    )
    if trace is not None:
        weakref.finalize(controller, trace.close)
    return controller


def most_drafts(config: DraftConfig, network: DrafterConfig) -> int:
    """Drafts of a round for which an engine keeps room in a network's K/V.

    Args:
        config: How the session drafts; the network's drafts are among its own.
        network: The drafter's shape.
    """
    chain = config.draft_n_max or network.block_size - 1
    looked_up = 0 if config.kinds == ("dflash",) else config.draft_n_max or _FEW_DRAFTS
    return max(chain, looked_up, _tree_nodes(config))


def _new_network(config: DraftConfig, model: DrafterModel) -> DFlashDrafter:
    return DFlashDrafter(
        model,
        config.draft_n_max,
        min_prob=config.draft_p_min,
        tree_nodes=_tree_nodes(config),
    )


def _new_small(
    config: DraftConfig, model: SmallModel, target: TargetModel
) -> AutoregressiveDrafter:
    return AutoregressiveDrafter(
        model,
        config.draft_n_max or _FEW_DRAFTS,
        pick=SampledDrafts(target.isa),
        min_prob=config.draft_p_min,
    )


def _is_target(file: GGUFFile) -> bool:
    """Whether a file is a model that writes text by itself."""
    return file.metadata.get("general.architecture") in SUPPORTED_ARCHITECTURES


def _tree_nodes(config: DraftConfig) -> int:
    if config.draft_tree is not None:
        return config.draft_tree
    return min(_TREE_NODES, config.draft_n_max or _TREE_NODES) if config.policy == "auto" else 0


def _open_trace(config: DraftConfig) -> TextIO | None:
    """The file that gets every decision, a line each."""
    if config.trace is None:
        return None
    try:
        return Path(config.trace).expanduser().open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"the trace {config.trace} cannot be written: {reason}") from error


def _open_cache(config: DraftConfig, target: GGUFFile) -> SuffixCache | None:
    """The earlier answers that the settings name; None if they name none."""
    if config.suffix_cache is None:
        return None
    return SuffixCache.open(Path(config.suffix_cache).expanduser(), vocabulary_of(target))


def _open_corpus(config: DraftConfig, target: GGUFFile) -> OrderedText | None:
    """The answers that the settings name to look into; None if they name none."""
    if config.suffix_corpus in (None, NO_CORPUS):
        return None
    return open_suffix_corpus(Path(config.suffix_corpus).expanduser(), vocabulary_of(target))


def vocabulary_of(target: GGUFFile) -> Vocabulary:
    """What the token ids of a target mean."""
    return Vocabulary(read_model_config(target).vocab_size, target.metadata_digest())


def _check(file: DrafterFile, target: GGUFFile) -> None:
    """Refuse a drafter of another target before a weight of either is read."""
    with _named(file):
        check_fits(file.config, read_model_config(target))
    check_tokens(file, target)


@contextmanager
def _named(file: DrafterFile | GGUFFile) -> Iterator[None]:
    """Put the drafter's path before a message that has none."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from error
