"""Real models: drafting is invisible, byte for byte.

A slice, prompt by prompt, runs with the tests on real models. The whole (all prompts, temperatures,
drafters and blocks) drafts for prompts together and compares with each alone. It is marked slow:
``scripts/test tests/integration/test_speculation_models.py -m "model and slow"``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blockdraft.bench.prompts import BUILTIN, SpeedPrompt, load_prompts
from blockdraft.config import ModelConfig, SamplingParams
from blockdraft.engine import Request
from blockdraft.models.drafter import load_drafter
from blockdraft.models.target import TargetModel, load_target
from blockdraft.session.prompt import encode_prompt
from blockdraft.speculative import DFlashDrafter, Drafter, NgramDrafter
from blockdraft.tokenizer import Tokenizer
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.names import read_model_config
from tests.drafters import DRAFTERS, ScriptedDrafter
from tests.rounds import History, assert_identical, histories
from tests.tiny_drafter import TinyDrafter

ModelPath = Callable[[str], Path]

NAMES = ("smollm2-135m", "qwen2.5-coder-0.5b")
TEMPERATURES = (0.0, 0.7, 1.0)
BLOCKS = (1, 3, 7, 15)
BENCH_PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "bench_quick.jsonl"
NUM_PROMPTS, MAX_CHARACTERS = 40, 1500
NUM_TOKENS = 48
TOGETHER = 8  # prompts of one batch
HASH_EVERY = 8  # the K/V of a long prompt takes as long to hash as a pass
SLICE = load_prompts(BUILTIN)[::7]
SLICE_TOKENS = 32
NETWORK = "network"  # random weights
DRAFTER_NAMES = ["oracle", "adversary", "mixture", "random-tree", NETWORK]


def _prompts() -> list[SpeedPrompt]:
    """Short prompts of the quick benchmark, every other one; our own set where it is missing."""
    if not BENCH_PROMPTS.exists():
        return list(load_prompts(BUILTIN))
    prompts = load_prompts(str(BENCH_PROMPTS))
    return [prompt for prompt in prompts if len(prompt.prompt) < MAX_CHARACTERS][:NUM_PROMPTS]


def _network(target: ModelConfig) -> TinyDrafter:
    """A small random drafter for a target."""
    return TinyDrafter(
        kinds=("full",),
        hidden=target.hidden_size,
        ffn=64,
        heads=2,
        kv_heads=1,
        head_dim=64,
        vocab_size=target.vocab_size,
        block_size=16,
        mask_token_id=target.vocab_size - 1,
        target_layer_ids=_taps(target),
        num_target_layers=target.num_layers,
    )


def _taps(target: ModelConfig) -> tuple[int, ...]:
    return (1, target.num_layers - 3)


class Model:
    """A loaded model that writes prompts as requests."""

    def __init__(self, path: Path, folder: Path) -> None:
        with GGUFFile.open(path) as file:
            self.tokenizer = Tokenizer.from_gguf(file)
            config = read_model_config(file)
            self.target: TargetModel = load_target(file, num_threads=2, taps=_taps(config))
        with DrafterFile.open(_network(config).write_folder(folder)) as drafter:
            self.network = load_drafter(drafter, self.target)

    def request(self, prompt: str, temperature: float, num_tokens: int) -> Request:
        """A request under the default truncation; its seed follows from the prompt."""
        params = SamplingParams(temperature=temperature, seed=len(prompt), repeat_penalty=1.1)
        token_ids = tuple(encode_prompt(self.tokenizer, prompt, raw=None))
        return Request(token_ids, params, num_tokens, self.tokenizer.eos_ids)

    def drafter(self, name: str, num_drafts: int, plain: Sequence[History]) -> Drafter:
        if name == "ngram":
            return NgramDrafter(num_drafts)
        if name == NETWORK:
            return DFlashDrafter(self.network, num_drafts)
        vocab_size = self.target.config.vocab_size
        answers = [
            [*one.token_ids, *one.token_ids[:1]] for one in plain
        ]  # what follows the end, too
        return ScriptedDrafter(DRAFTERS[name], num_drafts, answers, vocab_size=vocab_size)

    def histories(
        self, requests: Sequence[Request], drafter: Drafter | None = None
    ) -> list[History]:
        return histories(self.target, requests, drafter, hash_every=HASH_EVERY)

    def check(
        self, name: str, num_drafts: int, requests: Sequence[Request], plain: Sequence[History]
    ) -> None:
        """The requests, run together with drafts, see what each saw alone and without."""
        found = self.histories(requests, self.drafter(name, num_drafts, plain))
        for one, alone in zip(found, plain, strict=True):
            assert_identical(one, alone)


@pytest.fixture(scope="module")
def models(
    model_path: ModelPath, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Model]:
    loaded: dict[str, Model] = {}

    def load(name: str) -> Model:
        if name not in loaded:
            loaded.clear()  # one at a time in memory
            loaded[name] = Model(model_path(name), tmp_path_factory.mktemp(name))
        return loaded[name]

    return load


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("prompt", SLICE, ids=lambda prompt: prompt.id)
def test_a_slice(models: Callable[[str], Model], prompt: SpeedPrompt, temperature: float) -> None:
    model = models("smollm2-135m")
    request = model.request(prompt.prompt, temperature, SLICE_TOKENS)
    plain = model.histories([request])
    for name, num_drafts in (("oracle", 7), ("random-tree", 15), ("ngram", 7), (NETWORK, 7)):
        model.check(name, num_drafts, [request], plain)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("first", range(0, NUM_PROMPTS, TOGETHER))
@pytest.mark.parametrize("name", NAMES)
def test_the_whole(
    models: Callable[[str], Model], name: str, first: int, temperature: float
) -> None:
    model = models(name)
    prompts = _prompts()[first : first + TOGETHER]
    requests = [model.request(one.prompt, temperature, NUM_TOKENS) for one in prompts]
    plain = [model.histories([request])[0] for request in requests]
    for drafter_name in DRAFTER_NAMES:
        for num_drafts in BLOCKS:
            model.check(drafter_name, num_drafts, requests, plain)
