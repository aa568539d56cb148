"""The ``blockdraft`` command: picks a sub-command, turns every deliberate error into one line.

Imports nothing heavy: a sub-command's module is imported when its name is on the command line, so
that ``blockdraft --help`` takes as long as Python itself.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

import blockdraft
from blockdraft.cli.parser import Parser, suggestion
from blockdraft.errors import BlockdraftError, ConfigError

__all__ = ["COMMANDS", "command_parser", "main"]

COMMANDS = {
    "run": "write the answer to one prompt",
    "chat": "talk with a model",
    "serve": "answer clients of the OpenAI API, many at once",
    "inspect": "show what is in a model file and the memory it needs",
    "perplexity": "measure how well a model predicts a text",
    "pull": "download and verify a model",
    "models": "list the models that have a name",
    "train": "train a drafter for a model",
    "quantize": "write a drafter as GGUF, in fewer bits",
    "export": "write a drafter as a Hugging Face folder",
    "bench": "measure speed on this machine",
}
"""Sub-commands and their one-line help; the module of the same name implements each."""

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 2 for bad input, 130 after Ctrl-C.

    Args:
        argv: Arguments after the program's name; None takes those of the process.
    """
    _escape_unprintable()
    try:
        try:
            code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        except SystemExit as stop:  # how argparse ends --help
            code = stop.code if isinstance(stop.code, int) else 2
        sys.stdout.flush()
    except BlockdraftError as error:
        _complain(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted", newline=True)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has left; the interpreter must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except OSError as error:
        about = f"{error.filename}: " if error.filename else ""
        _complain(f"error: {about}{error.strerror or error}")
        return 2
    return code


def _dispatch(arguments: list[str]) -> int:
    name = next((word for word in arguments if not word.startswith("-")), None)
    parser = _top_parser()
    if name is None:
        if parser.parse(arguments).version:
            print(f"blockdraft {blockdraft.__version__}")
        else:
            parser.print_help()
        return 0
    if name not in COMMANDS:
        raise ConfigError(
            f"there is no command {name!r}{suggestion(name, list(COMMANDS))};"
            f" commands: {', '.join(COMMANDS)}"
        )
    at = arguments.index(name)
    if at:
        raise ConfigError(f"{arguments[0]} must come after the command {name}")
    # numpy would start a thread per core for linear algebra that no command asks of it: 35 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    args = command_parser(name).parse(arguments[at + 1 :])
    terminal = import_module("blockdraft.cli.terminal")
    terminal.configure_logging(verbose=args.verbose)
    code: int = import_module(f"blockdraft.cli.{name}").run(args)
    return code


def command_parser(name: str) -> Parser:
    """The parser of one of ``COMMANDS``; imports the command."""
    module = import_module(f"blockdraft.cli.{name}")
    parser = Parser(prog=f"blockdraft {name}", description=module.__doc__)
    module.add_arguments(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="say more on the way")
    return parser


def _top_parser() -> Parser:
    lines = "\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items())
    parser = Parser(
        prog="blockdraft",
        usage="blockdraft [-h] [--version] COMMAND ...",
        description="Runs local language models, fast and bit for bit reproducibly.",
        epilog=f"commands:\n{lines}\n\n'blockdraft COMMAND --help' shows a command's flags.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    return parser


def _complain(message: str, *, newline: bool = False) -> None:
    sys.stdout.flush()
    start = "\n" if newline else ""
    print(f"{start}blockdraft: {message}", file=sys.stderr)


def _escape_unprintable() -> None:
    """Let a terminal that cannot show a character get its escape, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
