"""A load on a server: questions that many clients ask at once, and the rate of the answers.

Knows the OpenAI API's chat, no servers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

from blockdraft.bench.prompts import SpeedPrompt
from blockdraft.errors import ConfigError

__all__ = ["Ask", "drive", "questions"]

_PATH = "/v1/chat/completions"

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(path, body) -> the JSON object of the answer."""


def questions(
    prompts: Sequence[SpeedPrompt], count: int, max_tokens: int, *, salt: str
) -> list[dict[str, Any]]:
    """``count`` bodies of requests, each behind a number of its own; categories come in turn."""
    mixed = _mixed(prompts)
    return [
        {
            "messages": [
                {
                    "role": "user",
                    "content": f"({salt}.{i}) {mixed[i % len(mixed)].prompt}",
                }
            ],
            "max_tokens": max_tokens,
            "temperature": 0,
            "seed": 0,
        }
        for i in range(count)
    ]


def _mixed(prompts: Sequence[SpeedPrompt]) -> list[SpeedPrompt]:
    """The first prompt of every category, then the second of every one, and so on."""
    names = dict.fromkeys(prompt.category for prompt in prompts)
    groups = [[prompt for prompt in prompts if prompt.category == name] for name in names]
    columns = zip_longest(*groups)
    return [prompt for column in columns for prompt in column if prompt is not None]


def drive(ask: Ask, bodies: Sequence[Mapping[str, Any]], streams: int) -> float:
    """Tokens per second of all answers together, ``streams`` at once.

    Raises:
        ConfigError: The server refuses a question, or no answer has a token.
    """
    with ThreadPoolExecutor(streams) as pool:
        start_s = time.perf_counter()
        answers = list(pool.map(lambda body: ask(_PATH, body), bodies))
        seconds = time.perf_counter() - start_s
    num_tokens: int = sum(answer["usage"]["completion_tokens"] for answer in answers)
    if not num_tokens:
        raise ConfigError("no answer has a token: there is no speed to measure")
    return num_tokens / seconds
