"""Chat messages to the text a model was trained on, by the template in its file.

A template is code from a stranger: it runs in a sandbox with limits on time, memory and output.
Knows no tokens: their texts come in as plain strings.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockdraft.tokenizer.sandbox import Sandbox

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """One model's chat template; safe to use from several threads.

    Attributes:
        source: Jinja source.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        token_texts: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        time_limit_s: float = 2.0,
    ) -> None:
        """Wrap ``source``; it is not looked at before the first `render`.

        Args:
            source: Jinja source.
            name: The model's name, for messages.
            token_texts: Values of ``bos_token``, ``eos_token`` and the like.
            now: The clock behind ``strftime_now``.
            time_limit_s: How long one rendering may take.
        """
        self.source = source
        self._label = f"the chat template of {name or 'the model'}"
        self._token_texts = dict(token_texts)
        self._now = now
        self._time_limit_s = time_limit_s
        self._sandbox: Sandbox | None = None
        self._lock = Lock()

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The conversation as text, to be encoded with ``parse_special=True``.

        The text often starts with the BOS token already; then ``add_special`` would double it.

        Args:
            messages: Each with a "role" and mostly a "content".
            add_generation_prompt: End with the words that make the model answer.
            tools: Descriptions of functions the model may call.
            variables: More names that this template knows, such as ``enable_thinking``.

        Raises:
            ConfigError: The template refuses the messages.
            FileFormatError: The template is damaged, fails, or goes beyond a limit.
        """
        values = {
            **self._token_texts,
            **(variables or {}),
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            if self._sandbox is None:
                # Jinja takes longer to import than a base model's whole tokenizer.
                from blockdraft.tokenizer.sandbox import Sandbox

                self._sandbox = Sandbox(
                    self.source, label=self._label, now=self._now, time_limit_s=self._time_limit_s
                )
            return self._sandbox.render(values)
