"""From the settings of a session to its drafter, loaded and checked against the target.

Knows no text. The drafter's file is open before the target is loaded: it says which layers the
target has to give features of.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockdraft import hub
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.models.drafter import load_drafter
from blockdraft.models.target import TargetModel
from blockdraft.speculative import DFlashDrafter, Drafter, NgramDrafter
from blockdraft.weights.drafter import DrafterFile, check_fits, check_tokens
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config

__all__ = ["new_drafter", "open_drafter"]

_NGRAM_DRAFTS = 7


@contextmanager
def open_drafter(
    config: DraftConfig, target: GGUFFile, *, cache_dir: Path | None = None
) -> Iterator[DrafterFile | None]:
    """The drafter's open file; None for ways to draft that need none.

    Args:
        config: How the session drafts.
        target: The target's open file.
        cache_dir: Where downloads are kept; None is the user's cache.

    Raises:
        ConfigError: It is not there, or was made for another target.
        FileFormatError: It is damaged.
        UnsupportedError: It is of another kind.
    """
    if config.kind != "dflash":
        yield None
        return
    assert config.drafter is not None
    path = Path(config.drafter).expanduser()
    if not path.is_dir():
        path = hub.resolve(config.drafter, cache_dir=cache_dir)
    with DrafterFile.open(path) as file:
        _check(file, target)
        yield file


def new_drafter(
    config: DraftConfig, file: DrafterFile | None, target: TargetModel
) -> Drafter | None:
    """What drafts by ``config``; None for plain decoding.

    Args:
        config: How the session drafts.
        file: What `open_drafter` gave.
        target: The target, loaded with the taps that the file asks for.

    Raises:
        ConfigError: The drafter does not fit the target, or a setting the drafter.
    """
    if config.kind == "none":
        return None
    if file is None:
        return NgramDrafter(config.draft_n_max or _NGRAM_DRAFTS)
    model = load_drafter(file, target)
    with _named(file):
        return DFlashDrafter(model, config.draft_n_max, min_prob=config.draft_p_min)


def _check(file: DrafterFile, target: GGUFFile) -> None:
    """Refuse a drafter of another target before a weight of either is read."""
    with _named(file):
        check_fits(file.config, read_model_config(target))
    check_tokens(file, target)


@contextmanager
def _named(file: DrafterFile) -> Iterator[None]:
    """Put the drafter's path before a message that has none."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from error
