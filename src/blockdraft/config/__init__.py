"""Frozen configuration: what networks look like, how tokens are picked and drafted.

Made once at the edge, passed whole, never edited. Knows no files, tensors or text.
"""

from blockdraft.config.drafting import DRAFT_POLICIES, DRAFT_TYPES, NO_CORPUS, DraftConfig
from blockdraft.config.networks import (
    Activation,
    ConvConfig,
    DrafterConfig,
    ModelConfig,
    RopeConfig,
    SelectorConfig,
)
from blockdraft.config.sampling import SamplingParams

__all__ = [
    "DRAFT_POLICIES",
    "DRAFT_TYPES",
    "NO_CORPUS",
    "Activation",
    "ConvConfig",
    "DraftConfig",
    "DrafterConfig",
    "ModelConfig",
    "RopeConfig",
    "SamplingParams",
    "SelectorConfig",
]
