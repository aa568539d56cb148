"""The items of a response while they are written, and the events that tell of them.

Knows no jobs and no HTTP.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from blockdraft.serve.calls import ToolCallDelta

__all__ = ["Output"]

Event = dict[str, Any]


class Output:
    """Text and calls of one answer, as items.

    Every method gives the events of what it changed, to be read to their end.

    Attributes:
        items: What there is so far.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item is a message that may grow

    def text(self, delta: str, logprobs: Sequence[Any] = ()) -> Iterator[Event]:
        """Text, at the end of the message that is being written."""
        if not self._is_open:
            yield from self._open()
        part = self.items[-1]["content"][0]
        part["text"] += delta
        part["logprobs"] += logprobs
        if delta or logprobs:
            yield self._part_event("output_text.delta", delta=delta, logprobs=list(logprobs))

    def call(self, call: ToolCallDelta) -> Iterator[Event]:
        """A whole call, as an item of its own."""
        yield from self._close("completed")
        item = {
            "id": _fresh("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        self.items.append(item)
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._item_event("added", begun)
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        kind = "response.function_call_arguments"
        yield {"type": f"{kind}.delta", **place, "delta": call.arguments}
        yield {"type": f"{kind}.done", **place, "name": call.name, "arguments": call.arguments}
        yield self._item_event("done", item)

    def end(self, status: str) -> Iterator[Event]:
        """The end of the answer; one without a token still has a message.

        Args:
            status: "completed" or "incomplete".
        """
        if not self.items:
            yield from self._open()
        yield from self._close(status)

    def _open(self) -> Iterator[Event]:
        item = {
            "id": _fresh("msg"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        yield self._item_event("added", item, index=len(self.items))
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        self.items.append({**item, "content": [part | {"logprobs": []}]})
        self._is_open = True
        yield self._part_event("content_part.added", part=part | {"logprobs": []})

    def _close(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        part = item["content"][0]
        yield self._part_event("output_text.done", text=part["text"], logprobs=part["logprobs"])
        yield self._part_event("content_part.done", part=part)
        yield self._item_event("done", item)

    def _item_event(self, what: str, item: dict[str, Any], index: int | None = None) -> Event:
        index = len(self.items) - 1 if index is None else index
        return {"type": f"response.output_item.{what}", "output_index": index, "item": item}

    def _part_event(self, what: str, **more: Any) -> Event:
        return {
            "type": f"response.{what}",
            "item_id": self.items[-1]["id"],
            "output_index": len(self.items) - 1,
            "content_index": 0,
            **more,
        }


def _fresh(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"
