"""Write a drafter as a Hugging Face folder, which z-lab's package, vLLM and SGLang read."""

import argparse
from dataclasses import replace
from pathlib import Path

from blockdraft.cli.conversion import WatchedValues, check_target, drafter_path, quantized_types
from blockdraft.cli.parser import Parser
from blockdraft.cli.terminal import TerminalProgress, find_model
from blockdraft.config import DrafterConfig
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_writer import FOLDER_DTYPES, FOLDER_FILES, write_drafter_folder
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config

__all__ = ["add_arguments", "run"]


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft export``."""
    parser.add_argument(
        "drafter", metavar="DRAFTER", help="a GGUF file, a folder, or hf:ORG/REPO[:FILE]"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder to write: a new one, an empty one, or an earlier export, which is replaced",
    )
    parser.add_argument(
        "--dtype",
        choices=FOLDER_DTYPES,
        default=FOLDER_DTYPES[0],
        help="type of the weights (default: %(default)s)",
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="TARGET",
        help="the model that the drafter was made for: the drafter is checked against it, and its"
        " number of layers is written, which GGUF drafters do not state and z-lab's package needs",
    )


def run(args: argparse.Namespace) -> int:
    """Write the folder and print its name and size.

    Raises:
        BlockdraftError: The drafter cannot be read or written, or does not fit the target.
    """
    output: Path = args.output.expanduser()
    progress = TerminalProgress()
    with DrafterFile.open(drafter_path(args.drafter)) as drafter:
        _check_output(output, drafter.path)
        config = _completed(drafter, args.model)
        if config.num_target_layers is None:
            progress.notice(
                f"{drafter.path} does not say how many layers its target has, which z-lab's package"
                " needs; -m TARGET adds it"
            )
        found = quantized_types(drafter)
        if found:
            progress.notice(
                f"{drafter.path} is quantized ({', '.join(found)}); the folder gets the values that"
                " its codes stand for"
            )
        values = WatchedValues(drafter, progress, f"writing {output}")
        try:
            write_drafter_folder(output, config, values, dtype=args.dtype)
        finally:
            progress.finish()
    size = sum((output / name).stat().st_size for name in FOLDER_FILES if (output / name).exists())
    print(f"{output}: {args.dtype}, {size / 1e6:.1f} MB")
    return 0


def _check_output(output: Path, source: Path) -> None:
    """Refuse a folder with anything in it that is not an earlier export's."""
    if not output.exists():
        return
    if not output.is_dir():
        raise ConfigError(f"-o {output} is a file; it must be a folder")
    if source.is_dir() and output.samefile(source):
        raise ConfigError(f"-o {output} is the drafter itself")
    others = sorted(each.name for each in output.iterdir() if each.name not in FOLDER_FILES)
    if others:
        raise ConfigError(
            f"-o {output} holds {others[0]}, which no export wrote; it must be new, empty or an"
            " earlier export"
        )


def _completed(drafter: DrafterFile, model: str | None) -> DrafterConfig:
    """The configuration, with the number of the target's layers where the target is given."""
    if model is None:
        return drafter.config
    with GGUFFile.open(find_model(model)) as target:
        check_target(drafter, target)
        return replace(drafter.config, num_target_layers=read_model_config(target).num_layers)
