"""Learning-rate schedule, update rule and moving averages of the weights.

Schedules count examples, not steps, so that a run with another global batch follows the same curve.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hvd_train.config import REFERENCE_BATCH, OptimConfig


def scaled_lr(config: OptimConfig) -> float:
    """Returns the peak rate: base_lr x G / 128 under linear scaling (Goyal et al. 2017)."""
    if config.lr_scaling == "none" or config.global_batch is None:
        return config.base_lr
    return config.base_lr * config.global_batch / REFERENCE_BATCH


def learning_rate(
    config: OptimConfig, *, epoch: float, step_epochs: float, total_epochs: float
) -> float:
    """Returns the rate of a step.

    Args:
        config: the schedule.
        epoch: where the step begins, in epochs.
        step_epochs: how long it is; the rate of a warming-up step is that of its end, never 0.
        total_epochs: length of the run.
    """
    peak = scaled_lr(config)
    if epoch + step_epochs < config.warmup_epochs:
        return peak * (epoch + step_epochs) / config.warmup_epochs
    if config.schedule == "exponential":
        return peak * 0.1 ** math.floor(epoch / config.decay_epochs)
    if config.schedule == "cosine":
        whole = max(total_epochs - config.warmup_epochs, 1e-12)
        progress = min(max(epoch - config.warmup_epochs, 0.0) / whole, 1.0)
        return peak * 0.5 * (1 + math.cos(math.pi * progress))
    return peak


def describe_rate(config: OptimConfig) -> str:
    """Says in words which rate is used and why."""
    peak = f"learning rate {scaled_lr(config):g}"
    if config.lr_scaling == "linear":
        peak += f" = {config.base_lr:g} x {config.global_batch} / {REFERENCE_BATCH}"
    warmup = f" after {config.warmup_epochs:g} epochs of warm-up" if config.warmup_epochs else ""
    decay = f" x 0.1 every {config.decay_epochs:g} epochs" if _decays(config) else ""
    return f"{config.optimizer}, {peak}{warmup}, {config.schedule} schedule{decay}"


def _decays(config: OptimConfig) -> bool:
    return config.schedule == "exponential"


def build_optimizer(config: OptimConfig) -> keras.optimizers.Optimizer:
    """Returns the Keras optimizer; its rate is set before each step."""
    # Named, since Keras would number it, and checkpoints hold its variables by name.
    if config.optimizer == "adam":
        return keras.optimizers.Adam(learning_rate=0.0, name="optimizer")
    momentum = config.momentum if config.optimizer == "momentum" else 0.0
    return keras.optimizers.SGD(learning_rate=0.0, momentum=momentum, name="optimizer")


def l2_penalty(
    decayed: Sequence[keras.Variable], weight_decay: float
) -> tuple[Any, dict[str, Any]]:
    """Returns the penalty on large weights and its gradients by variable path.

    The penalty is weight_decay x half the sum of squares, as tf.nn.l2_loss has it. It is the same
    on every rank, so it is added after the gradients' sum over ranks.
    """
    if not weight_decay:
        return 0.0, {}
    halves = [tf.nn.l2_loss(variable.value) for variable in decayed]
    pulls = {variable.path: weight_decay * variable.value for variable in decayed}
    return weight_decay * tf.add_n(halves), pulls


def ema_decay(decay: float, step: int) -> float:
    """Returns the decay at a step: the ramp of the TensorFlow CIFAR-10 tutorial."""
    return min(decay, (1 + step) / (10 + step))


class MovingAverage:
    """Exponential moving averages of a model's variables, for evaluation."""

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._weights = list(variables)
        self.variables = [tf.Variable(v.value, trainable=False, name="ema") for v in self._weights]

    def update(self, decay: Any) -> None:
        """Moves each average towards its weight by 1 - decay; runs inside tf.function."""
        for average, weight in zip(self.variables, self._weights, strict=True):
            average.assign_sub((1 - decay) * (average - weight.value))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Gives the model its averaged weights for the block, then its own again."""
        own = [weight.numpy() for weight in self._weights]
        for average, weight in zip(self.variables, self._weights, strict=True):
            weight.assign(average)
        try:
            yield
        finally:
            for value, weight in zip(own, self._weights, strict=True):
                weight.assign(value)
