"""A tiny model whose template shows tools, and that writes what a test tells it to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockdraft.config import DraftConfig
from blockdraft.engine import Engine
from blockdraft.session import Session
from tests.serving import ScriptSampler

__all__ = ["ADD", "CALL", "SUB", "ToldSession", "tool_session"]

# As in Qwen's: tools before the turns, calls of earlier turns as JSON.
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
SUB: dict[str, Any] = {
    "type": "function",
    "function": {"name": "sub", "parameters": {"type": "object"}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def tool_session(tiny_model: Callable[..., Path]) -> Session:
    """A model that picks its own tokens, which are noise."""
    path = tiny_model(metadata={"tokenizer.chat_template": TEMPLATE})
    return Session.load(path, num_threads=1, drafting=DraftConfig("none"))


class _Told(ScriptSampler):
    """Writes a script after whatever prompt, once its length is known."""

    def __init__(self) -> None:
        super().__init__([], num_prompt=0)

    def tell(self, token_ids: list[int]) -> None:
        self._token_ids, self._num_prompt = token_ids, -1

    def pick(self, logits: Any, rows: Any) -> list[int]:
        if self._num_prompt < 0:
            self._num_prompt = rows[0].position
        return super().pick(logits, rows)


class ToldSession(Session):
    """The same model, but it writes what it is told to; one answer at a time."""

    def __init__(self, session: Session) -> None:
        self._sampler = _Told()
        engine = Engine(session.engine.target, max_cache_bytes=1 << 24, sampler=self._sampler)
        super().__init__(engine, session.tokenizer)

    def tell(self, text: str) -> None:
        """Let the next answer be ``text``."""
        ids = self.tokenizer.encode(text, add_special=False, parse_special=False)
        self._sampler.tell([*ids, min(self.tokenizer.eos_ids)])
