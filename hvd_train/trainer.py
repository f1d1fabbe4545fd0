"""A model with its optimizer and moving averages, and the compiled step that updates them.

Every rank computes the gradient of its share of the global batch; one grouped allreduce sums them,
and every rank applies the same update.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from data_tools.errors import CONFIG, DataError
from hvd_train import dist, optim
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import TrainConfig
from hvd_train.data.source import Batch
from hvd_train.task import TaskModel


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one update tells.

    Attributes:
        loss: before the update, averaged over the global batch, with the penalty of weight decay;
            the same on every rank.
        gradient_norm: length of the whole gradient that was applied; the same on every rank.
        votes: of the ranks, summed.
        outputs: this rank's.
    """

    loss: float
    gradient_norm: float
    votes: np.ndarray
    outputs: np.ndarray


class Trainer:
    """A model with its optimizer and moving averages, and the step that updates them."""

    def __init__(self, task_model: TaskModel, config: TrainConfig) -> None:
        assert config.optim.global_batch is not None
        self.task_model = task_model
        self._global_batch = config.optim.global_batch
        self._weight_decay = config.optim.weight_decay
        self._dtype = config.run.dtype
        self._model = task_model.model
        self._optimizer = optim.build_optimizer(config.optim)
        self._optimizer.build(self._model.trainable_variables)
        self.ema = optim.MovingAverage(self._model.variables)
        self._compiled_update = tf.function(self._update)

    def step(
        self, batch: Batch, *, rate: float, decay: float, votes: Sequence[float] = ()
    ) -> StepResult:
        """Trains on this rank's share of a global batch; a collective.

        Args:
            batch: this rank's share.
            rate: the learning rate.
            decay: of the moving averages.
            votes: numbers to sum over the ranks, of the same length at each step; they travel with
                the gradients, so that agreeing costs no collective of its own.
        """
        told, outputs = self._compiled_update(
            batch.images,
            batch.labels,
            tf.constant(rate, self._dtype),
            tf.constant(decay, self._dtype),
            tf.constant(votes, self._dtype, shape=[len(votes)]),
        )
        loss, norm, *sums = told.numpy()  # one copy from the device
        return StepResult(float(loss), float(norm), np.asarray(sums), outputs.numpy())

    def _update(
        self, images: Any, labels: Any, rate: Any, decay: Any, votes: Any
    ) -> tuple[Any, Any]:
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(images, training=True)
            loss = tf.reduce_sum(self.task_model.losses(outputs, labels))
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        # Sums over examples, divided by the global batch: exact when ranks have unequal shares.
        *sums, votes = dist.allreduce_sum([*gradients, loss, votes])
        *gradients, loss = (total / self._global_batch for total in sums)
        penalty, pulls = optim.l2_penalty(self.task_model.decayed, self._weight_decay)
        gradients = [
            g + pulls[v.path] if v.path in pulls else g
            for g, v in zip(gradients, variables, strict=True)
        ]
        self._optimizer.learning_rate.assign(rate)
        self._optimizer.apply(gradients, variables)
        self.ema.update(decay)
        told = tf.concat([[loss + penalty, tf.linalg.global_norm(gradients)], votes], axis=0)
        return told, outputs

    def broadcast(self) -> None:
        """Gives every rank the chief's weights, optimizer state and moving averages."""
        dist.broadcast_variables(
            [*self._model.variables, *self._optimizer.variables, *self.ema.variables]
        )

    def snapshot(self, step: int, state: dict[str, Any]) -> Checkpoint:
        """Copies the whole state after `step` updates."""
        weights = by_path(self._model.variables)
        averages = dict(zip(weights, self.ema.variables, strict=True))
        return Checkpoint(
            step=step,
            weights={name: variable.numpy() for name, variable in weights.items()},
            optimizer={n: v.numpy() for n, v in by_path(self._optimizer.variables).items()},
            ema={name: average.numpy() for name, average in averages.items()},
            state=state,
        )

    def load(self, saved: Checkpoint, where: Path) -> None:
        """Takes the state of a checkpoint.

        Raises:
            DataError: CONFIG when its variables are not those of this model.
        """
        weights = by_path(self._model.variables)
        averages = dict(zip(weights, self.ema.variables, strict=True))
        optimizer = by_path(self._optimizer.variables)
        for variables, arrays in (
            (weights, saved.weights), (optimizer, saved.optimizer), (averages, saved.ema)
        ):  # fmt: skip
            shapes = {name: tuple(v.shape) for name, v in variables.items()}
            if shapes != {name: array.shape for name, array in arrays.items()}:
                raise DataError(
                    CONFIG, where, "the checkpoint's variables are not those of this model",
                    fix="start a new run with --name",
                )  # fmt: skip
            for name, variable in variables.items():
                variable.assign(arrays[name])

    def shapes(self) -> dict[str, list[int]]:
        """The model's variables by name."""
        return {name: list(v.shape) for name, v in by_path(self._model.variables).items()}


def by_path(variables: Sequence[Any]) -> dict[str, Any]:
    """Variables by their Keras path, which tells each from all others."""
    named = {variable.path: variable for variable in variables}
    assert len(named) == len(variables), "two variables share a path"
    return named
