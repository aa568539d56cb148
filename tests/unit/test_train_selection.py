from collections import Counter
from collections.abc import Sequence

import pytest

from blockdraft.errors import ConfigError
from blockdraft.train.prompts import Prompt
from blockdraft.train.selection import LEAK_WORDS, PromptPlan, Selection, plan_prompts, words_of


def prompts(category: str, number: int, *, source: str = "s") -> list[Prompt]:
    return [Prompt(f"{category}{i}", category, source, f"{category} {i}") for i in range(number)]


def order(plan: PromptPlan) -> list[str]:
    return list(plan.interleave(lambda prompt: prompt.id))


def texts(*found: str) -> list[Prompt]:
    return [Prompt(f"p{i}", "other", "", text) for i, text in enumerate(found)]


class TestMix:
    MIX = (("code", 3.0), ("math", 1.0))

    def test_every_beginning_has_the_mix(self) -> None:
        every = prompts("math", 40) + prompts("code", 40) + prompts("chat", 40)
        plan = plan_prompts(every, Selection(mix=self.MIX))
        found = order(plan)
        for size in range(1, 50):
            code = sum(name.startswith("code") for name in found[:size])
            assert abs(code - 0.75 * size) <= 1
        assert plan.left_out == {"category": 40}

    def test_the_rest_follows_when_a_category_ends(self) -> None:
        found = order(
            plan_prompts(prompts("code", 3) + prompts("math", 9), Selection(mix=self.MIX))
        )
        assert len(found) == len(set(found)) == 12

    def test_without_weights_categories_end_together(self) -> None:
        found = order(plan_prompts(prompts("code", 30) + prompts("math", 10), Selection()))
        assert Counter(name[:4] for name in found[:20]) == {"code": 15, "math": 5}

    def test_a_prompt_that_is_not_prepared_gives_its_turn_to_its_category(self) -> None:
        plan = plan_prompts(prompts("code", 40) + prompts("math", 20), Selection(mix=self.MIX))
        skipped = {f"code{i}" for i in range(0, 40, 2)}
        found = list(plan.interleave(lambda one: None if one.id in skipped else one.id))
        assert not skipped & set(found)
        assert Counter(name[:4] for name in found[:20]) == {"code": 15, "math": 5}

    def test_seed_decides_the_order_and_the_order_of_files_does_not(self) -> None:
        every = prompts("code", 20)
        first = order(plan_prompts(every, Selection(seed=1)))
        assert first == order(plan_prompts(every[::-1], Selection(seed=1)))
        assert first != order(plan_prompts(every, Selection(seed=2)))
        assert first != [prompt.id for prompt in every]

    @pytest.mark.parametrize(
        ("mix", "message"),
        [
            ((("code", 0.0),), "the weight of code is 0.0; it must be positive"),
            ((("code", float("nan")),), "the weight of code is nan"),
            ((("code", 1.0), ("code", 2.0)), "the category code has two weights"),
            ((("cod", 1.0),), "no prompt is of the category 'cod'; categories: code"),
        ],
    )
    def test_wrong_weights_are_named(self, mix: Sequence[tuple[str, float]], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            plan_prompts(prompts("code", 2), Selection(mix=tuple(mix)))


class TestSources:
    EVERY = prompts("code", 2, source="gpt-a") + prompts("math", 3, source="own")

    def test_excluded_sources(self) -> None:
        plan = plan_prompts(self.EVERY, Selection(excluded_sources=("gpt-*",)))
        assert set(plan.queues) == {"math"}
        assert plan.left_out == {"source": 2}

    def test_a_pattern_that_excludes_nothing_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"a source like 'gtp-\*'; sources: gpt-a, own"):
            plan_prompts(self.EVERY, Selection(excluded_sources=("gpt-*", "gtp-*")))

    def test_nothing_left_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="no prompt is left: 5 left out by source"):
            plan_prompts(self.EVERY, Selection(excluded_sources=("*",)))


def test_duplicates_are_dropped() -> None:
    plan = plan_prompts(texts("Say  hi", "say hi", "Say\nhi"), Selection())
    assert sorted(order(plan)) == ["p0", "p1"]
    assert plan.left_out == {"duplicate": 1}


def test_one_id_for_two_texts_is_refused() -> None:
    two = [Prompt("x", "code", "", "a"), Prompt("x", "code", "", "b")]
    with pytest.raises(ConfigError, match="two prompts have the id 'x'"):
        plan_prompts(two, Selection())


class TestLeaks:
    RUN = "one two three four five six seven eight nine ten"
    assert len(RUN.split()) == LEAK_WORDS

    def kept(self, text: str, *held_out: str) -> bool:
        every = [*texts(text), Prompt("z", "other", "", "something else")]
        plan = plan_prompts(every, Selection(), held_out=texts(*held_out))
        assert plan.left_out["held out"] == 1 - ("p0" in order(plan))
        return "p0" in order(plan)

    def test_the_same_words(self) -> None:
        assert not self.kept("What is PI?", "what, is: pi")

    def test_a_long_run_of_words(self) -> None:
        assert not self.kept(f"Before: {self.RUN}. After", f"other words; {self.RUN.upper()}!")

    def test_a_run_that_is_one_word_shorter(self) -> None:
        shorter = self.RUN.rpartition(" ")[0]
        assert self.kept(f"{shorter} a", f"{shorter} b")

    def test_later_turns_count(self) -> None:
        evaluation = [Prompt("e", "chat", "", "first", later_turns=("What is pi",))]
        plan = plan_prompts(texts("what is pi?", "other"), Selection(), held_out=evaluation)
        assert order(plan) == ["p1"]

    def test_chinese_counts_by_the_character(self) -> None:
        assert words_of("三个X苹果!") == ["三", "个", "x", "苹", "果"]
        assert not self.kept("甲乙丙丁戊己庚辛壬癸一", "二甲乙丙丁戊己庚辛壬癸")

    def test_a_phrase_of_the_whole_suite_is_no_leak(self) -> None:
        suite = [f"question {i} {self.RUN}" for i in range(20)]
        assert self.kept(f"my own question {self.RUN}", *suite)

    @pytest.mark.parametrize("evaluation", ["{run} {own}", "{own} {run}"])
    def test_content_right_beside_a_phrase_is_not_part_of_it(self, evaluation: str) -> None:
        suite = [f"question {i} {self.RUN} and {i}" for i in range(20)]
        own = "a b c d e f g h i j"
        assert not self.kept(f"see {own} there", *suite, evaluation.format(run=self.RUN, own=own))

    def test_beside_a_phrase_the_content_still_counts(self) -> None:
        suite = [f"question {i} {self.RUN}" for i in range(20)]
        assert not self.kept(f"Question 7: {self.RUN}", *suite)
        assert not self.kept("question 7", *suite)
