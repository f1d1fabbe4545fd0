"""The TensorFlow CIFAR-10 tutorial's network in plain TensorFlow, for the TensorFlow peers.

After tensorflow/models, tutorials/image/cifar10/cifar10.py: 24x24 crops, 1,068,298 parameters,
tf.Variables and tf.nn operations as the tutorial has them, with none of this project's code.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf
from measure import LEARNING_RATE

SHAPES = {
    "conv1": (5, 5, 3, 64),
    "conv2": (5, 5, 64, 64),
    "local3": (2304, 384),
    "local4": (384, 192),
    "softmax": (192, 10),
}
STDDEVS = {"conv1": 0.05, "conv2": 0.05, "local3": 0.04, "local4": 0.04, "softmax": 1 / 192}
BIASES = {"conv1": 0.0, "conv2": 0.1, "local3": 0.1, "local4": 0.1, "softmax": 0.0}
DECAYED = ("local3", "local4")
DECAY = 0.004

Variables = Mapping[str, tf.Variable]


def build() -> dict[str, tf.Variable]:
    """Makes the variables: a kernel `NAME/kernel` and a bias `NAME/bias` of each layer."""
    variables = {}
    for name, shape in SHAPES.items():
        kernel = tf.random.truncated_normal(shape, stddev=STDDEVS[name])
        variables[f"{name}/kernel"] = tf.Variable(kernel, name=f"{name}/kernel")
        bias = tf.fill(shape[-1:], BIASES[name])
        variables[f"{name}/bias"] = tf.Variable(bias, name=f"{name}/bias")
    return variables


def logits(variables: Variables, images: tf.Tensor) -> tf.Tensor:
    """Applies the network: float32 [n, 24, 24, 3] to [n, 10]."""
    x = _convolution(variables, "conv1", images)
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    x = normalise(x)
    x = _convolution(variables, "conv2", x)
    x = normalise(x)
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    x = tf.reshape(x, [-1, SHAPES["local3"][0]])
    x = tf.nn.relu(_dense(variables, "local3", x))
    x = tf.nn.relu(_dense(variables, "local4", x))
    return _dense(variables, "softmax", x)


def normalise(x: tf.Tensor) -> tf.Tensor:
    """Local response normalisation with the tutorial's constants."""
    return tf.nn.local_response_normalization(
        x, depth_radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75
    )


def loss(variables: Variables, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean cross-entropy of a batch and the weight decay: a scalar."""
    entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=logits(variables, images)
    )
    decay = [DECAY * tf.nn.l2_loss(variables[f"{name}/kernel"]) for name in DECAYED]
    return tf.add_n([tf.reduce_mean(entropies), *decay])


def descend(variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor]) -> None:
    """One step of gradient descent."""
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(LEARNING_RATE * gradient)


def _convolution(variables: Variables, name: str, x: tf.Tensor) -> tf.Tensor:
    x = tf.nn.conv2d(x, variables[f"{name}/kernel"], 1, "SAME")
    return tf.nn.relu(tf.nn.bias_add(x, variables[f"{name}/bias"]))


def _dense(variables: Variables, name: str, x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, variables[f"{name}/kernel"]) + variables[f"{name}/bias"]
