"""Target features of a corpus: the same in any company, and the same from the disk."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from blockdraft.bench.lock import working
from blockdraft.errors import ConfigError
from blockdraft.train.feature_cache import FeatureCache
from blockdraft.train.features import FeatureExtractor
from blockdraft.train.schedule import learning_rate, progress
from blockdraft.train.settings import Budget, Optimization
from tests.oracle import float_forward
from tests.tiny import write_tiny

SEQUENCES = [
    np.random.default_rng(n).integers(0, 299, n).astype(np.int32) for n in (3, 700, 41, 1, 400)
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("target") / "tiny.gguf", "llama", "F32", layers=3)


@pytest.fixture(scope="module")
def extractor(target: Path) -> FeatureExtractor:
    return FeatureExtractor(target, (0, 2), num_threads=1)


def test_features_are_those_of_the_sequence_alone(
    extractor: FeatureExtractor, target: Path
) -> None:
    before = extractor.num_tokens
    together = extractor.extract(SEQUENCES)
    assert extractor.num_tokens - before == sum(map(len, SEQUENCES))
    for token_ids, found in zip(SEQUENCES, together, strict=True):
        (alone,) = extractor.extract([token_ids])
        assert torch.equal(found, alone)
    _, expected = float_forward(target, SEQUENCES[2].tolist(), taps=(0, 2))
    torch.testing.assert_close(together[2], expected, rtol=0.02, atol=0.02)


@pytest.fixture
def open_cache(tmp_path: Path, extractor: FeatureExtractor) -> Callable[..., FeatureCache]:
    def build(max_bytes: int = 1 << 30, sha256: str = "x") -> FeatureCache:
        return FeatureCache(
            tmp_path / "cache",
            extractor,
            target_sha256=sha256,
            taps=(0, 2),
            hidden_size=64,
            max_bytes=max_bytes,
        )

    return build


def test_kept_features_are_the_computed_ones(
    open_cache: Callable[..., FeatureCache], extractor: FeatureExtractor
) -> None:
    cache = open_cache()
    first = cache.extract(SEQUENCES[:3])
    again = cache.extract([SEQUENCES[3], *SEQUENCES[:3]])[1:]
    cache.close()
    cache = open_cache()
    reopened = cache.extract(SEQUENCES[:3])
    assert (cache.hits, cache.misses) == (3, 0)
    cache.close()
    exact = extractor.extract(SEQUENCES[:3])
    for a, b, c, d in zip(first, again, reopened, exact, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
        torch.testing.assert_close(a, d, rtol=1e-3, atol=1e-5)


def test_a_full_cache_keeps_no_more(open_cache: Callable[..., FeatureCache]) -> None:
    cache = open_cache(max_bytes=50 * 256)
    for _ in range(2):
        cache.extract(SEQUENCES[:3])
    assert (cache.hits, cache.misses) == (2, 4)
    cache.close()


def test_half_written_features_are_computed_anew(
    open_cache: Callable[..., FeatureCache], tmp_path: Path
) -> None:
    cache = open_cache()
    first = cache.extract(SEQUENCES[:3])
    cache.close()
    index = tmp_path / "cache" / "index.bin"
    index.write_bytes(index.read_bytes()[:-5])
    data = tmp_path / "cache" / "features.f16"
    data.write_bytes(data.read_bytes()[:-7])
    cache = open_cache()
    found = cache.extract(SEQUENCES[:3])
    assert (cache.hits, cache.misses) == (2, 1)
    cache.close()
    assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


def test_a_cache_has_one_target_and_one_user(open_cache: Callable[..., FeatureCache]) -> None:
    cache = open_cache()
    with pytest.raises(ConfigError, match="another process uses"):
        open_cache()
    cache.close()
    with pytest.raises(ConfigError, match="has target_sha256 x, not y"):
        open_cache(sha256="y")


# --- the machine is measured or used


_MEASURE = """
import sys, time
from pathlib import Path
from blockdraft.bench.lock import measuring
log = Path(sys.argv[2])
with measuring(Path(sys.argv[1])):
    log.write_text("measure,")
    time.sleep(0.2)
    log.write_text("measure,measured")
"""


def test_work_pauses_while_the_machine_is_measured(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "locks"), str(log)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    end = time.monotonic() + 30
    steps = 0
    with subprocess.Popen(command, env=environment) as process:
        # Steps follow each other without a gap, and the measurement still gets its turn.
        while process.poll() is None and time.monotonic() < end:
            with working(tmp_path / "locks"):
                during = log.read_text()
                assert during != "measure,"
                time.sleep(0.01)
                assert log.read_text() == during
                steps += 1
    assert log.read_text() == "measure,measured"
    assert steps > 1


# --- the learning rate


def test_rates_rise_and_fall() -> None:
    settings = Optimization(learning_rate=1.0, warmup=0.1, final_share=0.05)
    rates = [learning_rate(settings, share / 100) for share in range(101)]
    assert 0 < rates[0] < 0.05
    assert all(a < b for a, b in pairwise(rates[1:11]))
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[10] == pytest.approx(1)
    assert rates[55] == pytest.approx(0.525)
    assert learning_rate(settings, 1.5) == pytest.approx(0.05)


def test_budgets_measure_what_they_name() -> None:
    def share(budget: Budget) -> float:
        return progress(budget, seconds=900.0, steps=30, epochs=1.5)

    assert share(Budget(hours=1)) == 0.25
    assert share(Budget(steps=40)) == 0.75
    assert share(Budget(epochs=6)) == 0.25
