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

ONE_CYCLE_START = 1 / 25
"""Where the one-cycle schedule starts, as a part of its peak; this and the next two as PyTorch."""
ONE_CYCLE_END = ONE_CYCLE_START / 1e4
ONE_CYCLE_RISE = 0.3
"""The part of the run over which it rises."""


def scaled_lr(config: OptimConfig) -> float:
    """Returns the peak rate.

    That is base_lr x G / 128 under linear scaling (Goyal et al. 2017), base_lr x sqrt(G / 128)
    under sqrt (Krizhevsky 2014; for Adam and LAMB: You et al. 2020).
    """
    if config.lr_scaling == "none" or config.global_batch is None:
        return config.base_lr
    growth = config.global_batch / REFERENCE_BATCH
    return config.base_lr * (math.sqrt(growth) if config.lr_scaling == "sqrt" else growth)


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
    if config.schedule == "one-cycle":
        rise = config.warmup_epochs or ONE_CYCLE_RISE * total_epochs
        return peak * _one_cycle(epoch, rise, total_epochs)
    if epoch + step_epochs < config.warmup_epochs:
        return peak * (epoch + step_epochs) / config.warmup_epochs
    if config.schedule == "exponential":
        return peak * config.decay_factor ** math.floor(epoch / config.decay_epochs)
    if config.schedule == "step":
        return peak * config.decay_factor ** sum(point <= epoch for point in config.decay_points)
    if config.schedule == "cosine":
        begin = config.warmup_epochs
        return peak * _half_cosine(1.0, 0.0, _progress(epoch, begin, total_epochs))
    return peak


def _one_cycle(epoch: float, rise: float, total_epochs: float) -> float:
    """The one-cycle policy (Smith and Topin 2017), as a part of the peak; momentum stays."""
    if epoch < rise:
        return _half_cosine(ONE_CYCLE_START, 1.0, epoch / rise)
    return _half_cosine(1.0, ONE_CYCLE_END, _progress(epoch, rise, total_epochs))


def _half_cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress))


def _progress(epoch: float, begin: float, end: float) -> float:
    return min(max(epoch - begin, 0.0) / max(end - begin, 1e-12), 1.0)


def describe_rate(config: OptimConfig) -> str:
    """Says in words how the weights are updated: the rate and why, and what else is not usual."""
    peak = f"learning rate {scaled_lr(config):g}"
    if config.lr_scaling != "none":
        growth = f"{config.global_batch} / {REFERENCE_BATCH}"
        growth = f"sqrt({growth})" if config.lr_scaling == "sqrt" else growth
        peak += f" = {config.base_lr:g} x {growth}"
    if config.warmup_epochs:
        peak += f" after {config.warmup_epochs:g} epochs of warm-up"
    schedule = f"{config.schedule} schedule{_describe_decay(config)}"
    return ", ".join([config.optimizer, peak, schedule, *_describe_options(config)])


def _describe_decay(config: OptimConfig) -> str:
    if config.schedule == "exponential":
        return f" x {config.decay_factor:g} every {config.decay_epochs:g} epochs"
    if config.schedule == "step":
        points = ", ".join(f"{point:g}" for point in config.decay_points)
        return f" x {config.decay_factor:g} at epochs {points}"
    return ""


def _describe_options(config: OptimConfig) -> Iterator[str]:
    if config.weight_decay and config.decays_decoupled:
        yield f"decoupled weight decay {config.weight_decay:g}"
    if config.label_smoothing:
        yield f"label smoothing {config.label_smoothing:g}"
    if config.clip_norm:
        yield f"gradient clipped to length {config.clip_norm:g}"
    if config.accumulate > 1:
        yield f"{config.accumulate} micro-batches a step"


