"""The training loop: draw blocks, compute features, learn, look, save.

Knows parts, not files of models; what it writes lies in one folder. Every draw is keyed, so a run
that continues from a checkpoint makes the same steps as one that never stopped (unless its budget
is hours: then the learning rate follows the clock).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blockdraft.train.anchors import Blocks
from blockdraft.train.checkpoint import Checkpoint, Progress, save_checkpoint
from blockdraft.train.cost import StepCost, measure_gemm_rate
from blockdraft.train.evaluation import EvaluationResult, HeldOut
from blockdraft.train.interrupts import held_back
from blockdraft.train.loss import PositionStats, loss_normalizer
from blockdraft.train.metrics import MetricsLog, Window
from blockdraft.train.optimizer import RunOptimizer
from blockdraft.train.prepare import Parts, fingerprint
from blockdraft.train.processes import Processes
from blockdraft.train.schedule import learning_rate, progress
from blockdraft.train.settings import TrainingSettings
from blockdraft.train.shards import CorpusSequence
from blockdraft.train.soft_labels import SoftLabels
from blockdraft.weights.drafter_writer import write_drafter_folder

__all__ = ["CHECKPOINT", "DRAFTER", "METRICS", "Hooks", "Trainer"]

CHECKPOINT, DRAFTER, METRICS = "checkpoint.pt", "drafter", "metrics.jsonl"
"""What a run's folder holds: where to go on, the drafter so far, and one JSON object per line."""

