"""Our layers and preprocessing in Keras's own layers, for files that load without this project."""

from typing import Any

import keras
import numpy as np

from hvd_train.models.layers import (
    EPSILON,
    MOMENTUM,
    Bias,
    LocalResponseNormalization,
    SyncBatchNormalization,
)


def center(images: Any, *, size: int) -> Any:
    """The same as `data.augment.center`, of Keras tensors.

    Args:
        images: uint8 [n, height, width, channels].
        size: height and width of the crop.

    Returns:
        float32 [n, size, size, channels]: the middle, each image with mean 0 and variance 1.
    """
    pixels = keras.layers.Rescaling(1.0, name="to_float")(images)
    pixels = keras.layers.CenterCrop(size, size, name="center")(pixels)
    values = size * size * pixels.shape[-1]

    def mean(x: Any) -> Any:
        # The sum of whole numbers is exact, so an image of one color becomes all 0.
        return keras.ops.sum(x, axis=(1, 2, 3), keepdims=True) / float(values)

    pixels = pixels - mean(pixels)
    deviation = keras.ops.sqrt(mean(keras.ops.square(pixels)))
    return pixels / keras.ops.maximum(deviation, values**-0.5)


def in_stock_layers(model: keras.Model) -> keras.Model:
    """Returns a model that infers the same without the layers of `models.layers`.

    Layers of Keras are shared with the given one. A model of a class of the user's own stays as it
    is.
    """
    is_graph = isinstance(model, keras.Sequential) or hasattr(model, "operations")
    if not is_graph or not any(type(layer) in STOCK for layer in model._flatten_layers()):
        return model
    return keras.models.clone_model(
        model,
        clone_function=lambda layer: STOCK.get(type(layer), lambda same: same)(layer),
        recursive=True,
    )


def _sync_batch_normalization(layer: Any) -> keras.layers.Layer:
    return _normalization(layer, layer.get_weights(), momentum=MOMENTUM, epsilon=EPSILON)


def _bias(layer: Any) -> keras.layers.Layer:
    """Normalises by mean 0 and variance 1, which leaves the offset."""
    bias = layer.bias.numpy()
    weights = [bias, np.zeros_like(bias), np.ones_like(bias)]
    return _normalization(layer, weights, epsilon=0.0, scale=False, trainable=False)


def _normalization(layer: Any, weights: list[Any], **settings: Any) -> keras.layers.Layer:
    same = keras.layers.BatchNormalization(name=layer.name, **settings)
    same.build(layer.input.shape)
    same.set_weights(weights)
    return same


def _local_response_normalization(layer: Any) -> keras.layers.Layer:
    x = keras.Input(layer.input.shape[1:])
    channels = x.shape[-1]
    divisor = keras.layers.Dense(channels, name="neighbours", trainable=False)
    same = keras.Model(x, x * divisor(keras.ops.square(x)) ** -0.75, name=layer.name)
    divisor.set_weights([layer._neighbours, np.full(channels, layer.BIAS)])
    return same


STOCK = {
    SyncBatchNormalization: _sync_batch_normalization,
    Bias: _bias,
    LocalResponseNormalization: _local_response_normalization,
}
