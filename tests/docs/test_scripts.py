"""The scripts of developers start: nothing else imports them, so nothing else sees a stale name."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted(
    path
    for path in (Path(__file__).parents[2] / "scripts").iterdir()
    if path.is_file() and "python" in path.read_text(encoding="utf-8").splitlines()[0]
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_tells_its_usage(path: Path) -> None:
    command = [sys.executable, str(path), "--help"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"usage: {path.name}")


def test_a_few_damaged_files_go_through_the_fuzzer() -> None:
    """`make fuzz` takes a build of its own and minutes; this says that it would begin."""
    script = next(path for path in SCRIPTS if path.name == "fuzz_gguf")
    command = [sys.executable, str(script), "--count", "3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
