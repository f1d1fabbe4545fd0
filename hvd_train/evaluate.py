"""Evaluates every example of a split exactly once, shared out over all ranks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from hvd_train import dist
from hvd_train.data.sharding import even_split
from hvd_train.data.source import Batch, Source
from hvd_train.dist import World
from hvd_train.task import TaskModel

BATCH = 256
"""Examples a rank and forward pass; it changes the speed, not the result."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sums over a whole split."""

    examples: int
    correct: int
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of examples whose whole label is right."""
        return self.correct / self.examples


class Evaluator:
    """Holds the compiled forward pass, so that it is traced once a run."""

    def __init__(self, task_model: TaskModel, source: Source, world: World) -> None:
        self._task_model = task_model
        self._source = source
        self._world = world
        self._forward = tf.function(self._outputs_and_loss, reduce_retracing=True)

    def run(self, stops: Callable[[], bool]) -> Evaluation | None:
        """Returns the sums over the split; a collective.

        Args:
            stops: whether this rank is asked to stop. If one is in the middle, there is no result.
        """
        sums, is_cut = np.zeros(3), False
        with dist.agreed(self._world):
            for batch in self._own_batches():
                if is_cut := stops():
                    break
                inputs = self._task_model.eval_inputs(batch.images)
                outputs, loss = self._forward(inputs, batch.labels)
                correct = self._task_model.correct(outputs.numpy(), batch.labels)
                sums += [len(batch.ids), correct.sum(), float(loss)]
        examples, correct_sum, loss_sum, cut = dist.sum_over_ranks(np.append(sums, is_cut))
        if cut:
            return None
        return Evaluation(round(examples), round(correct_sum), loss_sum / examples)

    def _own_batches(self) -> Iterator[Batch]:
        share = even_split(len(self._source), rank=self._world.rank, size=self._world.size)
        for start in share[::BATCH]:
            yield self._source.gather(np.arange(start, min(start + BATCH, share.stop)))

    def _outputs_and_loss(
        self, inputs: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self._task_model.model(inputs, training=False)
        losses = self._task_model.losses(outputs, labels)
        return outputs, tf.reduce_sum(tf.cast(losses, tf.float64))
