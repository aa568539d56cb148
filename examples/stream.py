"""Prints an answer while it is written: python examples/stream.py [MODEL]."""

import sys

from blockdraft import Session


def main(model: str = "smollm2-135m") -> None:
    """Stream the answer to one question; Ctrl-C stops it and keeps what was written."""
    session = Session.load(model)
    with session.stream("Why is the sky blue?", max_tokens=128, stop=["\n\n\n"]) as stream:
        try:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
        except KeyboardInterrupt:
            pass
    result = stream.result
    print(f"\nended by {result.finish_reason}; seed {result.seed} writes it again")


if __name__ == "__main__":
    main(*sys.argv[1:2])
