"""A model with its optimizer and moving averages, and the compiled step that updates them.

Every rank computes the gradient of its share of the global batch; one grouped allreduce sums them,
and every rank applies the same update.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_tools.errors import CONFIG, NUMERIC, DataError
from hvd_train import dist, optim
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import TrainConfig
from hvd_train.data.source import Batch
from hvd_train.models import layers
from hvd_train.task import TaskModel
from hvd_train.weights import assign, by_path


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one update tells.

    Attributes:
        loss: before the update, averaged over the global batch, with the penalty of weight decay;
            the same on every rank.
        penalty: that part of the loss.
        gradient_norm: length of the whole gradient before it is clipped; the same on every rank.
        votes: of the ranks, summed.
        outputs: this rank's, a tensor that is copied to the host only by those who ask for it.
        loss_scale: that the gradient was computed with; 1 unless in float16.
        broken: for each rank whether its own loss or gradient was not finite, where the update
            can't be used; empty otherwise. Synchronised batch norm gives all ranks what one has.
    """

    loss: float
    penalty: float
    gradient_norm: float
    votes: np.ndarray
    outputs: tf.Tensor
    loss_scale: float = 1.0
    broken: tuple[bool, ...] = ()

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    @property
    def skipped(self) -> bool:
        """Whether no weight was changed, since a smaller loss scale may mend what overflowed."""
        return not self.is_finite and self.loss_scale > 1

    def fault(self, step: int) -> DataError:
        """The error of a step that ends the run, the same on every rank."""
        reason = f"the loss is {self.loss}"
        if math.isfinite(self.loss):
            reason = f"the gradient's length is {self.gradient_norm}"
        if not any(self.broken):
            reason += ", though each rank's own is finite"
        elif not all(self.broken):
            reason += f", from rank {', '.join(str(r) for r, b in enumerate(self.broken) if b)}"
        return DataError(
            NUMERIC, f"step {step}", reason, fix="lower --base-lr; the last checkpoint is kept"
        )


