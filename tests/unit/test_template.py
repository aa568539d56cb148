import threading
import time
from datetime import datetime
from typing import Any

import pytest

from blockdraft.errors import ConfigError, FileFormatError
from blockdraft.tokenizer import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def template(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, name="tiny", token_texts={"bos_token": "<s>"}, **options)


def render(source: str, **values: Any) -> str:
    options = {"add_generation_prompt": False, **values}
    return template(source).render(options.pop("messages", HI), **options)


def test_renders_a_conversation() -> None:
    source = (
        "{{ bos_token }}\n"
        "{% for message in messages %}\n"
        "    {% if loop.first and message['role'] != 'system' %}\n"
        "[system] be kind\n"
        "    {% endif %}\n"
        "[{{ message['role'] }}] {{ message.content | trim }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}\n"
        "[assistant]\n"
        "{%- endif %}\n"
    )
    expected = "<s>\n[system] be kind\n[user] hi\n"
    assert render(source) == expected
    assert render(source, add_generation_prompt=True) == f"{expected}[assistant]"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ tools | tojson }}", '[{"a": "é<"}]'),
        ("{{ tools[0] | tojson(indent=1) }}", '{\n "a": "é<"\n}'),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        (
            "{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}"
            "{% endfor %}{{ ns.n }}",
            "3",
        ),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "x1"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}", "<a>"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ 'a-b'.split('-')[-1].upper() }}{{ messages[::-1] | length }}", "B1"),
        ("{{ missing is defined }}{{ missing }}{{ tools is none }}", "FalseFalse"),
        ("{{ ['a', 'b'] | join(', ') }} {{ ' x ' | trim | replace('x', 'y') }}", "a, b y"),
        ("{{ '{}-{:>3}'.format('a', 1) }}|{{ '%s %03d 100%%' % ('a', 7) }}", "a-  1|a 007 100%"),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content')"
            " | first }}",
            "hi",
        ),
        ("{{ enable_thinking }}", "yes"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
    ],
)
def test_dialect(source: str, text: str) -> None:
    tools = [{"a": "é<"}]
    assert render(source, tools=tools, variables={"enable_thinking": "yes"}) == text


def test_the_clock_comes_from_outside() -> None:
    chat = template("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert chat.render([], add_generation_prompt=False) == "26 Jul 2024"


def test_a_template_may_refuse_the_messages() -> None:
    with pytest.raises(ConfigError, match="chat template of tiny refuses the messages: no system"):
        render("{{ raise_exception('no system role') }}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ 1 | pprint }}", "No filter named 'pprint'"),
        ("{{ a.b.c }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{% include 'x' %}", "no loader"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("a" * 200_000, "200000 characters"),
    ],
)
def test_a_broken_template_gives_one_clear_error(source: str, words: str) -> None:
    with pytest.raises(FileFormatError, match="the chat template of tiny") as caught:
        render(source)
    assert words in str(caught.value)


LOOP = "{% for a in range(100000) %}"
DOUBLE = (
    "{% set ns = namespace(x=START) %}{% for i in range(100) %}{% set ns.x = NEXT %}{% endfor %}"
)


def doubling(start: str, following: str) -> str:
    return DOUBLE.replace("START", start).replace("NEXT", following)


HOSTILE = {
    "empty loops": LOOP * 3 + "{% endfor %}" * 3,
    "a filter over and over": f"{LOOP}{{{{ range(100000) | map('string') | list }}}}{{% endfor %}}",
    "a long range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro that doubles": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "much output": LOOP + "{{ 'a' * 10000 }}{% endfor %}",
    "much constant output": LOOP + "a" * 100_000 + "{% endfor %}",
    "a captured block": "{% set x %}" + LOOP + "a" * 50_000 + "{% endfor %}{% endset %}",
    "a captured value": (
        "{% set b = 'a' * 1000000 %}{% set x %}" + LOOP + "{{ b }}{% endfor %}{% endset %}"
    ),
    "repeated text": "{{ 'a' * 10000000000 }}",
    "repeated list": "{{ 10000000000 * [1] }}",
    "doubled text": doubling("'a'", "ns.x ~ ns.x"),
    "added text": doubling("'a'", "ns.x + ns.x"),
    "long concatenation": "{% set x = 'a' * 1000000 %}{% set y = " + "~".join(["x"] * 1000) + " %}",
    "a growing list": doubling("[]", "ns.x + ['a' * 100000000]"),
    "a big power": "{{ 10 ** 10000000000 }}",
    "a big number": doubling("3", "ns.x * ns.x"),
    "center": "{{ 'a'.center(10 ** 9) }}",
    "expandtabs": "{{ ('\t' * 1000000).expandtabs(1000000) }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "join": "{{ ('b' * 1000000).join('a' * 1000000) }}",
    "join filter": "{{ (['a' * 1000000] * 100000) | select | join }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent with a name": "{{ '%(x)999999999d' % {'x': 1} }}",
    "percent with a star": "{{ '%*d' % (999999999, 1) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 999999999) }}",
    "strftime": "{{ strftime_now('%999999999Y') }}",
    "indent": "{{ 'a\n' | indent(1000000000) }}",
    "tojson": "{{ [1] | tojson(indent=1000000000) }}",
    "nested lists": doubling("1", "[ns.x, ns.x]"),
    "nested tuples": doubling("1", "(ns.x, ns.x)"),
    "nested mappings": doubling("1", "dict(a=ns.x, b=ns.x)"),
    "nested parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops in the source": "{% for a in [1] %}" * 200 + "{% endfor %}" * 200,
    "many tokens": "{{ 1 + 1 }}" * 10_000,
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_stopped(source: str) -> None:
    start = time.monotonic()
    chat = template(source, time_limit_s=0.1)
    with pytest.raises(FileFormatError, match=r"the chat template of tiny (was stopped|fails): "):
        chat.render(HI, add_generation_prompt=True)
    # Far above the limit: the machine may be busy, an unstopped template takes for ever.
    assert time.monotonic() - start < 20


def test_a_stopped_template_works_again_with_other_messages() -> None:
    chat = template("{% for m in messages %}{{ m.content * m.times }}{% endfor %}")
    with pytest.raises(FileFormatError, match="was stopped"):
        chat.render([{"content": "a", "times": 10**12}], add_generation_prompt=False)
    assert chat.render([{"content": "a", "times": 3}], add_generation_prompt=False) == "aaa"


def test_long_conversations_are_no_attack() -> None:
    messages = [{"role": "user", "content": "word " * 200}] * 1000
    text = render(
        "{% for m in messages %}{{ m.role ~ ': ' + m.content }}{% endfor %}", messages=messages
    )
    assert len(text) == 1000 * 1006


def test_threads_may_share_a_template() -> None:
    chat = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    results: dict[int, str] = {}

    def work(number: int) -> None:
        messages = [{"content": f"{number}"}] * 50
        results[number] = chat.render(messages, add_generation_prompt=False)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}" * 50 for number in range(4)}
