"""Serve a model to clients of the OpenAI API, many at once."""

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path

from blockdraft.cli.options import (
    add_cache_option,
    add_draft_options,
    add_engine_options,
    add_model_option,
    add_sampling_options,
    draft_config,
    max_tokens,
    sampling_params,
)
from blockdraft.cli.parser import Parser, at_least
from blockdraft.cli.sessions import load_session
from blockdraft.errors import ConfigError
from blockdraft.hub import NAMED_MODELS

__all__ = ["add_arguments", "run"]

_KEY_VARIABLE = "BLOCKDRAFT_API_KEY"


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft serve``."""
    add_model_option(parser)
    parser.add_argument(
        "-a", "--alias", metavar="NAME", help="the model's name for clients (default: its own)"
    )
    add_engine_options(parser)
    parser.add_argument(
        "-np",
        "--parallel",
        type=at_least(1),
        default=8,
        metavar="N",
        help="answers written at once, as memory permits (default: %(default)s)",
    )
    parser.add_argument(
        "--queue",
        type=at_least(0),
        default=64,
        metavar="N",
        help="answers that may wait; more are refused with status 429 (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-mib",
        type=at_least(1),
        metavar="MIB",
        help="K/V memory of all answers (default: 2048, or one full context where that is more)",
    )
    add_cache_option(parser)
    _add_network_options(parser)
    add_draft_options(parser)
    add_sampling_options(parser)


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="listen on (default: %(default)s)"
    )
    group.add_argument(
        "--port", type=int, default=8080, metavar="N", help="0 takes a free one (default: 8080)"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what clients must send (default: the environment's {_KEY_VARIABLE}, if any)",
    )
    group.add_argument(
        "--no-api-key",
        action="store_true",
        help="let every machine that reaches --host in without a key",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use the server, or of any with '*'; may be repeated",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients reach the server; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, then let running answers end.

    Raises:
        BlockdraftError: Flags or model cannot be honoured, or the address is taken.
    """
    try:
        from blockdraft.serve import ServeSettings, serve
    except ImportError as error:
        raise ConfigError(
            f"serving needs the package {error.name}: pip install 'blockdraft[serve]'"
        ) from error
    settings = ServeSettings(
        model_id=args.alias or _own_name(args.model),
        host=args.host,
        port=args.port,
        api_key=_api_key(args),
        open_to_all=args.no_api_key,
        allowed_hosts=tuple(args.allowed_host),
        cors_origins=tuple(args.cors_origin),
        params=sampling_params(args),
        max_tokens=max_tokens(args),
        stop=tuple(args.stop),
        max_running=args.parallel,
        max_waiting=args.queue,
    )
    cache_bytes = None if args.cache_mib is None else args.cache_mib << 20
    session = load_session(args, draft_config(args), max_cache_bytes=cache_bytes)
    session.engine.keep_prefixes(args.cache_ram << 20)
    announce = partial(_announce, settings.model_id)
    _log_requests(verbose=args.verbose)
    serve(session, settings, on_ready=announce, access_log=args.verbose)
    return 0


def _log_requests(*, verbose: bool) -> None:
    """Show what uvicorn says as our own messages; a line for each request only with ``-v``."""
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = logging.getLogger("blockdraft").handlers
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False


def _announce(name: str, url: str) -> None:
    line = f"blockdraft: {name} at {url}/v1, described at {url}/docs, a page to chat at {url}"
    print(line, file=sys.stderr, flush=True)


def _api_key(args: argparse.Namespace) -> str | None:
    if args.no_api_key:
        if args.api_key is not None:
            raise ConfigError("--api-key and --no-api-key contradict each other")
        return None
    if args.api_key == "":
        raise ConfigError("--api-key is empty; --no-api-key opens the server to all")
    return args.api_key or os.environ.get(_KEY_VARIABLE) or None


def _own_name(model: str) -> str:
    """A known name or an ``hf:`` spec as it is, a file by its name."""
    return model if model in NAMED_MODELS or model.startswith("hf:") else Path(model).stem
