"""Hostile answers on the web page, in a real browser: they are shown, and nothing else."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browsing import NEEDS_CHROMIUM, Pieces, browser, expect, page_session, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with browser() as found:
        yield found


HOSTILE = [
    "<script>alert(1)</script>\n\n",
    "<img src=https://evil.example/a.png onerror=alert(2)>\n\n",
    "<svg onload=alert(3)><iframe src='https://evil.example/'></iframe>\n\n",
    "![picture](https://evil.example/b.png)",
    " ![data](data:image/svg+xml,<svg/onload=alert(4)>)\n\n",
    "[click](javascript:alert(5)) [click](JaVaScRiPt:alert(6)) [click](\tjavascript:alert(7))\n\n",
    "[data](data:text/html,<script>alert(8)</script>) <javascript:alert(9)>\n\n",
    '[quote](https://good.example/"onmouseover="alert(10)) [v](vbscript:x) [f](file:///etc/a)',
    "\n\n[https://bank.example](https://evil.example/login) [x](//evil.example)\n\n",
    "```html\n<script>alert(11)</script><img src=x onerror=alert(12)>\n```\n\n",
    '```"><script>alert(13)</script>\n</code></pre><script>alert(14)</script>\n```\n\n',
    "`<img src=x onerror=alert(15)>` **<b onclick=alert(16)>** &lt;script&gt;\n\n",
    "<style>@import 'https://evil.example/c.css';</style><link rel=prefetch href=//evil.example>",
    "\n\n<base href=https://evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
    "\n\n<form action=https://evil.example><button>a</button></form><object data=x></object>\n\n",
    "admin\u202egnp.exe \u2066hidden\u2069\n\n",
    "| <script>alert(17)</script> | [c](javascript:alert(18)) |\n|---|---|\n| <img src=y> |\n\n",
    "x" * 20_000 + "\n\n",
    "*a **b _c `" * 2_000 + "\n\n",
    "> " * 500 + "deep\n\n",
    "- " * 500 + "deep\n\n",
    "[" * 3_000 + "](" * 1_000 + "\n\n",
    "end",
]


TAGS = {
    *("a", "blockquote", "br", "button", "code", "div", "em", "figcaption", "figure", "li", "p"),
    *("pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}
ATTRIBUTES = {"class", "dir", "href", "rel", "target", "title", "type"}


def test_hostile_answers_run_and_load_nothing(chromium: "Browser") -> None:
    script = Pieces(HOSTILE, held=True)
    with visiting(chromium, page_session(script)) as visit:
        page = visit.page
        visit.send("be evil")
        script.let(8)  # a part of it is shown while it is written
        expect(page.locator(".answer .prose")).to_contain_text("alert(1)")
        script.let(200)
        expect(page.get_by_role("status")).to_have_text("Answer complete.")
        assert visit.noise == visit.foreign == []
        prose = page.locator(".answer .prose")
        tags = set(prose.evaluate("e => [...e.querySelectorAll('*')].map((n) => n.localName)"))
        assert tags <= {
            *("p", "br", "span", "code", "pre", "figure", "figcaption", "button", "a", "em"),
            *(
                "strong",
                "blockquote",
                "ul",
                "li",
                "div",
                "table",
                "thead",
                "tbody",
                "tr",
                "th",
                "td",
            ),
        }
        names = "e => [...e.querySelectorAll('*')].flatMap((n) => n.getAttributeNames())"
        assert set(prose.evaluate(names)) <= {
            "class",
            "dir",
            "type",
            "href",
            "target",
            "rel",
            "title",
        }
        links = prose.locator("a").evaluate_all("all => all.map((a) => [a.href, a.rel, a.target])")
        assert all(href.startswith("https://") for href, _, _ in links)
        assert "https://good.example/%22onmouseover=%22alert(10)" in {href for href, _, _ in links}
        assert {tuple(link[1:]) for link in links} == {("noopener noreferrer nofollow", "_blank")}
        text = prose.inner_text()
        assert "<script>alert(1)</script>" in text
        assert "https://bank.example (evil.example)" in text
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)
        assert "adminU+202Egnp.exe" in text


ATTEMPTS = [
    "document.body.innerHTML = '<img src=x onerror=alert(1)>'",
    "document.body.append(Object.assign(document.createElement('script'), {text: 'alert(2)'}))",
    "document.body.append(Object.assign(new Image(), {src: 'https://evil.example/a'}))",
    "fetch('https://evil.example/b').catch(() => 0)",
]


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "unguarded"])
def test_the_browser_stops_what_the_page_would_let_through(
    chromium: "Browser", *, is_guarded: bool
) -> None:
    """Without the policy every attempt is seen, so that the tests would see one with it."""
    context = {"bypass_csp": not is_guarded}
    with visiting(chromium, page_session(Pieces(["ok"])), context=context) as visit:
        for attempt in ATTEMPTS:
            visit.page.evaluate(f"() => {{ try {{ {attempt} }} catch {{ }} }}")
        for _ in range(500):
            done = [text for text in visit.noise if text in ("1", "2")]
            refused = [text for text in visit.noise if "Content Security Policy" in text]
            if len(refused) >= 3 or len(done) + len(visit.foreign) >= 4:
                break
            visit.page.wait_for_timeout(10)
        assert bool(refused) == is_guarded
        assert visit.foreign == ([] if is_guarded else [f"https://evil.example/{x}" for x in "ab"])
        assert sorted(done) == ([] if is_guarded else ["1", "2"])
