"""A drafter network, loaded: two recorded passes over the K/V that a sequence keeps for it.

Embedding and head are the target's own packed memory unless the file brings its own. Knows no
requests and no text; K/V pages come with each batch.
"""

import numpy as np
from numpy.typing import NDArray

from blockdraft.errors import ConfigError
from blockdraft.kv_cache import KVLayout
from blockdraft.models.dflash import build_dflash
from blockdraft.models.target import TargetModel
from blockdraft.ops.batch import Batch, Candidates
from blockdraft.ops.native_drafter import NativeDrafterOps
from blockdraft.ops.protocol import Linear
from blockdraft.weights.drafter import DrafterFile, check_fits
from blockdraft.weights.packed import PackedWeights, pack_rows
from blockdraft.weights.tensors import EMBEDDING, HEAD, TensorFile

__all__ = ["DrafterModel", "load_drafter"]


class DrafterModel:
    """One set of packed weights with its passes; runs on the target's threads.

    Attributes:
        config: Shape of the network.
        layout: Shape of its K/V.
        max_rows: Most rows of one pass.
        weight_bytes: Packed size of the matrices that are not the target's.
    """

    def __init__(
        self,
        file: DrafterFile,
        target: TargetModel,
        *,
        target_file: TensorFile | None,
        top_k: int = 1,
    ) -> None:
        """Pack the weights of an open file and record both passes; see `load_drafter`."""
        config = self.config = file.config
        self.layout = KVLayout.from_config(config)
        self.max_rows = target.max_rows
        weights = PackedWeights(file, target.num_threads)
        weights.load_all(name for name, info in file.tensors.items() if len(info.shape) == 2)
        self.weight_bytes = weights.nbytes
        head, self._head_tokens = target.head, file.vocab_map()
        if config.head_token_ids is not None:
            assert target_file is not None, "rows of the target's head are read from its file"
            name = EMBEDDING if target.config.tied_head else HEAD
            head = Linear(pack_rows(target_file, name, config.head_token_ids))
            self._head_tokens = np.array(config.head_token_ids, np.int32)
            self.weight_bytes += head.weight.nbytes
        network = build_dflash(config, weights, embedding=target.embedding, head=head)
        inject = self._new_ops(target)
        network.inject(inject)
        self._injection = inject.finish_injection(target.pool)
        draft = self._new_ops(target)
        out = network.draft(draft)
        self._draft = draft.finish_draft(target.pool, out.logits, out.selection, top_k)

    def inject(self, batch: Batch) -> None:
        """Store keys and values of the rows in `features`; token ids are not looked at."""
        self._injection.run(batch)

    @property
    def features(self) -> NDArray[np.float32]:
        """Input of the next `inject`, float32 [max_rows, feature_size], a view."""
        return self._injection.features

    def draft(self, batch: Batch) -> Candidates:
        """Candidates of the rows with logits, as the target's tokens; a view until the next."""
        return self._draft.run(batch)

    def _new_ops(self, target: TargetModel) -> NativeDrafterOps:
        return NativeDrafterOps(
            self.max_rows,
            self.config.windowed_layers,
            isa=target.isa,
            head_tokens=self._head_tokens,
        )


def load_drafter(
    file: DrafterFile,
    target: TargetModel,
    *,
    target_file: TensorFile | None = None,
    top_k: int = 1,
) -> DrafterModel:
    """The network of an open drafter file, on the threads of ``target``.

    Args:
        file: Open until this returns.
        target: What it drafts for, loaded with the taps of the file's configuration.
        target_file: Where the target came from, open; needed by a drafter that uses some rows of
            its head.
        top_k: Candidates per row of a network without a selector of its own.

    Raises:
        ConfigError: It was made for another target, or the target has other taps.
        FileFormatError: The file is damaged.
        CapacityError: There is no memory for it.
    """
    check_fits(file.config, target.config)
    if file.config.target_layer_ids != target.taps:
        raise ConfigError(
            f"{file.path}: reads target layers {list(file.config.target_layer_ids)}; the target"
            f" was loaded with {list(target.taps)}"
        )
    return DrafterModel(file, target, target_file=target_file, top_k=top_k)
