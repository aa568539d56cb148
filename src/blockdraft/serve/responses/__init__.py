"""``/v1/responses``: the same conversations as chats, in the shapes of OpenAI's Responses API."""

from blockdraft.serve.responses.request import ResponsesRequest
from blockdraft.serve.responses.writer import ResponseWriter

__all__ = ["ResponseWriter", "ResponsesRequest"]
