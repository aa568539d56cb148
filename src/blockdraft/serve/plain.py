"""Small endpoints: the model, text to ids and back, health."""

from dataclasses import asdict
from typing import Any

from pydantic import Field

from blockdraft.serve.failure import ApiError
from blockdraft.serve.fields import Strict
from blockdraft.serve.service import Service

__all__ = ["DetokenizeRequest", "TokenizeRequest", "detokenize", "health", "model_card", "tokenize"]


class TokenizeRequest(Strict):
    """Body of ``/tokenize``."""

    content: str
    add_special: bool = Field(False, description="add the tokens that begin and end a text")
    parse_special: bool = Field(True, description="control tokens in the text are those tokens")
    with_pieces: bool = Field(False, description="give the text of each token too")


class DetokenizeRequest(Strict):
    """Body of ``/detokenize``."""

    tokens: list[int] = Field(fail_fast=True)


def tokenize(fields: TokenizeRequest, service: Service) -> dict[str, Any]:
    """Ids of a text, or with their pieces; a piece that is no text is a list of bytes."""
    codec = service.codec
    ids = codec.encode(
        fields.content, add_special=fields.add_special, parse_special=fields.parse_special
    )
    if not fields.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": idx, "piece": _piece(codec.token_bytes(idx))} for idx in ids]}


def detokenize(fields: DetokenizeRequest, service: Service) -> dict[str, Any]:
    """The text of ids, control tokens included."""
    return {"content": service.codec.decode(fields.tokens, skip_special=False)}


def model_card(service: Service, *, since_s: int) -> dict[str, Any]:
    """What ``/v1/models`` says of the model, and what requests get that do not say."""
    engine = service.session.engine
    config = engine.target.config
    settings = service.settings
    defaults = {**asdict(settings.params), "max_tokens": settings.max_tokens}
    return {
        "id": settings.model_id,
        "object": "model",
        "created": since_s,
        "owned_by": "blockdraft",
        "meta": {
            "name": config.name,
            "architecture": config.architecture,
            "n_vocab": config.vocab_size,
            "n_ctx": engine.context_length,
            "n_ctx_train": config.context_length,
            "drafter": service.drafter_name,
            "defaults": {key: value for key, value in defaults.items() if value or value == 0},
        },
    }


def health(service: Service) -> dict[str, Any]:
    """Whether the server takes requests, and what it is doing.

    Raises:
        ApiError: It does not (503).
    """
    engine = service.engine
    if not engine.is_alive:
        raise ApiError(503, "the engine does not run", headers={"Retry-After": "5"})
    running = engine.state.num_running
    return {
        "status": "ok",
        "running": running,
        "waiting": max(engine.num_open - running, 0),
    }


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
