"""What a person sees on the terminal besides the answer: progress, notices, log lines.

Everything goes to standard error, so that standard output holds only what was asked for.
"""

import logging
import sys
import time
from pathlib import Path

from blockdraft import hub
from blockdraft.cli.options import cache_dir

__all__ = ["TerminalProgress", "configure_logging", "find_model"]

_REDRAW_S = 0.1


class TerminalProgress:
    """Progress of a download: one line redrawn on a terminal, one line per step elsewhere."""

    def __init__(self) -> None:
        self._step = ""
        self._drawn_s = 0.0
        self._is_terminal = sys.stderr.isatty()

    def notice(self, message: str) -> None:
        """Show one line."""
        self.finish()
        print(f"blockdraft: {message}", file=sys.stderr, flush=True)

    def update(self, step: str, done_bytes: int, total_bytes: int) -> None:
        """Show how far ``step`` is."""
        is_new = step != self._step
        if not self._is_terminal:
            if is_new:
                print(f"blockdraft: {step}", file=sys.stderr, flush=True)
            self._step = step
            return
        now = time.monotonic()
        if not is_new and now < self._drawn_s + _REDRAW_S and done_bytes < total_bytes:
            return
        share = 100 * done_bytes // max(total_bytes, 1)
        amount = f"{done_bytes / 1e6:.0f} of {total_bytes / 1e6:.0f} MB ({share} %)"
        print(f"\r\x1b[K{step}: {amount}", end="", file=sys.stderr, flush=True)
        self._step, self._drawn_s = step, now

    def finish(self) -> None:
        """Leave the redrawn line, if there is one."""
        if self._step and self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._step = ""


def find_model(spec: str) -> Path:
    """The local file of a name, path or ``hf:`` spec; downloads show their progress.

    Raises:
        ConfigError: ``spec`` is none of the three.
        DownloadError: No source could give the file.
    """
    progress = TerminalProgress()
    try:
        return hub.resolve(spec, progress=progress, cache_dir=cache_dir())
    finally:
        progress.finish()


class _LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"blockdraft: {record.levelname.lower()}: {record.getMessage()}"


def configure_logging(*, verbose: bool) -> None:
    """Show our warnings on standard error, and with ``verbose`` also what we note on the way."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogFormatter())
    logger = logging.getLogger("blockdraft")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
