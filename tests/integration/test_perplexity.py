"""``blockdraft perplexity`` against llama.cpp over the same chunks of a 20,480-token text."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockdraft.cli import main
from blockdraft.tokenizer import Tokenizer
from blockdraft.weights.gguf import GGUFFile
from tests.parity.llama_context import LlamaContext
from tests.parity.stdlib_text import stdlib_text

CHUNK_TOKENS = 512
NUM_CHUNKS = 40
# Cut text does not split into the same tokens again at the cut.
SPARE_TOKENS = 100


def llama_perplexity(path: Path, token_ids: list[int], bos_id: int | None) -> float:
    """By the rule of llama.cpp's own tool: the second half of every whole chunk is scored."""
    half = CHUNK_TOKENS // 2
    rows = range(half, CHUNK_TOKENS - 1)
    losses: list[float] = []
    with LlamaContext(path, max_tokens=CHUNK_TOKENS) as context:
        for start in range(0, NUM_CHUNKS * CHUNK_TOKENS, CHUNK_TOKENS):
            chunk = token_ids[start : start + CHUNK_TOKENS]
            if token_ids[0] == bos_id:
                chunk[0] = token_ids[0]
            for target, logits in zip(chunk[half + 1 :], context.logits(chunk, rows), strict=True):
                wide = logits.astype(np.float64)
                peak = wide.max()
                losses.append(peak + np.log(np.exp(wide - peak).sum()) - wide[target])
    return float(np.exp(np.mean(losses)))


# llama.cpp's ready-made wheel takes minutes for each text.
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"])
def test_perplexity_is_within_half_a_percent_of_llama_cpp(
    name: str,
    model_path: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = model_path(name)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    length = NUM_CHUNKS * CHUNK_TOKENS + SPARE_TOKENS
    ids = tokenizer.encode(stdlib_text(120_000), add_special=False, parse_special=False)[:length]
    text = tmp_path / "text.txt"
    text.write_text(tokenizer.decode(ids), encoding="utf-8")
    token_ids = tokenizer.encode(text.read_text("utf-8"), add_special=True, parse_special=False)
    assert main(["perplexity", "-m", str(path), "-f", str(text), "-t", "2"]) == 0
    output = capsys.readouterr()
    assert f"chunk {NUM_CHUNKS} of {NUM_CHUNKS}" in output.err
    found = re.search(r"perplexity (\S+) ", output.out)
    assert found
    ours, theirs = float(found[1]), llama_perplexity(path, token_ids, tokenizer.bos_id)
    assert ours == pytest.approx(theirs, rel=0.005)
