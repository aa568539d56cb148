import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import metadata, requires, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, object] = tomllib.load(file)["project"]
    return table


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s;<>=!~\[]", line)[0].replace("_", "-") for line in requirements}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return dict(pairs)


def test_plain_install_needs_no_torch() -> None:
    plain = [line for line in requires("blockdraft") or [] if "extra ==" not in line]
    assert names(plain) == {"huggingface-hub", "jinja2", "numpy", "safetensors", "tokenizers"}


def test_licence_is_in_the_metadata() -> None:
    assert metadata("blockdraft")["License-Expression"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_installed_version_is_the_projects() -> None:
    assert version("blockdraft") == project()["version"]


def test_changelog_begins_with_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    match = re.search(r"^## \[(\d[^\]]*)\]", text, re.MULTILINE)
    assert match is not None
    assert match[1] == project()["version"]


def test_developer_tools_are_pinned_as_in_the_constraints() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    pinned = constraints()
    for line in extras["dev"] + extras["oracles"]:
        name, _, wanted = line.partition("==")
        assert pinned[name] == wanted


def test_importing_the_library_imports_no_oracle() -> None:
    oracles = {"dflash", "gguf", "llama_cpp", "scipy", "torch", "transformers", "xllamacpp"}
    oracles |= {"fastapi", "llguidance", "matplotlib", "pydantic"}
    program = (
        "import sys, blockdraft; blockdraft.Session; blockdraft.SamplingParams;"
        f" print(*({oracles!r} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == []


def test_readme_is_short_and_runs_soon() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    first = next(i for i, line in enumerate(lines, 1) if line.startswith("make demo"))
    assert first < 20


def test_cmake_refuses_other_machines_by_name(tmp_path: Path) -> None:
    cmake = pytest.importorskip("cmake", reason="needs the cmake package")
    command = [
        str(Path(cmake.CMAKE_BIN_DIR) / "cmake"),
        f"-S{ROOT}",
        f"-B{tmp_path}",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=riscv64",
    ]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode != 0
    assert "this is Linux on riscv64" in " ".join(run.stderr.split())


def test_wheels_bring_shipped_drafters_and_the_web_page(tmp_path: Path) -> None:
    """The package's files alone, with a drafter, through the real settings; nothing is compiled."""
    pytest.importorskip("scikit_build_core", reason="needs the build tools")
    for name in ("pyproject.toml", ".gitignore", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    package = tmp_path / "src" / "blockdraft"
    for folder in ("assets", "serve"):
        shutil.copytree(ROOT / "src" / "blockdraft" / folder, package / folder)
    (package / "__init__.py").touch()
    (package / "assets" / "some.gguf").write_bytes(b"GGUF")
    program = (
        "from scikit_build_core.build import build_wheel;"
        f"print(build_wheel({str(tmp_path / 'dist')!r}, {{'wheel.cmake': 'false'}}))"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    suffixes = (package / "assets").glob("*.suffixes")
    page = (package / "serve" / "page").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert {
            "blockdraft/assets/index.json",
            "blockdraft/assets/index.py",
            "blockdraft/assets/some.gguf",
            "blockdraft/serve/page/index.html",
            *(f"blockdraft/assets/{path.name}" for path in suffixes),
            *(f"blockdraft/serve/page/{path.name}" for path in page),
        } <= set(archive.namelist())
