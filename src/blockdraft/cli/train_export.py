"""``blockdraft train export``: its flags."""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from blockdraft.cli.options import add_model_option
from blockdraft.cli.terminal import find_model
from blockdraft.errors import ConfigError
from blockdraft.weights.drafter_types import FILE_TYPES

__all__ = ["DESCRIPTION", "add_arguments", "run", "torch_module"]

DESCRIPTION = """Write the folder of a trained drafter that others can use.

It gets config.json and model.safetensors (bf16, for z-lab's package, vLLM and SGLang), a GGUF file
in fewer bits, provenance.json, the training curve and a model card. Needs blockdraft[torch].
"""

_EXTRA = ("torch", "matplotlib")


def add_arguments(one: argparse.ArgumentParser) -> None:
    """Add the flags of ``blockdraft train export``."""
    one.add_argument("source", type=Path, metavar="RUN", help="folder of a run, or of a drafter")
    add_model_option(one)
    one.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder to write: a new one, an empty one, or an earlier export, which is replaced",
    )
    one.add_argument(
        "--type",
        choices=sorted(FILE_TYPES),
        default="q4_0",
        help="type of the GGUF file's matrices (default: %(default)s)",
    )
    one.add_argument(
        "--corpus", type=Path, metavar="DIR", help="what it learned from, for the provenance"
    )
    one.add_argument(
        "--prompts",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="the corpus' prompts, whose sources and licences go into the provenance",
    )
    one.add_argument(
        "--evaluation",
        type=Path,
        metavar="FILE",
        help="from 'train eval --json' (default: evaluation.json in RUN, if it is there)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the folder and print what is in it.

    Raises:
        BlockdraftError: A file cannot be read or written, or they do not fit together.
    """
    export = torch_module("blockdraft.train.export")
    output: Path = args.output.expanduser()
    facts = export.export_drafter(
        export.ExportFiles(
            args.source, find_model(args.model), output, args.corpus, args.prompts, args.evaluation
        ),
        type_name=args.type,
        command=["blockdraft", *sys.argv[1:]],
        notify=_notify,
    )
    print(f"{output}: {', '.join(facts['files'])}, {export.PROVENANCE}, {export.CARD}")
    return 0


def torch_module(name: str) -> Any:
    """A module that needs torch or matplotlib, which not everyone has.

    Raises:
        ConfigError: They are not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise ConfigError(f"this needs {error.name}: pip install 'blockdraft[torch]'") from error


def _notify(line: str) -> None:
    print(f"blockdraft: {line}", file=sys.stderr, flush=True)
