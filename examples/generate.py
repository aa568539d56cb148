"""Asks one question and prints the answer with its speed: python examples/generate.py [MODEL]."""

import sys

from blockdraft import SamplingParams, Session


def main(model: str = "smollm2-135m") -> None:
    """Answer one question with ``model``: a known name, a path or hf:ORG/REPO[:FILE]."""
    session = Session.load(model)
    result = session.generate(
        "Write a Python function that reverses a string.",
        params=SamplingParams(temperature=0.7, seed=1),
        max_tokens=128,
    )
    print(result.text)
    timings = result.timings
    print(f"\n{timings.predicted_tokens} tokens, {timings.tokens_per_s:.1f} tokens/s")


if __name__ == "__main__":
    main(*sys.argv[1:2])
