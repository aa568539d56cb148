"""How a session drafts."""

from dataclasses import dataclass, replace

from blockdraft.config.ranges import check
from blockdraft.errors import ConfigError

__all__ = ["DRAFT_POLICIES", "DRAFT_TYPES", "NO_CORPUS", "DraftConfig"]

DRAFT_TYPES = ("none", "ngram", "suffix", "dflash", "draft-simple")
"""Ways to draft; "none" decodes plainly."""

_NETWORKS = {"dflash", "draft-simple"}
"""Those that need a drafter's file."""

_FREE = "ngram,suffix"
"""Those that are always at hand."""

DRAFT_POLICIES = ("auto", "fixed")
"""Who decides how much is drafted."""

NO_CORPUS = "none"
"""A suffix corpus that is none."""

_MAX_DRAFT_TOKENS = 63


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How a session drafts; names are those of the flags. None of it changes a token.

    Attributes:
        spec_type: Some of `DRAFT_TYPES`, separated by commas; None is all at hand: "ngram",
            "suffix" and what the drafter is, where there is one: "dflash", or "draft-simple" for
            a model. Under the policy "fixed" it is the drafter alone, or "ngram".
        drafter: A drafter's file or folder, or the file of a smaller model; None is the drafter
            that comes with blockdraft for the target.
        policy: One of `DRAFT_POLICIES`: "auto" drafts only what pays, "fixed" drafts in every
            round as much as it may.
        draft_n_max: K, the most draft tokens of a chain; None is what the drafter's block has room
            for, and 7 for the others.
        draft_tree: The most tokens of a tree of drafts; 0 drafts chains. None is 15 where only
            what pays is verified, and otherwise 0.
        draft_p_min: A draft less probable than this ends a proposal; 0 is off.
        suffix_cache: File of earlier answers that "suffix" looks into and adds to; None for none.
        suffix_corpus: File of answers that "suffix" looks into as well; `NO_CORPUS` for none. None
            is what comes with blockdraft for the target.
        trace: File that gets every decision of the policy; None for none.
    """

    spec_type: str | None = None
    drafter: str | None = None
    policy: str = "auto"
    draft_n_max: int | None = None
    draft_tree: int | None = None
    draft_p_min: float = 0.0
    suffix_cache: str | None = None
    suffix_corpus: str | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        """Check every setting, and that they do not contradict each other.

        Raises:
            ConfigError: A setting is out of range; the message names it.
        """
        kinds = self._kinds
        unknown = [kind for kind in kinds if kind not in DRAFT_TYPES]
        rule = f"one of {', '.join(DRAFT_TYPES)}"
        check(not unknown, "spec_type", ",".join(unknown), rule)
        check(len(set(kinds)) == len(kinds), "spec_type", self.spec_type, "without repetitions")
        is_alone = len(kinds) == 1 or "none" not in kinds
        check(is_alone, "spec_type", self.spec_type, "none alone, or some others")
        check(self.policy in DRAFT_POLICIES, "policy", self.policy, "auto or fixed")
        wanted, most = self.draft_n_max, _MAX_DRAFT_TOKENS
        in_range = wanted is None or 1 <= wanted <= most
        check(in_range, "draft_n_max", wanted, f"in [1, {most}]")
        in_range = self.draft_tree is None or 0 <= self.draft_tree <= most
        check(in_range, "draft_tree", self.draft_tree, f"in [0, {most}]")
        check(0 <= self.draft_p_min <= 1, "draft_p_min", self.draft_p_min, "in [0, 1]")
        self._check_together(kinds)

    def _check_together(self, kinds: tuple[str, ...]) -> None:
        has_network = not kinds or not _NETWORKS.isdisjoint(kinds) or kinds == ("none",)
        if kinds and _NETWORKS.issubset(kinds):
            raise ConfigError(f"spec_type is {self.spec_type}, but one network drafts at a time")
        if "draft-simple" in kinds and self.drafter is None:
            raise ConfigError(f"spec_type is {self.spec_type}, but no model that drafts is given")
        if self.drafter is not None and not has_network:
            raise ConfigError(
                f"spec_type is {self.spec_type}, which does not use the drafter {self.drafter}"
            )
        if kinds == ("ngram",) and self.draft_p_min > 0:
            raise ConfigError(
                f"draft_p_min is {self.draft_p_min}, but drafts of ngram have no probability"
            )
        corpus = None if self.suffix_corpus == NO_CORPUS else self.suffix_corpus
        for name, file in (("suffix_cache", self.suffix_cache), ("suffix_corpus", corpus)):
            if file is not None and not self._has_suffix:
                raise ConfigError(
                    f"{name} is {file}, but spec_type is {self.spec_type or 'not given'}; only"
                    " suffix looks into it"
                )
        if self.draft_tree and (not has_network or "draft-simple" in kinds):
            raise ConfigError(
                f"draft_tree is {self.draft_tree}, but spec_type is {self.spec_type}; only dflash"
                " drafts trees"
            )
        if self.trace is not None and (self.policy == "fixed" or kinds == ("none",)):
            decided = "policy is fixed" if self.policy == "fixed" else "spec_type is none"
            raise ConfigError(
                f"trace is {self.trace}, but {decided}: there is no decision to write"
            )
        if self.policy == "fixed" and len(kinds) > 1:
            raise ConfigError(
                f"the policy is fixed, which takes one spec_type, and spec_type is {self.spec_type}"
            )

    @property
    def _kinds(self) -> tuple[str, ...]:
        return tuple(self.spec_type.split(",")) if self.spec_type is not None else ()

    @property
    def _has_suffix(self) -> bool:
        return "suffix" in self._kinds or (self.spec_type is None and self.policy == "auto")

    @property
    def _wants_drafter(self) -> bool:
        return self.drafter is None and (self.spec_type is None or "dflash" in self._kinds)

    @property
    def is_open(self) -> bool:
        """Whether the target decides who drafts or what is looked into: `settled` closes it."""
        return self._wants_drafter or (self.suffix_corpus is None and self._has_suffix)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of `DRAFT_TYPES` that settings which are not open come to; () for "none"."""
        assert not self._wants_drafter, "these settings depend on the target"
        if self.spec_type is None:
            return self.drafts_with("dflash")._kinds
        return () if self.spec_type == "none" else self._kinds

    @property
    def needs_drafter(self) -> bool:
        """Whether settings that are not open draft with a file."""
        return not _NETWORKS.isdisjoint(self.kinds)

    def drafts_with(self, kind: str) -> "DraftConfig":
        """These settings where the drafter turned out to be of ``kind``.

        Raises:
            ConfigError: They do not fit it.
        """
        if self.spec_type is not None:
            return self
        return replace(self, spec_type=f"{_FREE},{kind}" if self.policy == "auto" else kind)

    def alone(self, kind: str) -> "DraftConfig":
        """These settings, which are not open, for one of their kinds; without a trace.

        What only others use is left out.
        """
        is_network, is_suffix = kind in _NETWORKS, kind == "suffix"
        return replace(
            self,
            spec_type=kind,
            drafter=self.drafter if is_network else None,
            draft_tree=self.draft_tree if kind == "dflash" else None,
            draft_p_min=0.0 if kind == "ngram" else self.draft_p_min,
            suffix_cache=self.suffix_cache if is_suffix else None,
            suffix_corpus=self.suffix_corpus if is_suffix else None,
            trace=None,
        )

    def settled(self, drafter: str | None, suffix_corpus: str | None = None) -> "DraftConfig":
        """These settings for a target, with nothing left open.

        Args:
            drafter: What comes with blockdraft for the target; None where nothing does.
            suffix_corpus: The same.

        Raises:
            ConfigError: They ask for a drafter and there is none.
        """
        settled = self
        if self._wants_drafter and drafter is not None:
            settled = replace(settled, drafter=drafter)
        elif self._wants_drafter and self.spec_type is None:
            settled = replace(settled, spec_type=_FREE if self.policy == "auto" else "ngram")
        elif self._wants_drafter:
            raise ConfigError(
                f"spec_type is {self.spec_type}, but no drafter is given, and none comes with"
                " blockdraft for this target"
            )
        if settled.is_open:
            settled = replace(settled, suffix_corpus=suffix_corpus or NO_CORPUS)
        return settled
