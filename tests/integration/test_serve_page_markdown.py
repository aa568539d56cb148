"""The page's Markdown, in a real browser: what becomes which element, and that streaming agrees."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.browsing import NEEDS_CHROMIUM, Pieces, browser, page_session, visiting

pytestmark = NEEDS_CHROMIUM

IMPORTS = """
const { MarkdownView } = await import("/page/markdown.js");
const { Marked } = await import("/page/marked.js");
const render = (marked) => {
  const root = document.createElement("div");
  new MarkdownView(root).show(marked);
  return root.innerHTML;
};
"""
Run = Callable[[str, Any], Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """A function (body of a script, its argument) -> what it returns."""
    with browser() as found, visiting(found, page_session(Pieces(["ok"]))) as visit:

        def run(script: str, argument: Any) -> Any:
            return visit.page.evaluate(f"async (given) => {{ {IMPORTS} {script} }}", argument)

        yield run
        assert visit.noise == visit.foreign == []


def link(href: str, text: str, host: str = "") -> str:
    attributes = f'href="{href}" target="_blank" rel="noopener noreferrer nofollow" title="{href}"'
    shown = f'<span class="address"> ({host})</span>' if host else ""
    return f"<a {attributes}>{text}</a>{shown}"


def code(text: str, language: str = "") -> str:
    caption = f"<figcaption>{language}</figcaption>"
    return f'<figure class="code">{caption}<pre><code dir="ltr">{text}</code></pre></figure>'


def item(*inside: str) -> str:
    return f"<li>{''.join(inside)}</li>"


def tight(*items: str) -> str:
    return f'<ul class="tight">{"".join(items)}</ul>'


TABLE = (
    '<div class="table"><table><thead><tr><th class="center">a</th><th class="right">b</th></tr>'
    '</thead><tbody><tr><td class="center"><code>1</code></td><td class="right"></td></tr></tbody>'
    "</table></div><p>c</p>"
)
ADDRESSES = '<p>a<span class="address"> (ftp://x)</span> b<span class="address"> (/c)</span></p>'
DEEP = '<ol class="tight" start="3">' + item("<p>a</p>", tight(item("<p>b</p>"))) + item("<p>d</p>")

CASES = {
    "paragraphs": ("one\ntwo\n\n\nthree", "<p>one<br>two</p><p>three</p>"),
    "emphasis": ("*a* __b__ ~~d~~", "<p><em>a</em> <strong>b</strong> <s>d</s></p>"),
    "both": ("***c***", "<p><strong><em>c</em></strong></p>"),
    "nested": ("**a *b* _c_**", "<p><strong>a <em>b</em> <em>c</em></strong></p>"),
    "crossing": ("*a **b* c**", "<p><em>a **b</em> c**</p>"),
    "spaces": ("2 * 3 * 4, ** x **", "<p>2 * 3 * 4, ** x **</p>"),
    "names": ("snake_case_name, a_b_", "<p>snake_case_name, a_b_</p>"),
    "unclosed": ("**bold and `code", "<p>**bold and `code</p>"),
    "escapes": (r"\*a\* \` \x", r"<p>*a* ` \x</p>"),
    "code": ("`a*b*` ``x`y``", "<p><code>a*b*</code> <code>x`y</code></p>"),
    "padded-code": ("`` ` ``", "<p><code>`</code></p>"),
    "html-is-text": ("<b>x</b> &amp;", "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>"),
    "link": ("[a *b*](http://x.y/z)", f"<p>{link('http://x.y/z', 'a <em>b</em>', 'x.y')}</p>"),
    "titled-link": ('[a](http://x.y/(1) "t")', f"<p>{link('http://x.y/(1)', 'a', 'x.y')}</p>"),
    "bare-link": ("to http://x.y/z.", f"<p>to {link('http://x.y/z', 'http://x.y/z')}.</p>"),
    "no-link": ("[a](ftp://x) [b](/c)", ADDRESSES),
    "image": ("![a](https://x.y/z.png)", '<p><span class="image">a</span></p>'),
    "headings": ("# A\n### B *c*\n#no", "<h3>A</h3><h5>B <em>c</em></h5><p>#no</p>"),
    "rules": ("a\n***\n- - -", "<p>a</p><hr><hr>"),
    "quote": ("> a\n>b\n\nc", "<blockquote><p>a<br>b</p></blockquote><p>c</p>"),
    "list": ("- a\n  more\n* b", tight(item("<p>a<br>more</p>")) + tight(item("<p>b</p>"))),
    "loose-list": ("- a\n\n  b\n- c", f"<ul>{item('<p>a</p><p>b</p>')}{item('<p>c</p>')}</ul>"),
    "nested-list": ("3. a\n   - b\n4. d", f"{DEEP}</ol>"),
    "fence": ("```py\n  a = '*'\n\n# no\n```\nb", code("  a = '*'\n\n# no", "py") + "<p>b</p>"),
    "open-fence": ("a\n~~~\n```\n<b>", "<p>a</p>" + code("```\n&lt;b&gt;")),
    "fence-in-list": ("- a\n  ```\n  x\n    y\n  ```", tight(item("<p>a</p>", code("x\n  y")))),
    "table": ("|a|b|\n|:-:|-:|\n|`1`|\nc", TABLE),
    "no-table": ("a | b\n---|---|---", "<p>a | b<br>---|---|---</p>"),
    "reordering": ("a\u202eb", '<p>a<span class="control">U+202E</span>b</p>'),
}


@pytest.mark.parametrize("name", CASES)
def test_elements(run: Run, name: str) -> None:
    text, expected = CASES[name]
    assert run("return render(new Marked(given))", text) == expected


def test_marks_follow_their_characters(run: Run) -> None:
    text, marks = "a **bc** `de`", "ddttdtttdttdt"
    expected = (
        '<p><span class="drafted">a</span> <strong><span class="drafted">b</span>'
        '<span class="own">c</span></strong> <code><span class="own">d</span>'
        '<span class="drafted">e</span></code></p>'
    )
    assert run("return render(new Marked(...given))", [text, marks]) == expected


STREAMED = """
  const [texts] = given;
  for (const text of texts) {
    const root = document.createElement("div");
    const view = new MarkdownView(root);
    for (let end = 1; end <= text.length; end += 1) {
      const marks = "ddt".repeat(text.length).slice(0, end);
      const part = new Marked(text.slice(0, end), marks);
      view.show(part);
      if (root.innerHTML !== render(part)) return [part.text, root.innerHTML, render(part)];
    }
  }
  return null;
"""


def test_a_stream_shows_what_its_text_would_at_once(run: Run) -> None:
    texts = [text for text, _ in CASES.values()]
    assert run(STREAMED, [["\n\n".join(texts[:13]), "\n".join(texts[13:])]]) is None


def test_a_stream_of_anything_shows_what_its_text_would_at_once(run: Run) -> None:
    random = Random(5)
    words = ["\n", "\n", "\n\n", " ", "  ", "- ", "1. ", "> ", "```", "|", "-", "#", "*", "`", "a"]
    texts = ["".join(random.choices(words, k=40)) for _ in range(250)]
    assert run(STREAMED, [texts]) is None
