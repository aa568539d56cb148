import numpy as np
import pytest

from blockdraft.train.duplicates import NearDuplicates


def changed(answer: list[int], number: int) -> list[int]:
    """The answer with that many tokens replaced, spread out."""
    found = list(answer)
    for place in np.linspace(0, len(answer) - 1, number).astype(int):
        found[place] += 1000
    return found


@pytest.fixture
def answer() -> list[int]:
    return np.random.default_rng(3).integers(0, 500, 200).tolist()


@pytest.mark.parametrize(("number", "is_new"), [(0, False), (2, False), (20, True)])
def test_few_changes_make_a_near_duplicate(answer: list[int], number: int, is_new: bool) -> None:
    seen = NearDuplicates()
    assert seen.add(answer)
    assert seen.add(changed(answer, number)) is is_new
    assert len(seen) == 1 + is_new


def test_threshold_decides(answer: list[int]) -> None:
    strict, loose = NearDuplicates(1.0), NearDuplicates(0.5)
    for seen, is_new in ((strict, True), (loose, False)):
        seen.add(answer)
        assert seen.add(changed(answer, 6)) is is_new


def test_order_of_tokens_counts(answer: list[int]) -> None:
    seen = NearDuplicates()
    seen.add(answer)
    assert seen.add(answer[::-1])


@pytest.mark.parametrize("size", [1, 3, 5])
def test_short_answers_are_compared_as_a_whole(size: int) -> None:
    seen = NearDuplicates()
    assert seen.add(list(range(size)))
    assert not seen.add(list(range(size)))
    assert seen.add([*range(size - 1), 99])


def test_unrelated_answers_are_new() -> None:
    seen = NearDuplicates()
    random = np.random.default_rng(0)
    assert all(seen.add(random.integers(0, 300, 100).astype(np.int32)) for _ in range(300))
