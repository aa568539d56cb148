import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from blockdraft.errors import ConfigError
from blockdraft.train.prompts import OTHER, Prompt, read_prompts


def write(path: Path, *lines: Any) -> str:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return str(path)


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
def test_every_key_is_read(name: str, tmp_path: Path) -> None:
    line = {"id": "a", "category": "code", "source": "s", "prompt": "hi", "licence": "MIT"}
    spec = write(tmp_path / name, line | {"turns": ["hi", "and?"]}, "", line | {"id": "b"})
    file = read_prompts(spec)
    assert file.prompts == (
        Prompt("a", "code", "s", "hi", ("and?",), "MIT"),
        Prompt("b", "code", "s", "hi", (), "MIT"),
    )
    assert file.name == name
    assert file.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


def test_a_prompt_alone_is_enough(tmp_path: Path) -> None:
    spec = write(tmp_path / "p", {"prompt": "one"}, {"prompt": "two"}, {"prompt": "one"})
    one, two = read_prompts(spec).prompts
    assert (one.text, one.category, one.source) == ("one", OTHER, "")
    assert one.id != two.id


def test_line_separators_of_unicode_stay_in_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "p").write_text('{"prompt": "a\u2028b"}\r\n', "utf-8")
    assert read_prompts(str(tmp_path / "p")).prompts[0].text == "a\u2028b"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "p, line 2 is not JSON"),
        ("[" * 100_000, "p, line 2 is not JSON"),
        ("[]", "p, line 2 is not a JSON object"),
        ({"id": "a"}, "p, line 2 has no text under 'prompt'"),
        ({"prompt": " \n"}, "p, line 2 has no text under 'prompt'"),
        ({"prompt": "x", "id": 7}, "p, line 2 has 7 under 'id', which must be a text"),
        ({"prompt": "x", "category": ""}, "p, line 2 has '' under 'category'"),
        ({"prompt": "x", "turns": "x"}, "p, line 2 has no list of texts under 'turns'"),
        ({"prompt": "a\ud800"}, "p, line 2 has a surrogate at character 1"),
        ({"prompt": "x", "id": "first"}, "p, line 2: the id 'first' is taken"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_wrong_lines_are_named(line: Any, message: str, tmp_path: Path) -> None:
    spec = write(tmp_path / "p", {"prompt": "hi", "id": "first"}, line)
    with pytest.raises(ConfigError) as caught:
        read_prompts(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("p", b" \n", "has no prompts"),
        ("p", b'{"prompt": "\xff"}', "is not UTF-8 text: byte 12 is wrong"),
        ("p.gz", b"plain", "cannot be decompressed"),
        ("p.gz", gzip.compress(b"x" * 1000, mtime=0)[:-12], "cannot be decompressed"),
    ],
)
def test_wrong_files_are_named(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        read_prompts(str(tmp_path / name))


@pytest.mark.parametrize(("name", "what"), [("none", "does not exist"), ("", "is not a file")])
def test_missing_files_are_named(name: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        read_prompts(str(tmp_path / name))


def test_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train.jsonl", {"prompt": "hi"})
    asked = []

    def resolve(spec: str) -> Path:
        asked.append(spec)
        return tmp_path / "train.jsonl"

    monkeypatch.setattr("blockdraft.train.prompts.resolve_dataset", resolve)
    assert read_prompts("hf:o/d:train").prompts[0].text == "hi"
    assert asked == ["hf:o/d:train"]
