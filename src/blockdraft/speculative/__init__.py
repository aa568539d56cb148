"""Drafting: who proposes tokens, which of them stay, and what that gained."""

from blockdraft.speculative.autoregressive import AutoregressiveDrafter
from blockdraft.speculative.controller import Controller
from blockdraft.speculative.dflash import DFlashDrafter
from blockdraft.speculative.drafter import CommittedRows, Drafter, DraftTask
from blockdraft.speculative.ngram import NgramDrafter
from blockdraft.speculative.stats import RoundCounter, SpeculationStats
from blockdraft.speculative.suffix import DraftLimits, SuffixDrafter
from blockdraft.speculative.suffix_cache import SuffixCache, Vocabulary
from blockdraft.speculative.suffix_corpus import open_suffix_corpus, write_suffix_corpus
from blockdraft.speculative.types import NO_DRAFTS, Proposal, Verdict
from blockdraft.speculative.verify import verify

__all__ = [
    "NO_DRAFTS",
    "AutoregressiveDrafter",
    "CommittedRows",
    "Controller",
    "DFlashDrafter",
    "DraftLimits",
    "DraftTask",
    "Drafter",
    "NgramDrafter",
    "Proposal",
    "RoundCounter",
    "SpeculationStats",
    "SuffixCache",
    "SuffixDrafter",
    "Verdict",
    "Vocabulary",
    "open_suffix_corpus",
    "verify",
    "write_suffix_corpus",
]
