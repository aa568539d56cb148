"""A short run of ``scripts/soak``, so that it keeps working."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "soak"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_nothing_is_left_of_mixed_requests() -> None:
    flags = ["--requests", "300", "--max-growth", "64", "--", "-t", "1"]
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "answers_running 0, answers_waiting 0" in found.stdout
