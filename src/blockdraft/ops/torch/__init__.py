"""The operations on torch tensors: the oracle of the native core, and what training runs on.

Computes in any float dtype and differentiably: nothing is written in place. Follows
docs/numerics.md in exact arithmetic; the two roundings of the native core that are larger than
float32's, int8 activations and f16 keys and values, are options. Knows no architecture and no
file.
"""

from blockdraft.ops.torch.batch import Place, TorchContext, TorchPass
from blockdraft.ops.torch.operations import Rows, TorchOps
from blockdraft.ops.torch.selection import select_candidates, transition_scores
from blockdraft.ops.torch.training import BeforeHead, TrainingOps
from blockdraft.ops.torch.weights import ArraySource, TorchMatrix, TorchWeights

__all__ = [
    "ArraySource",
    "BeforeHead",
    "Place",
    "Rows",
    "TorchContext",
    "TorchMatrix",
    "TorchOps",
    "TorchPass",
    "TorchWeights",
    "TrainingOps",
    "select_candidates",
    "transition_scores",
]
