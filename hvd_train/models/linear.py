"""The captcha lesson's model: one dense layer on the pixels, a softmax for each position.

Needs labels of one length. On pictures whose letters move it learns little; it stands here as the
lesson's own recipe and as the smallest model that the whole machinery can be checked with.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_tools.manifest import ImageSpec, LabelSpec


def build(image: ImageSpec, label: LabelSpec, *, init_stddev: float | None) -> keras.Model:
    """Returns the model: uint8 [n, H, W, C] to logits [n, length, characters].

    Args:
        image: size of the pictures.
        label: charset and length.
        init_stddev: draw weights and biases from normal(0, this), with pixels of 0 to 255, as the
            lesson did; otherwise Glorot's initialiser with pixels scaled to [-1, 1].
    """
    pixels = keras.Input((image.height, image.width, image.channels), dtype="uint8", name="image")
    if init_stddev is None:
        x = keras.layers.Rescaling(1 / 127.5, offset=-1.0, name="scale")(pixels)
        initializers: dict[str, Any] = {}
    else:
        x = keras.layers.Rescaling(1.0, name="scale")(pixels)
        # An initialiser draws the same numbers at each use: kernel and bias need their own.
        kernel, bias = (keras.initializers.RandomNormal(stddev=init_stddev) for _ in range(2))
        initializers = {"kernel_initializer": kernel, "bias_initializer": bias}
    x = keras.layers.Flatten(name="flatten")(x)
    units = label.max_length * len(label.charset)
    x = keras.layers.Dense(units, name="dense", **initializers)(x)
    # In mixed precision logits are float32.
    to_logits = keras.layers.Reshape(
        (label.max_length, len(label.charset)), name="logits", dtype=keras.config.floatx()
    )
    logits = to_logits(x)
    return keras.Model(pixels, logits, name="linear")


def losses(logits: Any, labels: Any) -> Any:
    """The negative log-likelihood of each label, summed over its positions, in nats: [n].

    Args:
        logits: [n, length, characters].
        labels: int32 [n, length].
    """
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_sum(each, axis=1)


def decode(logits: np.ndarray) -> np.ndarray:
    """Returns the most probable character of each position, int32 [n, length]."""
    best: np.ndarray = np.argmax(logits, axis=2)
    return best.astype(np.int32)
