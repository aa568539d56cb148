# ruff: noqa: RUF001 - look-alike characters are part of the point
"""Varied strings for comparing tokenizers, the same for the same seed."""

import random

__all__ = ["varied_texts"]


def _listed(text: str) -> list[str]:
    """The items of ``text``, which single spaces part."""
    return text.split(" ")


_WORDS = _listed(
    "the of and to in is that hello World HTTP fooBar snake_case CamelCase don't I'll we've YOU'RE "
    "it's they'd 'tis rock'n'roll naïve café Straße ÉCOLE Łódź İstanbul ſharp ﬁne ǅ co\u0301te "
    "Tôi không biết Việt Nam đường phố Nguyễn Xin chào các bạn thử nghiệm "
    "Привет мир ЁЖИК Ελληνικά σοφός שלום עולם مرحبا بالعالم हिन्दी नमस्ते বাংলা ไทยภาษา မြန်မာ ქართული "
    "日本語 テスト ひらがな カタカナ 中文字符 简体 繁體 한국어 안녕하세요 한글 "
    "漢字かな交じり文 𠀀𠮷 "
    "𝒳 𝔸𝕓 𝟘𝟙 ① Ⅷ ½ ² ٣٤ ८९ 〇 K Å ﷺ ẞ"
)
_CODE = (
    "def f(x: int) -> str:\n    return f'{x!r}'\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }\n",
    '\tif err != nil {\n\t\treturn nil, fmt.Errorf("bad: %w", err)\n\t}\n',
    '<div class="a b"><p>1 &lt; 2</p></div>\r\n',
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y'; -- note\n",
    "#!/bin/sh\nset -euo pipefail\necho \"${HOME:-/tmp}\" | sed 's/\\//_/g'\n",
    '{"key": [1, 2.5e-3, null, true], "k2": "\\u00e9"}',
    "#include <vector>\ntemplate<class T>T&&move(T&t){return static_cast<T&&>(t);}",
    "x = np.einsum('bhqd,bhkd->bhqk', q, k) / math.sqrt(d)\n\n\n",
    "::<>{}[]()!@#$%^&*-_=+|\\;:'\",.<>/?`~",
    "https://example.com/a/b?c=1&d=%20#frag user@mail.org 192.168.0.1:8080",
    "```python\nprint('hi')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
)
_EMOJI = _listed("😀 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇻🇳🇩🇪 ❤️ ☺ ✨🚀 🤦🏼‍♂️ 1️⃣ ⚡️ 🫠 ♟ ➡️ ✓ ★")
_CONTROLS = _listed(
    "\x00 \x01 \x07 \x08 \x0b \x0c \x1b[31m \x7f \x80 \x85 \x9f \u00a0 \u00ad \u1680 \u180e \u2000 "
    "\u2003 \u200b \u200c \u200d \u200e \u2028 \u2029 \u202e \u202f \u205f \u2060 \u3000 \ufeff "
    "\ufffc \ufffd \ufffe \uffff \U0010ffff \ue000 \U000e0001 \u0378 \u0300 \u0301\u0302 \u20dd"
)
_SPECIALS = _listed(
    "<|endoftext|> <|im_start|> <|im_end|> <|im_start|>user <|im_start|>assistant <bos> <eos> "
    "<pad> <unk> <mask> <start_of_turn>user <end_of_turn> <unused0> <unused99> <unused100> "
    "<table> </table> <h1> <code> <repo_name> <reponame> <file_sep> <filename> "
    "<jupyter_start> <|fim_prefix|> "
    "<|fim_middle|> <|fim_suffix|> <|file_sep|> <|repo_name|> <tool_call> </tool_call> "
    "<|vision_start|> [multimodal] [PAD151665] <0x0A> <0xE4> <0xe4> <s> </s> "
    "<|im_ <|im_start|im_end|> <<|im_end|>> <|im_end|><|im_end|> <un<unk>k> ▁ ▁▁ ▁the Ġ Ġthe Ċ"
)
_SPACES = (
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n",
    "\t",
    "\t\t",
    "\r\n",
    " \n",
    "\n ",
    "\n    ",
)


def _number(draw: random.Random) -> str:
    value = draw.randrange(10 ** draw.randint(1, 18))
    forms = (
        f"{value}",
        f"{value:,}",
        f"-{value}",
        f"{value / 97:.3f}",
        f"0x{value:x}",
        f"{value}th",
    )
    return draw.choice(forms)


def _spaces(draw: random.Random) -> str:
    return "".join(draw.choice(" \n\t\r") * draw.randint(1, 40) for _ in range(draw.randint(1, 4)))


def _noise(draw: random.Random) -> str:
    """Random code points, surrogates left out."""
    top = draw.choice((0x7F, 0xFF, 0x2FFF, 0xFFFF, 0x10FFFF))
    points = (draw.randint(0, top) for _ in range(draw.randint(1, 12)))
    return "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)


def _mojibake(draw: random.Random) -> str:
    """Text that was decoded as something it is not."""
    text = "".join(draw.sample(_WORDS, 3)).encode()
    return text[draw.randrange(3) :].decode(draw.choice(("latin-1", "cp1252", "utf-8")), "replace")


def _piece(draw: random.Random) -> str:
    makers = (
        lambda: draw.choice(_WORDS),
        lambda: draw.choice(_WORDS),
        lambda: draw.choice(_CODE),
        lambda: draw.choice(_EMOJI),
        lambda: draw.choice(_CONTROLS),
        lambda: draw.choice(_SPECIALS),
        lambda: _number(draw),
        lambda: _spaces(draw),
        lambda: _noise(draw),
        lambda: _mojibake(draw),
        lambda: draw.choice("aA'1 \n.,!?<|>_-") * draw.randint(1, 40),
    )
    return draw.choice(makers)()


def varied_texts(count: int, *, seed: int) -> list[str]:
    """``count`` different strings: every ingredient alone, then random mixtures."""
    draw = random.Random(seed)
    alone = [*_WORDS, *_CODE, *_EMOJI, *_CONTROLS, *_SPECIALS, *_SPACES]
    texts = dict.fromkeys(alone)
    while len(texts) < count:
        parts = []
        for _ in range(draw.randint(1, 10)):
            parts += [_piece(draw), draw.choice(_SPACES)]
        texts["".join(parts)] = None
    return list(texts)[:count]
