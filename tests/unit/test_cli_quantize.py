"""``blockdraft quantize`` and ``blockdraft export``: what they write, say and refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blockdraft.cli import main
from blockdraft.weights.drafter import DrafterFile
from blockdraft.weights.drafter_types import FILE_TYPES
from blockdraft.weights.drafter_values import DrafterValues
from blockdraft.weights.gguf import GGUFFile
from tests.tiny import VOCAB_SIZE
from tests.tiny_drafter import TinyDrafter

Output = pytest.CaptureFixture[str]

SHAPE = TinyDrafter(
    is_causal=False, vocab_size=VOCAB_SIZE, num_target_layers=4, target_layer_ids=(0, 2, 3)
)


@pytest.fixture
def target(tiny_model: Callable[..., Path]) -> str:
    return str(tiny_model("qwen3", layers=4))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(SHAPE.write_folder(tmp_path / "drafter"))


def complaint(arguments: list[str], capsys: Output) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1].removeprefix("blockdraft: error: ")


class TestQuantize:
    @pytest.mark.parametrize("type_name", FILE_TYPES)
    def test_a_folder_becomes_a_file(
        self, tmp_path: Path, folder: str, target: str, capsys: Output, type_name: str
    ) -> None:
        path = tmp_path / "d.gguf"
        assert main(["quantize", folder, "--type", type_name, "-o", str(path), "-m", target]) == 0
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        assert capsys.readouterr().out.startswith(f"{path}: {type_name}, {size}, from 0.4 MB")
        with DrafterFile.open(path) as file, GGUFFile.open(target) as model:
            assert file.config.target_layer_ids == (0, 2, 3)
            tokens = model.get_list("tokenizer.ggml.tokens")
        with GGUFFile.open(path) as written:
            assert written.get_list("tokenizer.ggml.tokens") == tokens

    def test_fallbacks_are_told(
        self, tmp_path: Path, folder: str, target: str, capsys: Output
    ) -> None:
        output = str(tmp_path / "d.gguf")
        main(["quantize", folder, "--type", "q4_k_m", "-o", output, "-m", target])
        notices = capsys.readouterr().err.splitlines()
        told = "blockdraft: 9 matrices: rows of 64 are no multiple of 256: Q5_0 instead of Q4_K"
        assert told in notices
        main(["quantize", folder, "--type", "q8_0", "-o", output, "-m", target])
        assert "instead of" not in capsys.readouterr().err

    def test_a_file_keeps_its_tokenizer(
        self, tmp_path: Path, folder: str, target: str, capsys: Output
    ) -> None:
        first, second, direct = (str(tmp_path / name) for name in ("a.gguf", "b.gguf", "c.gguf"))
        main(["quantize", folder, "--type", "f16", "-o", first, "-m", target])
        assert main(["quantize", first, "--type", "q4_0", "-o", second]) == 0
        main(["quantize", first, "--type", "q4_0", "-o", direct, "-m", target])
        with GGUFFile.open(second) as one, GGUFFile.open(direct) as other:
            assert one.metadata_digest() == other.metadata_digest()

    def test_a_file_may_be_its_own_output(self, tmp_path: Path, folder: str, target: str) -> None:
        path = str(tmp_path / "d.gguf")
        main(["quantize", folder, "--type", "f16", "-o", path, "-m", target])
        assert main(["quantize", path, "--type", "q8_0", "-o", path]) == 0
        with DrafterFile.open(path) as file:
            assert file.tensor("fc.weight").ggml_type == 8

    def test_what_is_refused(
        self, tmp_path: Path, folder: str, target: str, capsys: Output
    ) -> None:
        output = str(tmp_path / "d.gguf")

        def refusal(*arguments: str) -> str:
            return complaint(["quantize", *arguments], capsys)

        assert refusal(folder, "--type", "q8_0", "-o", output) == (
            f"{folder}: a folder has no tokenizer, which the file needs; give the model that the"
            " drafter was made for with -m"
        )
        assert refusal(folder, "--type", "q8_0", "-o", str(tmp_path), "-m", target).startswith(
            f"-o {tmp_path} is a directory"
        )
        missing = tmp_path / "missing" / "d.gguf"
        message = refusal(folder, "--type", "q8_0", "-o", str(missing), "-m", target)
        assert message == f"-o {missing}: there is no folder {missing.parent}"
        assert refusal(target, "--type", "q8_0", "-o", output).endswith(
            "the architecture is 'qwen3'; drafters are 'dflash'"
        )
        assert "invalid choice: 'q3_k'" in refusal(folder, "--type", "q3_k", "-o", output)
        assert not Path(output).exists()

    def test_codes_are_not_quantized_again(
        self, tmp_path: Path, folder: str, target: str, capsys: Output
    ) -> None:
        path = str(tmp_path / "d.gguf")
        main(["quantize", folder, "--type", "q8_0", "-o", path, "-m", target])
        before = Path(path).read_bytes()
        capsys.readouterr()
        message = complaint(["quantize", path, "--type", "q4_0", "-o", path], capsys)
        assert message.startswith(f"{path}: is quantized already (Q8_0); quantize the folder or")
        assert Path(path).read_bytes() == before

    def test_another_target_is_refused(
        self, tmp_path: Path, folder: str, tiny_model: Callable[..., Path], capsys: Output
    ) -> None:
        other = str(tiny_model("qwen3", layers=5))
        arguments = ["quantize", folder, "--type", "q8_0", "-o", str(tmp_path / "d.gguf")]
        message = complaint([*arguments, "-m", other], capsys)
        assert message.endswith("its number of target layers is 4, the target's is 5")


class TestExport:
    def test_a_folder_comes_back_from_a_file(
        self, tmp_path: Path, folder: str, target: str, capsys: Output
    ) -> None:
        path, output = str(tmp_path / "d.gguf"), tmp_path / "exported"
        main(["quantize", folder, "--type", "f16", "-o", path, "-m", target])
        capsys.readouterr()
        arguments = ["export", path, "-o", str(output), "--dtype", "f32", "-m", target]
        assert main(arguments) == 0
        assert capsys.readouterr().out == f"{output}: f32, 0.4 MB\n"
        with DrafterFile.open(folder) as one, DrafterFile.open(output) as other:
            assert other.config.num_target_layers == one.config.num_target_layers == 4
            assert other.config.rope == one.config.rope
            for name, values in DrafterValues(one).items():
                expected = values.astype(np.float16) if values.ndim == 2 else values
                assert np.array_equal(DrafterValues(other)[name], expected.astype(np.float32))

    def test_an_earlier_export_is_replaced(self, tmp_path: Path, folder: str) -> None:
        output = tmp_path / "exported"
        for dtype in ("f32", "bf16"):
            assert main(["export", folder, "-o", str(output), "--dtype", dtype]) == 0
        assert json.loads((output / "config.json").read_text())["dtype"] == "bfloat16"

    def test_what_the_file_does_not_say_is_told(
        self, tmp_path: Path, folder: str, target: str, capsys: Output
    ) -> None:
        path, output = str(tmp_path / "d.gguf"), str(tmp_path / "exported")
        main(["quantize", folder, "--type", "q4_0", "-o", path, "-m", target])
        main(["export", path, "-o", output])
        notices = capsys.readouterr().err
        assert f"{path} does not say how many layers its target has" in notices
        assert f"{path} is quantized (Q4_0); the folder gets the values" in notices
        main(["export", path, "-o", output, "-m", target])
        assert "how many layers" not in capsys.readouterr().err

    def test_what_is_refused(self, tmp_path: Path, folder: str, capsys: Output) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "notes.txt").write_text("mine")
        for output, message in (
            (other, f"-o {other} holds notes.txt, which no export wrote; it must be new"),
            (other / "notes.txt", f"-o {other / 'notes.txt'} is a file; it must be a folder"),
            (Path(folder), f"-o {folder} is the drafter itself"),
        ):
            assert complaint(["export", folder, "-o", str(output)], capsys).startswith(message)
        assert [each.name for each in other.iterdir()] == ["notes.txt"]
        missing = str(tmp_path / "missing")
        message = complaint(["export", missing, "-o", str(tmp_path / "new")], capsys)
        assert message.startswith(f"there is no file {missing}")
