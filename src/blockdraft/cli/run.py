"""Write the answer to one prompt; it goes to standard output, everything else to standard error."""

import argparse
import json
import sys
from pathlib import Path

from blockdraft.cli.options import (
    add_engine_options,
    add_model_option,
    add_sampling_options,
    decode_text,
    max_tokens,
    sampling_params,
)
from blockdraft.cli.parser import Parser
from blockdraft.cli.sessions import load_session, show_stats
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.session import Message, Prompt, Session, Stream

__all__ = ["add_arguments", "run"]

_INTERRUPTED = 130


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft run``."""
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="what to answer; without it, or as '-', standard input is read",
    )
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    add_model_option(parser)
    parser.add_argument(
        "-sys", "--system-prompt", metavar="TEXT", help="a system turn before the prompt"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="give the prompt to the model as it is, without chat template (always so for a"
        " model that has none)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the text"
    )
    add_engine_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write the answer; 130 when Ctrl-C cut it short.

    Raises:
        BlockdraftError: Flags, prompt or model cannot be honoured.
    """
    if args.raw and args.system_prompt is not None:
        raise ConfigError("--system-prompt needs the chat template that --raw leaves out")
    text = _read_prompt(args)
    params, limit = sampling_params(args), max_tokens(args)
    session = load_session(args)
    stream = session.stream(
        _with_system(session, text, args),
        params=params,
        max_tokens=limit,
        stop=args.stop,
        raw=args.raw or None,
    )
    was_interrupted = _show(stream, is_silent=args.json)
    result = stream.result
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        show_stats(result)
    return _INTERRUPTED if was_interrupted else 0


def _read_prompt(args: argparse.Namespace) -> str:
    """The prompt from the one place that was named; a final newline is not part of it."""
    if args.file is not None:
        if args.prompt is not None:
            raise ConfigError(
                f"two prompts: {args.prompt[:40]!r} on the command line and the file {args.file}"
            )
        path = Path(args.file)
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise ConfigError(f"the prompt file {args.file} {what}")
        text, source = decode_text(path.read_bytes(), args.file), f"the file {args.file}"
    elif args.prompt is not None and args.prompt != "-":
        text, source = args.prompt, "the prompt"
        if not _is_encodable(text):
            raise ConfigError("the prompt is not valid UTF-8")
    elif args.prompt is None and sys.stdin.isatty():
        raise ConfigError("there is no prompt: give PROMPT, -f FILE, or text on standard input")
    else:
        text = decode_text(sys.stdin.buffer.read(), "standard input")
        source = "standard input"
    if args.prompt is None or args.prompt == "-":
        text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(f"{source} is empty; a prompt needs at least one character")
    return text


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_system(session: Session, text: str, args: argparse.Namespace) -> Prompt:
    if args.system_prompt is None:
        return text
    if session.tokenizer.chat_template is None:
        raise UnsupportedError(f"--system-prompt needs a chat template; {args.model} has none")
    turns: list[Message] = [
        {"role": "system", "content": args.system_prompt},
        {"role": "user", "content": text},
    ]
    return turns


def _show(stream: Stream, *, is_silent: bool) -> bool:
    """Read the stream to its end and print its text as it comes; whether Ctrl-C cut it short."""
    was_interrupted = False
    ends_line = False
    try:
        with stream:
            for chunk in stream:
                if chunk.text and not is_silent:
                    print(chunk.text, end="", flush=True)
                    ends_line = chunk.text.endswith("\n")
    except KeyboardInterrupt:
        was_interrupted = True
    if not is_silent and not ends_line:
        print(flush=True)
    return was_interrupted
