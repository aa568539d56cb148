"""Two processes under ``torchrun`` make the steps that one process makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blockdraft.train.checkpoint import load_checkpoint
from tests.tiny import write_tiny
from tests.tiny_corpus import write_counting_corpus

pytestmark = pytest.mark.slow

TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_two_processes_equal_one(tmp_path: Path) -> None:
    target = write_tiny(tmp_path / "tiny.gguf", "llama", layers=4)
    corpus = write_counting_corpus(tmp_path / "corpus", target)
    shape = ["--layers", "1", "--taps", "0,2", "--selector-rank", "4", "--selector-top-k", "3"]
    fit = ["-m", "blockdraft", "train", "fit", "-m", str(target), "--corpus", str(corpus)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    found = []
    for start in ([], TWO):
        output = tmp_path / f"run{len(start)}"
        flags = ["--steps", "4", "--draft-vocab", "32", "-t", "1", "-o", str(output)]
        command = [sys.executable, *start, *fit, *shape, *flags]
        subprocess.run(command, env=environment, check=True, timeout=240)
        found.append(load_checkpoint(output / "checkpoint.pt"))
    one, two = found
    assert one.progress.steps == two.progress.steps == 4
    assert one.progress.position == two.progress.position
    for name, values in one.parameters.items():
        torch.testing.assert_close(two.parameters[name], values, rtol=1e-3, atol=1e-5)
