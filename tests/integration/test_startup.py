"""What makes the start quick and the memory small: what is imported, opened, cached and kept.

Times are not tested; ``blockdraft bench startup`` measures them.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from blockdraft.bench.startup import PROMPT, STARTUP_LIMITS
from blockdraft.cli import main
from blockdraft.kv_cache import PAGE_POSITIONS, KVLayout
from blockdraft.models.target import load_target
from blockdraft.session import Session
from blockdraft.weights.gguf import GGUFFile
from blockdraft.weights.header import Header, read_header
from blockdraft.weights.names import read_model_config
from blockdraft.weights.packed import PackedWeights, packed_bytes

TinyModel = Callable[..., Path]
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "gemma3-270m")
HEAVY = ("huggingface_hub", "jinja2", "numpy", "tokenizers", "torch")
MAX_INSTALLED_BYTES = 300_000_000


def python(program: str, *arguments: str) -> list[str]:
    """Lines that ``program`` writes to standard error, in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return run.stderr.splitlines()


@pytest.mark.parametrize(
    "statement",
    ["import blockdraft", "from blockdraft.cli import main; main(['--help'])"],
    ids=["library", "help"],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    shown = f"print(*({set(HEAVY)!r} & set(sys.modules)), file=sys.stderr)"
    assert python(f"import sys; {statement}; {shown}") == [""]


def test_importing_the_library_imports_none_of_its_modules() -> None:
    shown = "print(*(name for name in sys.modules if name.startswith('blockdraft.')))"
    assert python(f"import sys; sys.stdout = sys.stderr; import blockdraft; {shown}") == [""]


def test_a_command_starts_no_thread_for_linear_algebra() -> None:
    program = (
        "import os, sys; from blockdraft.cli import main; main(['run', '--help'])\n"
        "print('numpy' in sys.modules, len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    assert python(program) == ["True 1"]


def test_a_session_reads_the_header_once(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(descriptor: int, size: int, path: Path) -> Header:
        read.append(path)
        return read_header(descriptor, size, path)

    monkeypatch.setattr("blockdraft.weights.gguf.read_header", counted)
    path = tiny_model("llama")
    Session.load(path, num_threads=1, cache_dir=tmp_path)
    assert read == [path]


def test_a_target_leaves_an_open_file_open(tiny_model: TinyModel) -> None:
    with GGUFFile.open(tiny_model("llama")) as file:
        target = load_target(file, num_threads=1)
        assert file.read("output_norm.weight").nbytes == 4 * target.config.hidden_size


def test_the_tokenizer_is_cached_below_the_given_folder(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    Session.load(tiny_model("llama"), num_threads=1, cache_dir=tmp_path)
    assert len(list(tmp_path.glob("tokenizers/*.tokenizer"))) == 1


def test_the_command_caches_where_the_environment_says(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDRAFT_CACHE", str(tmp_path))
    assert main(["run", "hi", "--raw", "-m", str(tiny_model("llama")), "-n", "1", "-t", "1"]) == 0
    assert len(list(tmp_path.glob("tokenizers/*.tokenizer"))) == 1


def requirements(name: str, found: set[str]) -> set[str]:
    """Names of everything that ``name`` needs, extras left out, itself included."""
    found.add(name)
    try:
        lines: Sequence[str] = distribution(name).requires or ()
    except PackageNotFoundError:  # needed on another platform only
        return found
    for line in lines:
        needed = re.split(r"[\s;<>=!~\[(]", line)[0].replace("_", "-").lower()
        if "extra ==" not in line and needed not in found:
            requirements(needed, found)
    return found


def test_what_is_installed_is_small_and_without_torch() -> None:
    names = requirements("blockdraft", set())
    assert {"numpy", "tokenizers"} <= names
    assert "torch" not in names
    total = 0
    for name in names:
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue
        paths = (Path(str(file.locate())) for file in files)
        total += sum(path.stat().st_size for path in paths if path.is_file())
    assert total < MAX_INSTALLED_BYTES


@pytest.mark.parametrize("tensor_type", ["Q4_1", "Q6_K", "BF16"])
def test_packed_size_is_told_without_packing(tiny_model: TinyModel, tensor_type: str) -> None:
    with GGUFFile.open(tiny_model("qwen2", tensor_type)) as file:
        weights = PackedWeights(file)
        weights.load_all(name for name, info in file.tensors.items() if len(info.shape) == 2)
        vectors = [name for name, info in file.tensors.items() if len(info.shape) == 1]
        vector_bytes = sum(weights.vector(name).nbytes for name in vectors)
        assert vectors
        assert packed_bytes(file) == weights.nbytes + vector_bytes


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_packed_weights_are_no_larger_than_the_files(
    model_path: Callable[[str], Path], name: str
) -> None:
    with GGUFFile.open(model_path(name)) as file:
        assert packed_bytes(file) <= 1.02 * file.tensor_bytes


# The peak of the program itself: what getrusage gives includes the process that started it.
RUN = """
import re, sys
from pathlib import Path
from blockdraft.cli import main
assert main(sys.argv[1:]) == 0
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
"""


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_peak_memory_is_within_the_budget(model_path: Callable[[str], Path], name: str) -> None:
    path = model_path(name)
    with GGUFFile.open(path) as file:
        config = read_model_config(file)
        layout = KVLayout.from_config(config)
        beside_bytes = STARTUP_LIMITS[config.architecture, config.hidden_size].beside_bytes
        kv_bytes = layout.max_bytes(PAGE_POSITIONS, rows_per_pass=PAGE_POSITIONS)
        budget = packed_bytes(file) + kv_bytes + beside_bytes
    peak_kb = python(RUN, "run", PROMPT, "-m", str(path), "-n", "8", "-t", "2")[-1]
    assert int(peak_kb) * 1024 <= budget
