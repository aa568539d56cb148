"""What a caller decides about one request's tokens: when it ends and which may come next.

Knows ids only. The rules are code of the caller: an exception in one ends its own request and no
other, so that neighbours of a broken grammar go on.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError

__all__ = ["RequestRules", "StopRule", "TokenRule"]


class StopRule(Protocol):
    """Decides after each written token whether the output ends with it."""

    def __call__(self, token_id: int, /) -> bool:
        """Whether ``token_id`` is the last one; asked once per token, in order."""
        ...


class TokenRule(Protocol):
    """Decides before each token which ones may come."""

    def __call__(self, output: NDArray[np.int32], /) -> NDArray[np.uint32]:
        """Bit ``id % 32`` of word ``id // 32`` for each allowed id; at least one is set.

        ``output`` is all that was written so far, accepted drafts included. Each call's output
        begins with that of the call before.
        """
        ...


class RequestRules:
    """The rules of one request, and what went wrong in them.

    Attributes:
        error: What a rule raised; None while all is well.
    """

    def __init__(self, stop_rule: StopRule | None, token_rule: TokenRule | None) -> None:
        self.error: Exception | None = None
        self._stop_rule = stop_rule
        self._token_rule = token_rule
        self._failed_at = 0

    def allowed(self, output: NDArray[np.int32]) -> NDArray[np.uint32] | None:
        """The mask of the token after ``output``; None allows all."""
        if self._token_rule is None or self.error is not None:
            return None
        num_output = len(output)
        try:
            mask = self._token_rule(output)
            if not mask.any():
                raise ConfigError(f"no token is allowed after {num_output} tokens of the answer")
        except Exception as error:  # noqa: BLE001 - the caller's code: its request alone pays
            self._fail(error, num_output)
            return None
        return mask

    def ends_with(self, token_id: int) -> bool:
        """Whether the output ends with ``token_id``; look at ``error`` afterwards."""
        if self._stop_rule is None:
            return False
        try:
            return self._stop_rule(token_id)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error, 0)
            return True

    def has_failed(self, num_output: int) -> bool:
        """Whether no token may follow ``num_output`` tokens, since a rule failed there."""
        return self.error is not None and num_output >= self._failed_at

    def _fail(self, error: Exception, num_output: int) -> None:
        self.error = error
        self._failed_at = num_output
