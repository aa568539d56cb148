"""``blockdraft run --compare``: one prompt with drafts and without, in turn."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from blockdraft.bench.report import format_table
from blockdraft.config import SamplingParams
from blockdraft.session import Prompt, Result, Session, Stream

__all__ = ["compare"]

_DIFFERENT = 1
_INTERRUPTED = 130


def compare(
    session: Session,
    prompt: Prompt,
    show: Callable[[Stream], bool],
    *,
    params: SamplingParams,
    as_json: bool,
    **options: Any,
) -> int:
    """Write the answer with drafts, then the same silently without, and print a table of both.

    Args:
        session: A session that drafts.
        prompt: What to answer.
        show: Reads a stream to its end; True when Ctrl-C cut it short.
        params: How tokens are picked; the second answer takes the seed of the first.
        as_json: Print one JSON object instead of the table.
        options: The rest of ``Session.stream``.

    Returns:
        0 when the tokens are identical, 1 when they are not, 130 after Ctrl-C.
    """
    stream = session.stream(prompt, params=params, **options)
    if show(stream):
        return _INTERRUPTED
    drafted = stream.result
    params = replace(params, seed=drafted.seed)
    try:
        with session.stream(prompt, params=params, draft=False, **options) as stream:
            for _ in stream:
                pass
    except KeyboardInterrupt:
        return _INTERRUPTED
    plain = stream.result
    is_identical = _outcome(drafted) == _outcome(plain)
    speedup = drafted.timings.tokens_per_s / (plain.timings.tokens_per_s or 1.0)
    if as_json:
        report = {
            "plain": plain.to_dict(),
            "drafted": drafted.to_dict(),
            "speedup": speedup,
            "identical": is_identical,
        }
        print(json.dumps(report))
    else:
        verdict = "identical" if is_identical else "NOT identical"
        print(f"\n{_table(plain, drafted)}\nspeed-up {speedup:.2f}, tokens {verdict}", flush=True)
    return 0 if is_identical else _DIFFERENT


def _outcome(result: Result) -> tuple[tuple[int, ...], str, str]:
    return result.token_ids, result.text, result.finish_reason


def _table(plain: Result, drafted: Result) -> str:
    header = ["way", "tokens", "s", "tokens/s", "tau", "acceptance", "rounds"]
    rows = []
    for name, result in (("plain", plain), (drafted.stats and drafted.stats.type_name, drafted)):
        timings, stats = result.timings, result.stats
        row = [
            name or "drafted",
            f"{timings.predicted_tokens}",
            f"{timings.predicted_s:.2f}",
            f"{timings.tokens_per_s:.1f}",
        ]
        if stats is None:
            row += ["1.00", "-", f"{max(timings.predicted_tokens - 1, 0)}"]
        else:
            tau, rate = stats.mean_acceptance_length, stats.acceptance_rate
            row += [f"{tau:.2f}", f"{rate:.0%}", f"{stats.num_rounds}"]
        rows.append(row)
    return format_table(header, rows)
