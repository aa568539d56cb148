"""What drafted rows should give: true tokens as rows of the training head.

Knows no network.
"""

import torch
from torch import Tensor

from blockdraft.train.anchors import Blocks
from blockdraft.train.vocabulary import DraftVocabulary

__all__ = ["BlockLabels"]


class BlockLabels:
    """Labels under one draft vocabulary."""

    def __init__(
        self, vocabulary: DraftVocabulary, vocab_size: int, device: torch.device | str
    ) -> None:
        """Take the vocabulary.

        Args:
            vocabulary: Rows of the head.
            vocab_size: Tokens of the target.
            device: Of the labels.
        """
        self._rows = torch.from_numpy(vocabulary.row_of(vocab_size))
        self._device = device

    def of(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Head rows of the true tokens, and the true tokens before them, each "A B-1".

        A row is negative behind the end of the sequence and for a token that is not drafted.
        """
        tokens = torch.from_numpy(blocks.tokens())
        wanted = tokens[:, 1:]
        rows = torch.where(wanted >= 0, self._rows[wanted.clamp_min(0)], -1)
        before = tokens[:, :-1].clamp_min(0)
        return rows.to(self._device), before.to(self._device)