_RATE_WINDOWS = 10


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a run meets around it.

    Attributes:
        reload: Gives the sequences of the next epoch; None repeats the first ones.
        working: Entered for every step; it may wait.
        notify: Gets one line of text now and then.
    """

    reload: Callable[[], Sequence[CorpusSequence]] | None = None
    working: Callable[[], AbstractContextManager[None]] = nullcontext
    notify: Callable[[str], None] = lambda _: None


class Trainer:
    """One run.

    Attributes:
        progress: How far it is.
    """

    def __init__(
        self,
        parts: Parts,
        settings: TrainingSettings,
        folder: Path,
        *,
        checkpoint: Checkpoint | None = None,
        processes: Processes | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Begin a run, or go on with one.

        Args:
            parts: What to train, on what.
            settings: Of the run.
            folder: For checkpoint, drafter and metrics.
            checkpoint: Where to go on; its weights are those of ``parts``.
            processes: The run's processes; None is this one alone.
            hooks: Into the surroundings; None has none.
        """
        self.progress = Progress()
        self._parts = parts
        self._settings = settings
        self._folder = folder
        self._processes = processes or Processes()
        self._hooks = hooks or Hooks()
        self._training = parts.training
        self._fingerprint = fingerprint(parts.training)
        self._dtype = parts.loss.head.weight.dtype
        self._optimizer = RunOptimizer(
            parts.drafter.parameters, settings.optimization, dtype=self._dtype
        )
        if checkpoint is not None:
            self._continue(checkpoint)
        self._cost = StepCost(
            parts.config,
            len(parts.vocabulary.token_ids),
            has_teacher=parts.teacher is not None,
        )
        self._metrics = MetricsLog(folder / METRICS, is_quiet=not self._processes.is_first)
        self._gemm_rate: tuple[int, float | None] = (0, None)
        self._held_out: HeldOut | None = None
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def run(self) -> EvaluationResult:
        """Train until the budget is used up; returns what the last evaluation found.

        A `KeyboardInterrupt` leaves a checkpoint before it goes on its way.
        """
        evaluation = self._evaluate()
        window = self._new_window()
        evaluated_s = saved_s = perf_counter()
        try:
            while self._share() < 1:
                self._step(window)
                if self.progress.steps % self._settings.log_every == 0:
                    self._log(window)
                    window = self._new_window()
                now = perf_counter()
                if self._processes.agree(now - saved_s >= self._settings.save_every_s):
                    self.save()
                    saved_s = now
                if self._processes.agree(now - evaluated_s >= self._settings.evaluation.every_s):
                    evaluation = self._evaluate()
                    evaluated_s = perf_counter()
        finally:
            # Also after Ctrl-C, which waits for the end of a step.
            self.save()
        return self._evaluate() if self.progress.steps else evaluation

    def save(self) -> None:
        """Write the checkpoint and the drafter."""
        if not self._processes.is_first:
            return
        parts = self._parts
        self._folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(
            self._folder / CHECKPOINT,
            Checkpoint(
                parameters=parts.drafter.parameters,
                optimizer=self._optimizer.state_dict(),
                progress=self.progress,
                draft_token_ids=torch.from_numpy(parts.vocabulary.token_ids),
                mask_token_id=parts.config.mask_token_id,
                fingerprint=self._fingerprint,
                settings=asdict(self._settings),
            ),
        )
        write_drafter_folder(self._folder / DRAFTER, parts.config, parts.drafter.export())

    # --- one step

    def _step(self, window: Window) -> None:
        with self._hooks.working(), held_back():
            self._whole_step(window)

    def _whole_step(self, window: Window) -> None:
        start = perf_counter()
        blocks = self._draw()
        features = self._features(blocks)
        window.feature_s += perf_counter() - start
        share = self._share()
        stats = self._gradient(blocks, features)
        norm = self._update(learning_rate(self._settings.optimization, share))
        seconds = perf_counter() - start
        done = self.progress
        done.steps += 1
        done.seconds += seconds
        done.label_rows += int(stats.labels.sum())
        done.tokens += sum(each.num_features for each in blocks)
        window.add(stats, blocks, seconds=seconds, gradient_norm=norm)

    def _draw(self) -> list[Blocks]:
        """Blocks of this process's sequences of the next step."""
        done, sampler = self.progress, self._settings.sampler
        order = self._epoch_order()
        chosen = order[
            done.position : done.position + self._settings.optimization.sequences_per_step
        ]
        mine = self._processes.share_of(chosen.tolist())
        blocks = [
            sampler.draw(self._training[index], epoch=done.epoch, index=index) for index in mine
        ]
        done.position += len(chosen)
        if done.position >= len(order):
            self._begin_epoch()
        return blocks

    def _begin_epoch(self) -> None:
        self.progress.epoch, self.progress.position = self.progress.epoch + 1, 0
        if self._hooks.reload is None:
            return
        before, self._training = len(self._training), self._hooks.reload()
        self._fingerprint = fingerprint(self._training)
        if self._processes.is_first and len(self._training) != before:
            self._notify(
                f"the corpus has grown from {before:,} to {len(self._training):,} sequences"
            )

    def _features(self, blocks: Sequence[Blocks]) -> list[Tensor]:
        # All but the last token: what any anchor of the sequence can see, so that it can be kept.
        return self._parts.features.extract([each.sequence.token_ids[:-1] for each in blocks])

    def _gradient(self, blocks: Sequence[Blocks], features: Sequence[Tensor]) -> PositionStats:
        """Gradient of the step's loss, in the parameters' ``grad``."""
        drafter, loss = self._parts.drafter, self._parts.loss
        labels = [self._parts.labels.of(each) for each in blocks]
        soft = self._soft_labels(blocks, features)
        objective = self._settings.objective
        total = sum(loss_normalizer(objective, rows) for rows, _ in labels)
        scale = 1 / max(self._processes.sum(total), 1.0)
        stats = PositionStats.zeros(self._settings.shape.block_size - 1)
        drafter.refresh()
        for part in _passes(blocks, self._settings.optimization.rows_per_pass):
            hidden = drafter.hidden(features[part], blocks[part])
            grads = []
            wanted = zip(hidden, labels[part], soft[part], strict=True)
            for rows, (tokens, before), likely in wanted:
                grad, found = loss.gradient(rows, tokens, before, scale, soft=likely)
                stats.add(found)
                grads.append(grad)
            torch.autograd.backward(hidden, grads)
        stats.weighted_loss *= scale
        return stats

    def _soft_labels(
        self, blocks: Sequence[Blocks], features: Sequence[Tensor]
    ) -> Sequence[SoftLabels | None]:
        teacher = self._parts.teacher
        if teacher is None:
            return [None] * len(blocks)
        return [teacher.of(each, part) for each, part in zip(features, blocks, strict=True)]

    def _update(self, rate: float) -> float:
        """Move the weights; returns the gradient's norm before it was clipped."""
        parameters = list(self._parts.drafter.parameters.values())
        self._processes.sum_gradients(parameters)
        clip = self._settings.optimization.clip
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
        self._optimizer.step(rate)
        return float(norm)

    # --- where the run is

    def _continue(self, checkpoint: Checkpoint) -> None:
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self.progress = checkpoint.progress
        if checkpoint.fingerprint != self._fingerprint:
            self._notify("the corpus has changed since the checkpoint: a new epoch begins")
            self.progress.epoch, self.progress.position = self.progress.epoch + 1, 0

    def _epoch_order(self) -> NDArray[np.int64]:
        epoch = self.progress.epoch
        if self._order is None or self._order[0] != epoch:
            random = np.random.default_rng((self._settings.seed, epoch))
            self._order = (epoch, random.permutation(len(self._training)))
        return self._order[1]

    def _share(self) -> float:
        done = self.progress
        epochs = done.epoch + done.position / len(self._training)
        share = progress(
            self._settings.budget, seconds=done.seconds, steps=done.steps, epochs=epochs
        )
        return self._processes.first_value(share)

    # --- what is seen of it

    def _new_window(self) -> Window:
        return Window(self._settings.shape.block_size - 1, self._cost, self._measured_rate())

    def _measured_rate(self) -> float:
        """Torch's rate now; measured anew now and then, since neighbours come and go."""
        age, rate = self._gemm_rate
        if rate is None or age >= _RATE_WINDOWS:
            rate = measure_gemm_rate(
                self._parts.config,
                len(self._parts.vocabulary.token_ids),
                device=self._parts.drafter.embedding.device,
                dtype=self._dtype,
            )
            age = 0
        self._gemm_rate = (age + 1, rate)
        return rate

    def _notify(self, line: str) -> None:
        if self._processes.is_first:
            self._hooks.notify(line)

    def _log(self, window: Window) -> None:
        share = self._share()
        rate = learning_rate(self._settings.optimization, share)
        record = window.record(self.progress, share=share, learning_rate=rate)
        self._metrics.write("train", record)
        self._notify(window.line(record))

    def _evaluate(self) -> EvaluationResult:
        if self._held_out is None:
            self._held_out = HeldOut(
                self._parts.held_out,
                self._parts.features,
                width=self._settings.shape.block_size,
                stride=self._settings.evaluation.stride,
            )
        parts = self._parts
        parts.drafter.refresh()
        found = self._held_out.evaluate(parts.drafter, parts.loss, parts.labels)
        self._notify(self._metrics.write_evaluation(found, self.progress))
        return found


def _passes(blocks: Sequence[Blocks], rows_per_pass: int) -> Iterator[slice]:
    """Neighbours whose rows are computed together."""
    start = rows = 0
    for index, each in enumerate(blocks):
        if index > start and rows + each.num_rows > rows_per_pass:
            yield slice(start, index)
            start, rows = index, 0
        rows += each.num_rows
    if start < len(blocks):
        yield slice(start, len(blocks))
