"""List the models that have a name: size, licence, whether they are on this machine."""

import argparse

from blockdraft.cli.options import cache_dir
from blockdraft.hub import DEFAULT_MODEL, NAMED_MODELS, downloaded_path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no flags of its own."""


def run(args: argparse.Namespace) -> int:
    """Print one line per model."""
    del args
    rows = [("NAME", "SIZE", "LICENCE", "DOWNLOADED", "WHAT IT IS")]
    for name, model in NAMED_MODELS.items():
        about = model.about + (" (the default)" if name == DEFAULT_MODEL else "")
        here = "yes" if downloaded_path(name, cache_dir=cache_dir()) else "no"
        rows.append((name, f"{model.size_bytes / 1e6:.0f} MB", model.licence, here, about))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    return 0