def build_optimizer(
    config: OptimConfig, variables: Sequence[keras.Variable], decayed: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    """Returns the Keras optimizer of `variables`; its rate is set before each step.

    Decoupled weight decay takes rate x decay of each weight before the update (Loshchilov and
    Hutter 2019). So it does for LAMB, whose paper has the decay within the trust ratio. Keras's
    LAMB scales the step of every variable by the trust ratio; the paper's code (You et al. 2020)
    leaves out biases and the scales of normalisations, which Keras has no way to say.
    """
    decoupled = config.weight_decay if config.decays_decoupled and config.weight_decay else None
    # Named, since Keras would number it, and checkpoints hold its variables by name.
    settings = {"learning_rate": 0.0, "weight_decay": decoupled, "name": "optimizer"}
    if config.optimizer in ("adam", "adamw"):
        optimizer = keras.optimizers.Adam(**settings)
    elif config.optimizer == "lamb":
        optimizer = keras.optimizers.Lamb(**settings)
    else:
        optimizer = keras.optimizers.SGD(
            momentum=0.0 if config.optimizer == "sgd" else config.momentum,
            nesterov=config.optimizer == "nesterov", **settings,
        )  # fmt: skip
    pulled = {variable.path for variable in decayed}
    optimizer.exclude_from_weight_decay([v for v in variables if v.path not in pulled])
    optimizer.build(variables)
    return optimizer


def smoothed(losses: Any, logits: Any, smoothing: float) -> Any:
    """Returns cross-entropies as if `smoothing` of the label were spread over all classes.

    Args:
        losses: [n], cross-entropies in nats, summed over the axes between first and last of logits.
        logits: [n, ..., classes].
        smoothing: part of the probability (Szegedy et al. 2016).
    """
    if not smoothing:
        return losses
    # Against equal probabilities: log of the sum of exponentials less the mean logit.
    uniform = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
    uniform = tf.reduce_sum(uniform, axis=list(range(1, len(uniform.shape))))
    return (1 - smoothing) * losses + smoothing * uniform


class LossScale:
    """A factor that keeps small float16 gradients from being 0 (Micikevicius et al. 2018).

    It is halved, to 1 at least, after a gradient that isn't finite, and doubled, to MAXIMUM at
    most, after GROWTH_STEPS finite ones in a row. It follows from the sum over ranks, so it is the
    same on all of them, who all skip the step that isn't finite: nothing but the scale changes, and
    the run goes on with the next batch.
    """

    INITIAL = 2.0**15
    MAXIMUM = 2.0**24
    GROWTH_STEPS = 2000

    def __init__(self) -> None:
        self.scale = keras.Variable(
            self.INITIAL, trainable=False, dtype="float32", name="loss_scale"
        )
        self._finite_steps = keras.Variable(
            0, trainable=False, dtype="int32", name="loss_scale_finite_steps"
        )
        self.variables = [self.scale, self._finite_steps]

    def update(self, finite: Any) -> None:
        """Moves on by a step whose gradient was finite or not; runs inside tf.function."""
        steps = self._finite_steps.value + 1
        grows = finite & (steps >= self.GROWTH_STEPS)
        scale = self.scale.value
        halved = tf.maximum(scale / 2, 1.0)
        doubled = tf.minimum(scale * 2, self.MAXIMUM)
        self.scale.assign(tf.where(finite, tf.where(grows, doubled, scale), halved))
        self._finite_steps.assign(tf.where(finite & ~grows, steps, 0))


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
    """Exponential moving averages of a model's variables, for evaluation.

    Attributes:
        averaged: the variables of floats. Others, such as the state of random numbers, have no
            average; evaluation uses them as they are.
        variables: the average of each of them.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self.averaged = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
        self.variables = [tf.Variable(v.value, trainable=False, name="ema") for v in self.averaged]

    def update(self, decay: Any) -> None:
        """Moves each average towards its weight by 1 - decay; runs inside tf.function."""
        for average, weight in zip(self.variables, self.averaged, strict=True):
            average.assign_sub((1 - decay) * (average - weight.value))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Gives the model its averaged weights for the block, then its own again."""
        own = [weight.numpy() for weight in self.averaged]
        for average, weight in zip(self.variables, self.averaged, strict=True):
            weight.assign(average)
        try:
            yield
        finally:
            for value, weight in zip(own, self.averaged, strict=True):
                weight.assign(value)
