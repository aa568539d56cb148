"""Download a model, verify its checksum and keep it for later runs."""

import argparse

from blockdraft.cli.terminal import find_model

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``blockdraft pull``."""
    parser.add_argument(
        "name", metavar="NAME", help="a name from 'blockdraft models' or hf:ORG/REPO[:FILE]"
    )
    parser.add_argument(
        "--print-path", action="store_true", help="print only the path of the local file"
    )


def run(args: argparse.Namespace) -> int:
    """Pull the model and print where it lies, the path alone or as the end of the last line."""
    path = find_model(args.name)
    print(path if args.print_path else f"{args.name}: {path}")
    return 0
