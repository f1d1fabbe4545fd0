"""The network of the TensorFlow CIFAR-10 tutorial (tensorflow/models, tutorials/image/cifar10).

After Krizhevsky's cuda-convnet: two 5x5 convolutions of 64 channels, each with 3x3 max pooling and
local response normalisation, then dense layers of 384 and 192 and one logit a class. On 24x24 crops
and 10 classes it has 1,068,298 parameters, on whole 32x32 images 1,756,426.
"""

from typing import Any

import keras
import tensorflow as tf

from hvd_train.models.layers import Bias, LocalResponseNormalization

CHANNELS = 64
HIDDEN = (384, 192)


def build(image_size: int, channels: int, num_classes: int) -> keras.Model:
    """Returns the model: standardised float [n, size, size, C] to logits [n, classes].

    In mixed precision the normalisations and the logits are float32.
    """
    pixels = keras.Input((image_size, image_size, channels), name="image")
    x = _convolution("conv1", bias=None)(pixels)
    # Pooling before bias and ReLU is the same function, with these two on a quarter of the values.
    x = _pooling("pool1")(x)
    x = Bias(name="bias1")(x)
    x = keras.layers.ReLU(name="relu1")(x)
    x = _normalisation("norm1")(x)
    x = _convolution("conv2", bias=0.1)(x)
    x = keras.layers.ReLU(name="relu2")(x)
    x = _normalisation("norm2")(x)
    x = _pooling("pool2")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    for layer, units in enumerate(HIDDEN, start=3):
        x = _dense(units, f"local{layer}", stddev=0.04, bias=0.1, activation="relu")(x)
    head = _dense(
        num_classes, "softmax_linear", stddev=1 / HIDDEN[-1], bias=0.0, dtype=keras.config.floatx()
    )
    logits = head(x)
    return keras.Model(pixels, logits, name="tutorial")


def _convolution(name: str, *, bias: float | None) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        CHANNELS, 5, padding="same", name=name, use_bias=bias is not None,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.05),
        bias_initializer=keras.initializers.Constant(bias or 0.0),
    )  # fmt: skip


def _pooling(name: str) -> keras.layers.Layer:
    return keras.layers.MaxPooling2D(3, strides=2, padding="same", name=name)


def _normalisation(name: str) -> keras.layers.Layer:
    return LocalResponseNormalization(name=name, dtype=keras.config.floatx())


def _dense(
    units: int,
    name: str,
    *,
    stddev: float,
    bias: float,
    activation: str | None = None,
    dtype: str | None = None,
) -> keras.layers.Layer:
    return keras.layers.Dense(
        units, activation=activation, name=name, dtype=dtype,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=stddev),
        bias_initializer=keras.initializers.Constant(bias),
    )  # fmt: skip


def decayed(model: keras.Model) -> list[keras.Variable]:
    """The weights that weight decay pulls to 0: the kernels of the hidden dense layers."""
    return [model.get_layer(f"local{layer}").kernel for layer, _ in enumerate(HIDDEN, start=3)]


def losses(logits: Any, labels: Any) -> Any:
    """Cross-entropy of each example in nats: [n].

    Args:
        logits: [n, classes].
        labels: int32 [n, 1], or the shares of the classes of mixed pictures, float [n, classes].
    """
    labels = tf.convert_to_tensor(labels)
    if labels.dtype.is_floating:
        shares = tf.cast(labels, logits.dtype)
        return tf.nn.softmax_cross_entropy_with_logits(labels=shares, logits=logits)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[:, 0], logits=logits)
