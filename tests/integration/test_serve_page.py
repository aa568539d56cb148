"""The web page in a real browser: chat, race, settings, keys, phones, light and dark."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browsing import NEEDS_CHROMIUM, Pieces, Visit, browser, expect, page_session, visiting
from tests.serving import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = NEEDS_CHROMIUM

ANSWER = ["A ", "list", ":\n\n", "- one", "\n- ", "**two**", "\n\nand ", "`code`", "."]
WHOLE = "A list:onetwoand code."


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser() as found:
        yield found


def flat(text: str) -> str:
    """A text without the line ends of its blocks."""
    return re.sub(r"\n+", "", text)


def test_an_answer_is_streamed_and_counted(chromium: "Browser") -> None:
    script = Pieces(ANSWER, held=True)
    with visiting(chromium, page_session(script)) as visit:
        page = visit.page
        expect(page.locator("#model")).to_have_text("tiny · drafted by scripted")
        visit.send("Hello <b>there</b>")
        expect(page.locator(".question .words")).to_have_text("Hello <b>there</b>")
        script.let(1)
        expect(page.locator(".answer .prose")).to_have_text("A ")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        script.let(20)
        expect(page.get_by_role("status")).to_have_text("Answer complete.")
        assert flat(page.locator(".answer .prose").inner_text()) == WHOLE
        assert page.locator(".answer ul.tight > li").count() == 2
        assert page.locator(".answer strong").inner_text() == "two"
        figures = page.locator(".answer .figures").inner_text()
        assert re.search(r"9 tokens\s", figures)
        assert re.search(r"\d\.\d\d tau", figures)
        expect(page.locator(".answer .bars")).to_have_attribute(
            "aria-label", re.compile(r"^accepted by position: 1: \d+ %, 2: ")
        )
        assert visit.noise == visit.foreign == []


def test_tokens_are_coloured_by_origin(chromium: "Browser") -> None:
    script = Pieces(ANSWER)
    with visiting(chromium, page_session(script)) as visit:
        page = visit.page
        visit.send("hi")
        expect(page.get_by_role("status")).to_have_text("Answer complete.")
        own = page.locator(".answer .own").all_inner_texts()
        drafted = page.locator(".answer .drafted").all_inner_texts()
        assert own
        assert drafted
        assert len("".join([*own, *drafted])) == len(WHOLE.replace(" ", ""))
        colour = "e => getComputedStyle(e).backgroundColor"
        first = page.locator(".answer .drafted").first
        assert first.evaluate(colour) != page.locator(".answer .own").first.evaluate(colour)
        page.get_by_label("Colour tokens by origin").uncheck()
        assert first.evaluate(colour) == "rgba(0, 0, 0, 0)"


def test_the_next_question_brings_the_conversation(chromium: "Browser") -> None:
    script = Pieces(["yes"])
    with visiting(chromium, page_session(script)) as visit:
        page = visit.page
        page.get_by_label("System prompt").fill("be brief")
        for number, text in enumerate(["first", "second"], 1):
            visit.send(text)
            expect(page.locator(".answer:not([aria-busy])")).to_have_count(number)
        last = "<system>be brief<user>first<assistant>yes<user>second<model>"
        assert script.codec.prompts[-1] == last
        page.get_by_role("button", name="New chat").click()
        visit.send("third")
        expect(page.locator(".answer:not([aria-busy])")).to_have_count(1)
        assert script.codec.prompts[-1] == "<system>be brief<user>third<model>"


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_answer_on_the_server_too(chromium: "Browser", how: str) -> None:
    script = Pieces(["word "] * 400, held=True)
    session = page_session(script, with_drafter=False)
    with visiting(chromium, session) as visit:
        page = visit.page
        visit.send("go on")
        script.let(3)
        expect(page.locator(".answer .prose")).to_have_text("word word word")
        if how == "button":
            page.get_by_role("button", name="Stop").click()
        else:
            page.keyboard.press("Escape")
        expect(page.get_by_role("status")).to_have_text("Stopped.")
        script.let(100)
        wait_for(lambda: session.engine.used_cache_bytes == 0)
        assert page.locator(".answer .prose").inner_text() == "word word word"
        assert "stopped" in page.locator(".answer .figures").inner_text()
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        assert visit.noise == []


def test_a_race_shows_both_ways_side_by_side(chromium: "Browser") -> None:
    script = Pieces(ANSWER)
    with visiting(chromium, page_session(script)) as visit:
        page = visit.page
        page.get_by_role("button", name="Race").first.click()
        visit.send("same prompt")
        expect(page.locator(".verdict")).to_contain_text("identical texts")
        expect(page.locator(".verdict b")).to_have_text(re.compile(r"^\d\.\d\d.$"))
        drafted, plain = page.locator(".lanes .answer").all()
        for lane in (drafted, plain):
            assert flat(lane.locator(".prose").inner_text()) == WHOLE
            expect(lane.locator(".speed")).to_have_text(re.compile(r"^[\d,]+\.\d tokens/s$"))
        assert "tau" in drafted.locator(".figures").inner_text()
        assert "tau" not in plain.locator(".figures").inner_text()
        left, right = drafted.bounding_box(), plain.bounding_box()
        assert left is not None
        assert right is not None
        assert left["y"] == right["y"]
        assert left["x"] + left["width"] < right["x"]
        page.get_by_role("button", name="Replay at once").click()
        expect(page.get_by_role("button", name="Replay at once")).to_be_enabled()
        assert flat(plain.locator(".prose").inner_text()) == WHOLE


def test_settings_are_sent_and_kept(chromium: "Browser") -> None:
    with visiting(chromium, page_session(Pieces(["ok"]))) as visit:
        page = visit.page
        asked: dict[str, Any] = {
            "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.05, "seed": 7,
            "max_tokens": 20, "repeat_penalty": 1.1, "repeat_last_n": 64,
            "presence_penalty": 0.2, "frequency_penalty": -0.1, "n_max": 4,
        }  # fmt: skip
        for name, value in asked.items():
            page.locator(f"#settings [name={name}]").fill(str(value))
        page.reload()
        sent = sent_by(visit)
        del asked["n_max"]
        assert {name: sent[name] for name in asked} == asked
        assert sent["speculative"] == {"n_max": 4}
        assert sent["mark_drafts"] is True
        expect(page.get_by_role("status")).to_have_text("Answer complete.")
        page.get_by_label("Drafting").select_option("off")
        assert sent_by(visit)["speculative"] == {"type": "none"}
        expect(page.locator(".answer:not([aria-busy])")).to_have_count(2)


def sent_by(visit: Visit) -> dict[str, Any]:
    """The request that a message becomes."""
    with visit.page.expect_request("**/v1/chat/completions") as request:
        visit.send("hi")
    return dict(request.value.post_data_json or {})


def test_a_wrong_setting_is_not_sent_and_a_refusal_is_shown(chromium: "Browser") -> None:
    with visiting(chromium, page_session(Pieces(["ok"]))) as visit:
        page = visit.page
        page.get_by_label("Top-p").fill("7")
        visit.send("hi")
        expect(page.get_by_label("Top-p")).to_be_focused()
        assert page.locator(".answer").count() == 0
        page.get_by_label("Top-p").fill("")
        page.get_by_label("Max tokens").fill("100000")
        visit.send("hi")
        expect(page.locator(".answer .error")).to_contain_text("512")
        expect(page.get_by_label("Message", exact=True)).to_have_value("hi")


def test_a_key_is_asked_for_and_stays_in_the_tab(chromium: "Browser") -> None:
    session = page_session(Pieces(["ok"]))
    with visiting(chromium, session, api_key="secret") as visit:
        page = visit.page
        expect(page.get_by_role("alert")).to_have_text("an API key is needed")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("the API key is wrong")
        page.keyboard.type("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_contain_text("tiny")
        page.reload()
        visit.send("hi")
        expect(page.locator(".answer .prose")).to_have_text("ok")
        assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
        assert visit.foreign == []


def test_the_keyboard_is_enough(chromium: "Browser") -> None:
    with visiting(chromium, page_session(Pieces(["ok"]))) as visit:
        page = visit.page
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("Answer complete.")
        assert page.locator(".question .words").inner_text() == "one\ntwo"
        page.keyboard.type("a race")
        seen = focus_order(visit, until="Top-k")
        assert seen[:3] == ["New chat", "Send", "Temperature"]
        seen = focus_order(visit, until="Race", key="Shift+Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#race")).to_be_visible()
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".verdict")).to_contain_text("identical")
        assert visit.noise == []


def focus_order(visit: Visit, *, until: str, key: str = "Tab") -> list[str]:
    """Names of what gets the focus; fails when ``until`` is not among them."""
    name = "e => (e.labels?.[0] ?? e).textContent.trim() || e.ariaLabel"
    seen: list[str] = []
    while until not in seen:
        assert len(seen) < 40, seen
        visit.page.keyboard.press(key)
        seen.append(visit.page.locator(":focus").evaluate(name))
    return seen


PHONE = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
WIDE = ["| a | b |\n|---|---|\n", "| " + "x" * 300 + " | y |\n\n", "```\n", "z" * 300, "\n```\n"]


def test_a_phone_scrolls_only_down(chromium: "Browser") -> None:
    script = Pieces([*WIDE, "https://example.org/" + "p" * 300])
    with visiting(chromium, page_session(script), context=PHONE) as visit:
        page = visit.page
        for view in ("Chat", "Race"):
            page.locator("nav").get_by_role("button", name=view).click()
            visit.send("w" * 300)
            expect(page.get_by_role("status")).to_have_text("Answer complete.")
            shown = page.locator(".view:not([hidden]) > *")
            for element in (page.locator("html"), page.locator("main"), shown):
                assert element.evaluate("e => e.scrollWidth - e.clientWidth") == 0
        page.get_by_role("button", name="Settings").tap()
        expect(page.get_by_label("Temperature")).to_be_visible()
        assert page.locator("#settings").evaluate("e => e.scrollWidth - e.clientWidth") == 0
        page.keyboard.press("Escape")
        expect(page.get_by_label("Temperature")).to_be_hidden()
        assert visit.noise == visit.foreign == []


@pytest.mark.parametrize("system", ["light", "dark"])
def test_light_and_dark(chromium: "Browser", system: str) -> None:
    session = page_session(Pieces(["ok"]))
    with visiting(chromium, session, context={"color_scheme": system}) as visit:
        page = visit.page

        def is_dark() -> bool:
            light = "e => getComputedStyle(e).backgroundColor.match(/\\d+/g).every((c) => c < 80)"
            return bool(page.locator("body").evaluate(light))

        assert is_dark() == (system == "dark")
        theme = page.get_by_role("button", name="Theme")
        for expected in (False, True):
            theme.click()
            assert is_dark() == expected
            page.reload()
            assert is_dark() == expected
        theme.click()
        assert is_dark() == (system == "dark")
