"""Our tokenizer against llama.cpp's, on the same files and the same strings."""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

from blockdraft.tokenizer import Tokenizer
from blockdraft.tokenizer.compiled import compile_vocabulary
from blockdraft.tokenizer.pretokenizers import pretokenizer_names
from blockdraft.tokenizer.vocabulary import read_vocabulary
from blockdraft.weights.gguf import GGUFFile
from tests.parity.llama_vocab import LlamaVocab
from tests.parity.texts import varied_texts

pytestmark = pytest.mark.model

NUM_TEXTS = 2000
# Marks and symbols that the published rule of DeepSeek's tokenizers puts with CJK characters.
# llama.cpp takes those of them that are spaces for spaces first.
WIDE_SPACES = frozenset("\u1680\u2028\u2029\u202f\u205f\u3000").union(
    map(chr, range(0x2000, 0x200B))
)


@pytest.fixture(scope="module", params=["smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m"])
def pair(
    request: pytest.FixtureRequest,
    model_path: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Tokenizer, LlamaVocab]]:
    path = model_path(request.param)
    cache = tmp_path_factory.mktemp("tokenizers")
    with GGUFFile.open(path) as file:
        # The second one comes out of the cache, as it does in use.
        for _ in range(2):
            tokenizer = Tokenizer.from_gguf(file, cache_dir=cache)
    with LlamaVocab(path) as oracle:
        yield tokenizer, oracle


@pytest.mark.parametrize("parse_special", [False, True])
def test_ids_are_equal(pair: tuple[Tokenizer, LlamaVocab], parse_special: bool) -> None:
    tokenizer, oracle = pair
    texts = varied_texts(NUM_TEXTS, seed=1)
    assert len(set(texts)) == NUM_TEXTS
    for text in texts:
        ours = tokenizer.encode(text, add_special=True, parse_special=parse_special)
        theirs = oracle.encode(text, add_special=True, parse_special=parse_special)
        assert ours == theirs, repr(text)


def test_ids_without_special_tokens_are_equal(pair: tuple[Tokenizer, LlamaVocab]) -> None:
    tokenizer, oracle = pair
    for text in varied_texts(300, seed=2):
        ours = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ours == oracle.encode(text, add_special=False, parse_special=False), repr(text)


def test_the_bytes_of_every_token_are_equal(pair: tuple[Tokenizer, LlamaVocab]) -> None:
    tokenizer, oracle = pair
    for token_id in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token_id)
        assert data == oracle.token_bytes(token_id, special=True), token_id
        shown = oracle.token_bytes(token_id, special=False).decode("utf-8", "replace")
        assert tokenizer.decode([token_id]) == shown, token_id


def test_special_tokens_are_equal(pair: tuple[Tokenizer, LlamaVocab]) -> None:
    tokenizer, oracle = pair
    assert tokenizer.bos_id == oracle.bos_id
    assert tokenizer.eos_ids == oracle.end_ids


def test_streams_add_up(pair: tuple[Tokenizer, LlamaVocab]) -> None:
    tokenizer, _ = pair
    for text in varied_texts(400, seed=3):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        decoder = tokenizer.stream_decoder()
        parts = [decoder.feed(idx) for idx in ids]
        assert "".join([*parts, decoder.flush()]) == tokenizer.decode(ids)


def _vocab_file(path: Path, pre: str, texts: list[str], merges: list[str]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_types([3] + [1] * (len(texts) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.fixture(scope="module")
def some_merges(model_path: Callable[[str], Path]) -> tuple[list[str], list[str]]:
    """The commonest tokens of a byte-level vocabulary that has them all, and their merges."""
    with GGUFFile.open(model_path("qwen2.5-coder-0.5b")) as file:
        texts = ["<|endoftext|>", *file.get_list("tokenizer.ggml.tokens")[:20_000]]
        known = set(texts)
        lines = file.get_list("tokenizer.ggml.merges")[:20_000]
    return texts, [
        line for line in lines if known.issuperset([*line.split(), line.replace(" ", "")])
    ]


@pytest.mark.parametrize("pre", pretokenizer_names())
def test_every_pretokenizer_cuts_as_theirs(
    pre: str, some_merges: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    texts, merges = some_merges
    path = tmp_path / "vocab.gguf"
    _vocab_file(path, pre, texts, merges)
    with GGUFFile.open(path) as file:
        tokenizer = Tokenizer(compile_vocabulary(read_vocabulary(file.metadata)))
    with LlamaVocab(path) as oracle:
        for text in varied_texts(400, seed=4):
            if pre.startswith("deepseek") and not WIDE_SPACES.isdisjoint(text):
                continue
            ours = tokenizer.encode(text, add_special=True, parse_special=True)
            assert ours == oracle.encode(text, add_special=True, parse_special=True), repr(text)
