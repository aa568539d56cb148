"""What may be asked of one answer besides its prompt."""

from dataclasses import dataclass, field

from blockdraft.config import SamplingParams
from blockdraft.engine.rules import TokenRule

__all__ = ["AnswerSettings"]


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How one answer is written.

    Attributes:
        params: How tokens are picked; without a seed one is drawn.
        max_tokens: The most tokens to write; None is what the context has room for.
        stop: Strings that end the answer; they are not part of its text.
        choice: Index among several answers to one prompt; with the seed it decides the noise.
        draft: False writes this answer without drafts.
        draft_n_max: K of this answer; None is the drafter's.
        num_logprobs: How many of the most probable tokens to report with each token; None reports
            no log-probabilities at all.
        token_rule: Which tokens may come, a grammar's say; for this answer alone. None allows all.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choice: int = 0
    draft: bool = True
    draft_n_max: int | None = None
    num_logprobs: int | None = None
    token_rule: TokenRule | None = None
