"""Layers that Keras lacks: normalisation over ranks, and over neighbouring channels, and a bias."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvd_train import dist

EPSILON = 1e-3
MOMENTUM = 0.9
"""Of the moving statistics; they must follow the weights within a run of a few hundred steps."""


def batch_normalization(kind: str, name: str) -> keras.layers.Layer:
    """Returns batch normalisation over the examples of all ranks ("sync"), or of one ("local").

    In mixed precision both compute in float32. Moving statistics are the same on all ranks: those
    of the global batch under sync, under local the mean over the ranks, see `own_statistics`.
    """
    if kind == "sync":
        return SyncBatchNormalization(name=name, dtype=keras.config.floatx())
    return keras.layers.BatchNormalization(
        momentum=MOMENTUM, epsilon=EPSILON, name=name, dtype=keras.config.floatx()
    )


@keras.saving.register_keras_serializable("hvd_train")
class SyncBatchNormalization(keras.layers.Layer):
    """Batch normalisation over the examples of all ranks (Ioffe and Szegedy 2015).

    The mean and variance are those of the global batch, so a run's numbers don't depend on how many
    ranks it has, and every rank holds the same moving statistics. Costs one small allreduce forward
    and one backward. Input and output [n, ..., channels]; one mean and variance a channel.
    """

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Makes scale, offset and the moving statistics, [channels] each."""
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(shape=shape, initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=shape, initializer="zeros", name="beta")
        self.moving_mean = self.add_weight(
            shape=shape, initializer="zeros", trainable=False, name="moving_mean"
        )
        self.moving_variance = self.add_weight(
            shape=shape, initializer="ones", trainable=False, name="moving_variance"
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Normalises by the global batch in training, by the moving statistics otherwise."""
        if not training:
            return self._normalise(inputs, self.moving_mean.value, self.moving_variance.value)
        mean, variance = _global_moments(inputs)
        for moving, now in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(MOMENTUM * moving + (1 - MOMENTUM) * tf.stop_gradient(now))
        return self._normalise(inputs, mean, variance)

    def _normalise(self, inputs: Any, mean: Any, variance: Any) -> Any:
        scale = self.gamma.value * tf.math.rsqrt(variance + EPSILON)
        return inputs * scale + (self.beta.value - mean * scale)


def own_statistics(model: keras.Model) -> list[keras.Variable]:
    """The moving statistics of layers that normalise by this rank's own examples.

    Those are Keras's batch norms. Each step the trainer replaces them by their mean over the ranks,
    weighted by examples, so that all ranks hold one set; it travels with the gradients.
    """
    return [
        variable
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in (layer.moving_mean, layer.moving_variance)
    ]


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """What a model's layers, such as Dropout, draw by: [seed, numbers of draws], int64, each."""
    return [v for v in model.variables if v.name == "seed_generator_state"]


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of a rank's own random numbers, from the chief's, which keeps its own."""
    if rank == 0:
        return seed
    return int(np.random.SeedSequence([seed % 2**63, rank]).generate_state(1)[0])


def _global_moments(inputs: Any) -> tuple[Any, Any]:
    """Mean and variance of each channel over all ranks.

    The sums travel in float64: the difference of two nearly equal float32 would lose the variance.
    """
    axes = list(range(len(inputs.shape) - 1))
    local_mean, local_variance = tf.nn.moments(inputs, axes)
    count = tf.cast(tf.size(inputs[..., 0]), tf.float64)
    local_mean, local_variance = (
        tf.cast(local_mean, tf.float64), tf.cast(local_variance, tf.float64)
    )  # fmt: skip
    sums = tf.concat(
        [local_mean * count, (local_variance + local_mean**2) * count, [count]], axis=0
    )
    (total,) = dist.allreduce_sum([sums])
    channels = inputs.shape[-1]
    mean = total[:channels] / total[-1]
    variance = tf.maximum(total[channels:-1] / total[-1] - mean**2, 0.0)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


@keras.saving.register_keras_serializable("hvd_train")
class Bias(keras.layers.Layer):
    """Adds a learnt value to each channel, 0 at first. Input and output float [..., channels]."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Makes the bias, [channels]."""
        self.bias = self.add_weight(shape=input_shape[-1:], initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        """Adds."""
        return tf.nn.bias_add(inputs, self.bias)


@keras.saving.register_keras_serializable("hvd_train")
class LocalResponseNormalization(keras.layers.Layer):
    """Local response normalisation over channels (Krizhevsky et al. 2012).

        output = x / (bias + alpha * sum of x^2 over the channel and its neighbours) ** 0.75

    The same as tf.nn.local_response_normalization(x, 4, 1.0, 0.001 / 9, 0.75), as the TensorFlow
    CIFAR-10 tutorial has it, but the sum over neighbours is a product with a banded matrix, which
    runs at the speed of matrix products. Input and output float [n, ..., channels].
    """

    RADIUS = 4
    BIAS = 1.0
    ALPHA = 0.001 / 9

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Makes the matrix of neighbours, [channels, channels]."""
        channels = np.arange(input_shape[-1])
        near = np.abs(channels[:, None] - channels) <= self.RADIUS
        self._neighbours = (self.ALPHA * near).astype(self.compute_dtype)

    def call(self, inputs: Any) -> Any:
        """Normalises."""
        # As rows of channels, so that the sums over neighbours are one matrix product.
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
        return tf.reshape(_respond(rows, self._neighbours, self.BIAS), tf.shape(inputs))


def _respond(rows: Any, neighbours: np.ndarray, bias: float) -> Any:
    """x * d ** -0.75 with d = bias + x^2 neighbours, with a gradient of few passes over memory."""
    biases = np.full(len(neighbours), bias, neighbours.dtype)

    @tf.custom_gradient
    def respond(x: Any) -> tuple[Any, Any]:
        # TensorFlow adds a bias within the matrix product.
        d = tf.nn.bias_add(tf.matmul(x * x, neighbours), biases)
        root = tf.math.rsqrt(d)
        scale = root * tf.sqrt(root)
        y = x * scale

        def gradient(dy: Any) -> Any:
            # dd/dx is symmetric: neighbours of neighbours see each other alike.
            pulled = tf.matmul(dy * y / d, 1.5 * neighbours)
            return dy * scale - x * pulled

        return y, gradient

    return respond(rows)
