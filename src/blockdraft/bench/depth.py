"""What drafting gained at one depth of context. Knows figures, no models."""

from dataclasses import dataclass
from typing import Any

from blockdraft.bench.gains import PromptRun, Summary, average, by_category, summarize

__all__ = ["Depth"]


@dataclass(frozen=True, slots=True)
class Depth:
    """The same prompts behind so much other text.

    Attributes:
        tokens: Tokens of that text.
        runs: Every prompt both ways.
    """

    tokens: int
    runs: tuple[PromptRun, ...]

    @property
    def categories(self) -> dict[str, Summary]:
        """The gains of each category."""
        return {name: summarize(runs) for name, runs in by_category(self.runs).items()}

    @property
    def overall(self) -> Summary:
        """The mean over categories."""
        return average(by_category(self.runs))

    @property
    def prompt_tokens(self) -> float:
        """Mean length of a prompt, that text included."""
        return sum(run.prompt_tokens for run in self.runs) / len(self.runs)

    def to_json(self) -> dict[str, Any]:
        """The figures for programs; the keys are stable."""
        return {
            "depth": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "overall": self.overall.to_json(),
            "categories": {name: one.to_json() for name, one in self.categories.items()},
        }
