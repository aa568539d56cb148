"""Write a drafter as a GGUF file that llama.cpp loads too, in fewer bits.

A drafter from a Hugging Face folder brings no tokenizer, which llama.cpp compares with the
target's: -m says from which model to take it. A GGUF drafter has one already.
"""

import argparse
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from blockdraft.cli.conversion import WatchedValues, check_target, drafter_path, quantized_types
from blockdraft.cli.parser import Parser
from blockdraft.cli.terminal import TerminalProgress, find_model
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_types import FILE_TYPES, choose_types
from blockdraft.weights.drafter_writer import write_drafter_gguf
from blockdraft.weights.gguf import GGUFFile

__all__ = ["add_arguments", "run"]


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft quantize``."""
    parser.add_argument(
        "drafter", metavar="DRAFTER", help="a folder, a GGUF file, or hf:ORG/REPO[:FILE]"
    )
    parser.add_argument(
        "--type",
        required=True,
        choices=sorted(FILE_TYPES),
        help="type of the matrices; vectors stay float32. q4_k_m mixes 4 and 6 bits. Rows that are"
        " no whole number of blocks get the type that llama.cpp gives them",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="GGUF file to write; one that is there is replaced",
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="TARGET",
        help="the model that the drafter was made for: its tokenizer is copied, and the drafter is"
        " checked against it (default: what a GGUF drafter has)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print its name and sizes.

    Raises:
        BlockdraftError: The drafter cannot be read or written, or does not fit the target.
    """
    output: Path = args.output.expanduser()
    _check_output(output)
    progress = TerminalProgress()
    with ExitStack() as stack:
        drafter = stack.enter_context(DrafterFile.open(drafter_path(args.drafter)))
        target = stack.enter_context(_tokenizer(drafter, args.model))
        found = quantized_types(drafter)
        if found:
            raise ConfigError(
                f"{drafter.path}: is quantized already ({', '.join(found)}); quantize the folder or"
                " the f16 file that it was made from"
            )
        _tell_fallbacks(drafter, args.type, progress)
        values = WatchedValues(drafter, progress, f"writing {output}")
        try:
            write_drafter_gguf(output, drafter.config, values, type_name=args.type, target=target)
        finally:
            progress.finish()
        before = sum(info.nbytes for info in drafter.tensors.values())
    size = output.stat().st_size
    print(f"{output}: {args.type}, {size / 1e6:.1f} MB, from {before / 1e6:.1f} MB of weights")
    return 0


def _check_output(path: Path) -> None:
    """Refuse what cannot be written before the work is done."""
    if path.is_dir():
        raise ConfigError(f"-o {path} is a directory; it must be a file")
    if not path.parent.is_dir():
        raise ConfigError(f"-o {path}: there is no folder {path.parent}")


def _tokenizer(drafter: DrafterFile, model: str | None) -> GGUFFile:
    """The open file whose tokenizer is copied: the target, or the drafter itself."""
    if model is None:
        if drafter.path.is_dir():
            raise ConfigError(
                f"{drafter.path}: a folder has no tokenizer, which the file needs; give the model"
                " that the drafter was made for with -m"
            )
        return GGUFFile.open(drafter.path)
    target = GGUFFile.open(find_model(model))
    try:
        check_target(drafter, target)
    except BaseException:
        target.close()
        raise
    return target


def _tell_fallbacks(drafter: DrafterFile, type_name: str, progress: TerminalProgress) -> None:
    """Say which matrices do not get the type of the mix, and why."""
    chosen = choose_types(drafter.config, type_name)
    reasons = Counter(each.fallback for each in chosen if each.fallback is not None)
    for reason, count in reasons.items():
        progress.notice(f"{count} {'matrix' if count == 1 else 'matrices'}: {reason}")
