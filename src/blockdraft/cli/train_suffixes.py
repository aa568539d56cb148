"""``blockdraft train suffixes``: its flags."""

import argparse
from importlib import import_module
from pathlib import Path

from blockdraft.bench.report import check_output
from blockdraft.cli.options import add_corpus_option, add_model_option
from blockdraft.cli.terminal import find_model

__all__ = ["DESCRIPTION", "add_arguments", "run"]

DESCRIPTION = """Make a file of a corpus's answers to look drafts up in, without a network.

--spec-suffix-corpus FILE drafts with it: what usually followed the same words in the model's own
answers. It costs nothing to train and next to nothing to draft; on what the corpus covers it is
worth as much as a small network.
"""


def add_arguments(one: argparse.ArgumentParser) -> None:
    """Add the flags of ``blockdraft train suffixes``."""
    add_model_option(one)
    add_corpus_option(one)
    one.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="file to write"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and say how large it is.

    Raises:
        BlockdraftError: A file cannot be read or written, or they do not fit together.
    """
    suffixes = import_module("blockdraft.train.suffixes")
    output: Path = args.output.expanduser()
    check_output(output)
    num_answers, num_tokens = suffixes.write_suffixes(find_model(args.model), args.corpus, output)
    size = output.stat().st_size / 1e6
    print(f"{output}: {num_answers:,} answers, {num_tokens:,} tokens, {size:.1f} MB")
    return 0
