"""The mutants still apply to the sources; `scripts/mutants` builds them and sees them die."""

import shutil
from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS, Edit, Mutant

CSRC = Path(__file__).resolve().parents[2] / "csrc"


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_its_files(tmp_path: Path, mutant: Mutant) -> None:
    copy = shutil.copytree(CSRC, tmp_path / "csrc")
    for edit in mutant.edits:
        edit.apply(copy)
    for file in {edit.file for edit in mutant.edits}:
        assert (copy / file).read_text() != (CSRC / file).read_text()


def test_a_search_text_must_be_there_once(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("one one two")
    with pytest.raises(ValueError, match="has 2 times"):
        Edit("a.h", "one", "three").apply(tmp_path)
    with pytest.raises(ValueError, match="has 0 times"):
        Edit("a.h", "four", "five").apply(tmp_path)
