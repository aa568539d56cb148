"""Write the answer to one prompt; it goes to standard output, everything else to standard error."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from blockdraft.cli.colour import painter, why_no_colour
from blockdraft.cli.compare import compare
from blockdraft.cli.options import (
    add_draft_options,
    add_engine_options,
    add_model_option,
    add_sampling_options,
    add_show_draft_option,
    decode_text,
    draft_config,
    max_tokens,
    sampling_params,
)
from blockdraft.cli.parser import Parser
from blockdraft.cli.sessions import load_session, show_stats
from blockdraft.errors import ConfigError, UnsupportedError
from blockdraft.hub import DEFAULT_MODEL, NAMED_MODELS
from blockdraft.session import Message, Prompt, Session, Stream, TextChunk

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
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also answer without drafts; show a table of both, the speed-up and whether the"
        " tokens are identical (exit code 1 when not)",
    )
    add_show_draft_option(parser, default=False)
    add_engine_options(parser)
    add_draft_options(parser)
    add_sampling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write the answer; 130 when Ctrl-C cut it short, 1 when ``--compare`` finds a difference.

    Raises:
        BlockdraftError: Flags, prompt or model cannot be honoured.
    """
    if args.raw and args.system_prompt is not None:
        raise ConfigError("--system-prompt needs the chat template that --raw leaves out")
    if args.compare and args.spec_type == "none":
        raise ConfigError("--compare needs drafts, which --spec-type none turns off")
    text = _read_prompt(args)
    params, limit, drafting = sampling_params(args), max_tokens(args), draft_config(args)
    session = load_session(args, drafting)
    prompt = _with_system(session, text, args)
    options: dict[str, Any] = {"max_tokens": limit, "stop": args.stop, "raw": args.raw or None}
    show = _shower(args)
    if args.compare:
        return compare(session, prompt, show, params=params, as_json=args.json, **options)
    stream = session.stream(prompt, params=params, **options)
    was_interrupted = show(stream)
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
        if text in NAMED_MODELS and args.model == DEFAULT_MODEL:
            raise ConfigError(f"the prompt is the model {text}: give a model with -m {text}")
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


def _shower(args: argparse.Namespace) -> Callable[[Stream], bool]:
    """What reads a stream to its end, prints its text as it comes and tells of Ctrl-C."""
    in_colour = args.show_draft and not args.json
    if in_colour:
        reason = why_no_colour(sys.stdout)
        if reason is not None:
            print(f"--show-draft shows no colours: {reason}", file=sys.stderr)
        in_colour = reason is None
    paint = painter(in_colour=in_colour)
    return partial(_show, paint=None if args.json else paint)


def _show(stream: Stream, *, paint: Callable[[TextChunk], str] | None) -> bool:
    """Read the stream to its end and print its text; whether Ctrl-C cut it short."""
    was_interrupted = False
    ends_line = False
    try:
        with stream:
            for chunk in stream:
                if chunk.text and paint is not None:
                    print(paint(chunk), end="", flush=True)
                    ends_line = chunk.text.endswith("\n")
    except KeyboardInterrupt:
        was_interrupted = True
    if paint is not None and not ends_line:
        print(flush=True)
    return was_interrupted
