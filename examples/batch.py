"""Answers many prompts in one run: python examples/batch.py [MODEL]."""

import sys
import time

from blockdraft import SamplingParams, Session


def main(model: str = "smollm2-135m") -> None:
    """Run eight prompts together; each gets the tokens that it would get alone."""
    session = Session.load(model)
    animals = ("cat", "crow", "eel", "fox", "gnu", "hare", "ibis", "jay")
    prompts = [f"Write one sentence about a {animal}." for animal in animals]
    start = time.perf_counter()
    results = session.batch(prompts, params=SamplingParams(temperature=0, seed=0), max_tokens=48)
    elapsed_s = time.perf_counter() - start
    for prompt, result in zip(prompts, results, strict=True):
        print(f"{prompt}\n  {result.text.strip()}")
    num_tokens = sum(len(result.token_ids) for result in results)
    print(f"\n{num_tokens} tokens in {elapsed_s:.1f} s: {num_tokens / elapsed_s:.0f} tokens/s")


if __name__ == "__main__":
    main(*sys.argv[1:2])
