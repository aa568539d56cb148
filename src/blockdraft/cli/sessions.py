"""From the flags of a command line to a loaded session, and what is shown after an answer."""

import argparse
import sys

from blockdraft.cli.options import cache_dir
from blockdraft.cli.terminal import find_model
from blockdraft.config import DraftConfig
from blockdraft.session import Result, Session

__all__ = ["load_session", "show_stats"]


def load_session(
    args: argparse.Namespace, drafting: DraftConfig, *, max_cache_bytes: int | None = None
) -> Session:
    """The session that ``-m``, ``-c``, ``-t`` and ``--isa`` ask for, with the drafts asked for.

    Args:
        args: The flags.
        drafting: How tokens are drafted.
        max_cache_bytes: Budget of K/V memory; None is the session's own.

    Raises:
        BlockdraftError: The model cannot be found, read or run with these settings.
    """
    path = find_model(args.model)
    return Session.load(
        path,
        num_threads=args.threads,
        ctx_size=args.ctx_size or None,
        max_cache_bytes=max_cache_bytes,
        isa=args.isa,
        drafting=drafting,
        cache_dir=cache_dir(),
    )


def show_stats(result: Result) -> None:
    """Print seed, counts, times and gains of an answer on standard error, in one line."""
    timings = result.timings
    known = f" ({timings.cached_tokens} known)" if timings.cached_tokens else ""
    parts = [
        f"seed {result.seed}",
        f"prompt {timings.prompt_tokens} tokens{known} in {timings.prompt_s:.2f} s",
        f"answer {timings.predicted_tokens} tokens",
    ]
    if timings.tokens_per_s:
        parts.append(f"{timings.tokens_per_s:.1f} tokens/s")
    if result.stats is not None and result.stats.num_rounds:
        stats = result.stats
        parts += [
            f"tau {stats.mean_acceptance_length:.2f}",
            f"acceptance {stats.acceptance_rate:.0%}",
            f"{stats.num_rounds} rounds",
            f"B {stats.block_size}",
            f"K {stats.block_size - 1}",
        ]
    if timings.ttft_s:
        parts.append(f"first token after {timings.ttft_s:.2f} s")
    if result.finish_reason != "stop":
        parts.append({"length": "cut at the limit", "cancelled": "stopped"}[result.finish_reason])
    print(", ".join(parts), file=sys.stderr, flush=True)
