"""Measure how well a model predicts a text, by llama.cpp's convention.

The text is cut into chunks of the context size; in each the first token gives way to the
beginning-of-text token where the model has one, and the second half is scored.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from blockdraft.cli.options import add_engine_options, add_model_option, decode_text
from blockdraft.cli.parser import Parser
from blockdraft.cli.sessions import load_session
from blockdraft.config import DraftConfig
from blockdraft.errors import ConfigError
from blockdraft.session import Session

__all__ = ["add_arguments", "run"]

_CHUNK_TOKENS = 512
_MIN_CHUNK_TOKENS = 4


def add_arguments(parser: Parser) -> None:
    """Add the flags of ``blockdraft perplexity``."""
    parser.add_argument("-f", "--file", required=True, metavar="TEXT", help="the text to predict")
    add_model_option(parser)
    add_engine_options(parser, default_ctx_size=_CHUNK_TOKENS)


def run(args: argparse.Namespace) -> int:
    """Print the perplexity after every chunk on standard error and the last on standard output.

    Raises:
        BlockdraftError: The text is too short for two chunks, or the model cannot be run.
    """
    path = Path(args.file)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise ConfigError(f"the text {args.file} {what}")
    if 0 < args.ctx_size < _MIN_CHUNK_TOKENS:
        raise ConfigError(f"--ctx-size is {args.ctx_size}; it must be {_MIN_CHUNK_TOKENS} or more")
    text = decode_text(path.read_bytes(), args.file)
    session = load_session(args, DraftConfig(spec_type="none"))
    size = session.engine.context_length
    token_ids = session.tokenizer.encode(text, add_special=True, parse_special=False)
    num_chunks = len(token_ids) // size
    if num_chunks < 2:
        raise ConfigError(
            f"{args.file} has {len(token_ids)} tokens; two chunks of {size} need {2 * size}"
        )
    losses: list[float] = []
    for index, chunk_losses in enumerate(_score(session, token_ids, size), 1):
        losses += chunk_losses
        perplexity, error = _estimate(losses)
        print(f"chunk {index} of {num_chunks}: {perplexity:.4f}", file=sys.stderr, flush=True)
    print(f"perplexity {perplexity:.4f} +/- {error:.4f} over {len(losses)} tokens")
    return 0


def _score(session: Session, token_ids: Sequence[int], size: int) -> Iterator[list[float]]:
    """Negative log-probabilities of the scored half of every whole chunk."""
    bos = session.tokenizer.bos_id
    begins_with_bos = bos is not None and token_ids[0] == bos
    for start in range(0, len(token_ids) - size + 1, size):
        chunk = list(token_ids[start : start + size])
        if begins_with_bos and bos is not None:
            chunk[0] = bos
        yield [-float(value) for value in session.engine.score(chunk)[size // 2 :]]


def _estimate(losses: Sequence[float]) -> tuple[float, float]:
    """Perplexity and its standard error, by the spread of the losses."""
    mean = math.fsum(losses) / len(losses)
    variance = math.fsum((loss - mean) ** 2 for loss in losses) / len(losses)
    perplexity = math.exp(mean)
    return perplexity, perplexity * math.sqrt(variance / max(len(losses) - 1, 1))
