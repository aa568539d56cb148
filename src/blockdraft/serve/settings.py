"""How a server listens, whom it answers and what it refuses. Knows no HTTP and no model."""

import ipaddress
from dataclasses import dataclass, field

from blockdraft.config import SamplingParams
from blockdraft.errors import ConfigError

__all__ = ["ServeSettings", "is_loopback"]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of one server.

    Attributes:
        model_id: The name that clients see and may give.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        api_key: What clients must know; None asks for nothing.
        open_to_all: Allows an address beyond this machine without a key.
        allowed_hosts: Names, beside those of ``host``, that a ``Host`` header may have.
        cors_origins: Web pages of these origins may use the server; "*" is every one.
        params: Sampling parameters where a request says nothing.
        max_tokens: Limit of an answer whose request says nothing; None is the context's.
        stop: Stop strings beside the request's own.
        max_running: Answers written at once, memory permitting.
        max_waiting: Answers that may wait beyond those; more are refused.
        max_body_bytes: Largest request body.
        body_s: Seconds that a client has to send its body.
        drain_s: Seconds that running answers have to end after SIGTERM.
    """

    model_id: str
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    open_to_all: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    max_running: int = 8
    max_waiting: int = 64
    max_body_bytes: int = 8 << 20
    body_s: float = 30.0
    drain_s: float = 60.0

    def __post_init__(self) -> None:
        """Check what would be dangerous or impossible.

        Raises:
            ConfigError: A setting is out of range, or the server would be open to strangers.
        """
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"port is {self.port}; it must be in [0, 65535]")
        if self.max_waiting < 0:
            raise ConfigError(f"max_waiting is {self.max_waiting}; it must be at least 0")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty")
        for origin in self.cors_origins:
            if origin != "*" and (origin.count("://") != 1 or origin.endswith("/")):
                raise ConfigError(f"CORS origin {origin} must look like https://example.org")
        if not (is_loopback(self.host) or self.api_key or self.open_to_all):
            raise ConfigError(
                f"host {self.host} can be reached from other machines, so an API key is needed;"
                " --no-api-key does without"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address or name."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
