"""The OpenAI wire format over HTTP: many clients, one session, one engine thread.

The only door to ``fastapi``, ``uvicorn``, ``pydantic`` and ``prometheus_client``. Async ends here:
everything below is synchronous and runs on one thread of its own.
"""

from blockdraft.serve.app import create_app
from blockdraft.serve.server import serve
from blockdraft.serve.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "serve"]