class Trainer:
    """A model with its optimizer and moving averages, and the step that updates them."""

    def __init__(self, task_model: TaskModel, config: TrainConfig) -> None:
        """Takes a model and makes the rest.

        Raises:
            DataError: CONFIG when the model has no weights.
        """
        settings = config.optim
        assert settings.global_batch is not None
        self.task_model = task_model
        self._settings = settings
        self._global_batch = settings.global_batch
        self._l2 = 0.0 if settings.decays_decoupled else settings.weight_decay
        self._dtype = keras.config.floatx()
        self._model = task_model.model
        if not self._model.trainable_variables:
            raise DataError(
                CONFIG, self._model.name, "the model has no weights to train",
                fix="if it is of a class of your own, let build call it once, on zeros",
            )  # fmt: skip
        self._optimizer = optim.build_optimizer(
            settings, self._model.trainable_variables, task_model.decayed
        )
        self._loss_scale = optim.LossScale() if config.run.dtype == "float16" else None
        self._compress = settings.compression == "fp16"
        # Whether gradients or their sums are so; then they are means from the start.
        self._in_16_bits = self._loss_scale is not None or self._compress
        self._divisor = 1.0 if self._in_16_bits else self._global_batch
        self._slots = list(self._optimizer.variables)
        self._restored: list[keras.Variable] = []
        if self._loss_scale:
            self._slots += self._loss_scale.variables
            self._restored += self._model.non_trainable_variables
        self._statistics = layers.own_statistics(self._model)
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

        Returns:
            What the step tells. If it isn't finite and not skipped, the weights are lost.
        """
        # As arrays: TensorFlow keeps each Python number that it ever made a tensor of.
        numbers = (np.asarray(value, self._dtype) for value in (rate, decay, votes))
        told, outputs = self._compiled_update(
            batch.images, batch.labels, *map(tf.constant, numbers)
        )
        loss, penalty, norm, scale, own_is_finite, *sums = told.numpy()  # one copy from the device
        result = StepResult(
            loss=float(loss), penalty=float(penalty), gradient_norm=float(norm),
            votes=np.asarray(sums), outputs=outputs, loss_scale=float(scale),
        )  # fmt: skip
        if result.is_finite or result.skipped:
            return result
        # Loss and length are the same on every rank, so all of them come here.
        return dataclasses.replace(result, broken=tuple(dist.allgather_json(not own_is_finite)))

    def _update(
        self, images: Any, labels: Any, rate: Any, decay: Any, votes: Any
    ) -> tuple[Any, Any]:
        variables = self._model.trainable_variables
        scale = tf.identity(self._loss_scale.scale.value) if self._loss_scale else 1.0
        before = [tf.identity(v.value) for v in self._restored]
        own_gradients, own_loss, outputs = self._own_sums(images, labels, scale)
        # Sums over examples, divided by the global batch: exact when ranks have unequal shares.
        share = tf.cast(tf.shape(images)[0], self._dtype)
        statistics = [share * variable.value for variable in self._statistics]
        gradients, (*statistics, loss, votes) = self._sum_over_ranks(
            own_gradients, [*statistics, own_loss, votes]
        )
        gradients = [total / (self._divisor * scale) for total in gradients]
        *statistics, loss = (total / self._global_batch for total in (*statistics, loss))
        penalty, pulls = optim.l2_penalty(self.task_model.decayed, self._l2)
        gradients = [
            g + pulls[v.path] if v.path in pulls else g
            for g, v in zip(gradients, variables, strict=True)
        ]
        loss, norm = loss + penalty, tf.linalg.global_norm(gradients)
        update = functools.partial(self._apply, gradients, norm, statistics, rate, decay)
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        # A pass over the gradients that only a step which isn't finite pays for.
        own = functools.partial(are_finite, [own_loss, *own_gradients])
        own_is_finite = tf.cond(finite, lambda: tf.constant(True), own)
        if self._loss_scale is None:
            update()
        else:
            tf.cond(finite, update, functools.partial(self._take_back, before))
            self._loss_scale.update(finite)
        own_is_finite = tf.cast(own_is_finite, self._dtype)
        told = tf.concat([[loss, penalty, norm, scale, own_is_finite], votes], axis=0)
        return told, outputs

    def _own_sums(self, images: Any, labels: Any, scale: Any) -> tuple[list[Any], Any, Any]:
        """Returns gradients and loss summed over this rank's examples, and their outputs.

        The gradients are to be divided by scale and, if not by _divisor, by the global batch.
        """
        parts = self._settings.accumulate
        if parts == 1:
            return self._sums_of_part(images, labels, scale)
        images, labels = (tf.reshape(x, [parts, -1, *x.shape[1:]]) for x in (images, labels))
        outputs = tf.TensorArray(self._dtype, parts)

        def add(part: Any, sums: list[Any], outputs: Any) -> tuple[Any, list[Any], Any]:
            gradients, loss, own = self._sums_of_part(images[part], labels[part], scale)
            sums = [a + b for a, b in zip(sums, [*gradients, loss], strict=True)]
            return part + 1, sums, outputs.write(part, own)

        zeros = [tf.zeros(v.shape, v.dtype) for v in self._model.trainable_variables]
        # One part after the other, or the memory of all of them would be needed at once.
        _, (*gradients, loss), outputs = tf.while_loop(
            lambda part, *_: part < parts, add,
            (0, [*zeros, tf.zeros([], self._dtype)], outputs), parallel_iterations=1,
        )  # fmt: skip
        return gradients, loss, outputs.concat()

    def _sums_of_part(self, images: Any, labels: Any, scale: Any) -> tuple[list[Any], Any, Any]:
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._model(images, training=True)
            losses = self.task_model.losses(outputs, labels)
            loss = tf.reduce_sum(optim.smoothed(losses, outputs, self._settings.label_smoothing))
            # In 16 bits a sum over examples might overflow where their mean doesn't.
            target = loss * (scale / self._global_batch) if self._in_16_bits else loss
        return tape.gradient(target, [v.value for v in variables]), loss, outputs

    def _sum_over_ranks(
        self, gradients: list[Any], others: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Sums all in one allreduce, or compressed gradients in one and the rest in another."""
        if self._compress:
            return dist.allreduce_sum(gradients, fp16=True), dist.allreduce_sum(others)
        sums = dist.allreduce_sum([*gradients, *others])
        return sums[: len(gradients)], sums[len(gradients) :]

    def _apply(
        self, gradients: list[Any], norm: Any, statistics: list[Any], rate: Any, decay: Any
    ) -> None:
        if self._settings.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._settings.clip_norm, norm)
        for variable, mean in zip(self._statistics, statistics, strict=True):
            variable.assign(mean)
        self._optimizer.learning_rate.assign(rate)
        self._optimizer.apply(gradients, self._model.trainable_variables)
        self.ema.update(decay)

    def _take_back(self, before: list[Any]) -> None:
        """Undoes what the forward pass of a skipped step did to moving statistics."""
        for variable, value in zip(self._restored, before, strict=True):
            variable.assign(value)

    def broadcast(self) -> None:
        """Gives every rank the chief's weights, optimizer state and moving averages."""
        dist.broadcast_variables([*self._model.variables, *self._slots, *self.ema.variables])

    def draw_apart(self, rank: int) -> None:
        """Lets layers such as Dropout draw other numbers than those of the other ranks.

        Called with the chief's state: its seeds stay, a rank's follow from them and its number.
        How many were drawn is the same on all ranks, so the chief's checkpoint speaks for all.
        """
        for state in layers.seed_states(self._model):
            seed, drawn = state.numpy()
            state.assign([layers.seed_of_rank(int(seed), rank), drawn])

    def snapshot(self, step: int, state: dict[str, Any]) -> Checkpoint:
        """Copies the whole state after `step` updates."""
        return Checkpoint(
            step=step,
            weights={n: v.numpy() for n, v in by_path(self._model.variables).items()},
            optimizer={n: v.numpy() for n, v in by_path(self._slots).items()},
            ema={n: average.numpy() for n, average in self._averages().items()},
            state=state,
        )

    def load(self, saved: Checkpoint, where: Path) -> None:
        """Takes the state of a checkpoint.

        Raises:
            DataError: CONFIG when its variables are not those of this model.
        """
        for variables, arrays in (
            (by_path(self._model.variables), saved.weights),
            (by_path(self._slots), saved.optimizer),
            (self._averages(), saved.ema),
        ):
            assign(variables, arrays, where)

    def take_averages(self, saved: Checkpoint, where: Path) -> list[str]:
        """Starts weights and averages at the averages of another run, whose shapes may differ.

        Returns:
            The names of the variables of another shape, such as the outputs of another charset,
            which stay as they were drawn.

        Raises:
            DataError: CONFIG when it is a run of another model.
        """
        weights, averages = by_path(self.ema.averaged), self._averages()
        is_same_model = weights.keys() == saved.ema.keys()
        fits = [n for n, v in weights.items() if is_same_model and saved.ema[n].shape == v.shape]
        if not fits:
            raise DataError(
                CONFIG, "--init-from", f"{where} is a run of another model",
                fix="name a run of the same --model",
            )  # fmt: skip
        for name in fits:
            for variable in (weights[name], averages[name]):
                variable.assign(saved.ema[name].astype(variable.numpy().dtype))
        return [name for name in weights if name not in fits]

    def _averages(self) -> dict[str, tf.Variable]:
        """The moving averages by the name of the variable that each is of."""
        return dict(zip(by_path(self.ema.averaged), self.ema.variables, strict=True))

    def shapes(self) -> dict[str, list[int]]:
        """The model's variables by name."""
        return {name: list(v.shape) for name, v in by_path(self._model.variables).items()}


def are_finite(tensors: Sequence[Any]) -> Any:
    """Whether all numbers in all of these tensors are finite, as a bool tensor."""
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
