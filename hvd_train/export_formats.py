"""Writes a Keras model in the formats that other programs load."""

import errno
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from data_tools.durable import write_synced
from data_tools.errors import CONFIG, DataError
from hvd_train.decoding import Decoding

ONNX_OPSET = 17


def check_installed(name: str) -> None:
    """Raises CONFIG when a format needs a package that isn't there."""
    if name != "onnx":
        return
    try:
        importlib.import_module("tf2onnx")
    except ImportError as error:
        raise DataError(
            CONFIG, f"--format {name}", f"it needs tf2onnx: {error}",
            fix="pip install tf2onnx onnx onnxruntime, as setup.cfg's extra export names them",
        ) from error  # fmt: skip


def write(name: str, model: keras.Model, decoding: Decoding | None, folder: Path) -> None:
    """Writes the model as model.NAME, or as the folder model/ in SavedModel's format.

    Args:
        name: of the format.
        model: `image`, uint8 [n, H, W, C], to logits.
        decoding: how texts are read off the logits, if that is known.
        folder: where.

    Raises:
        DataError: CONFIG when the format can't hold the model.
        OSError: when the disk refuses.
    """
    _WRITERS[name](model, decoding, folder)


def _write_saved_model(model: keras.Model, decoding: Decoding | None, folder: Path) -> None:
    signatures = {"serving_default": _of_pixels(model), "serving_bytes": _of_files(model, decoding)}
    try:
        tf.saved_model.save(_module(model), str(folder / "model"), signatures)
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error


def _write_keras(model: keras.Model, _: Decoding | None, folder: Path) -> None:
    path = folder / "model.keras"
    own = {type(layer) for layer in model._flatten_layers() if not _is_keras_s(layer)}
    if own:
        names = ", ".join(sorted(layer.__name__ for layer in own))
        raise _refused("keras", f"the file can't hold layers of your own ({names})")
    model.save(path)
    try:
        keras.saving.load_model(path)
    except (TypeError, ValueError) as error:
        raise _refused("keras", f"the file would not load again ({error})") from error


def _write_onnx(model: keras.Model, _: Decoding | None, folder: Path) -> None:
    import tf2onnx  # an extra

    serve = _of_pixels(model)
    proto, _ = _converted(
        "onnx", tf2onnx.convert.from_function, serve, serve.input_signature, opset=ONNX_OPSET
    )
    write_synced(folder / "model.onnx", proto.SerializeToString())


def _write_tflite(model: keras.Model, _: Decoding | None, folder: Path) -> None:
    serve = _of_pixels(model).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([serve], _module(model))
    write_synced(folder / "model.tflite", _converted("tflite", converter.convert))


_WRITERS: dict[str, Callable[[keras.Model, Decoding | None, Path], None]] = {
    "saved_model": _write_saved_model,
    "keras": _write_keras,
    "onnx": _write_onnx,
    "tflite": _write_tflite,
}


def _is_keras_s(layer: keras.layers.Layer) -> bool:
    return type(layer).__module__.startswith("keras.")


def _module(model: keras.Model) -> tf.Module:
    """What holds the variables of the model's functions."""
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    return module


def _of_pixels(model: keras.Model) -> Any:
    spec = tf.TensorSpec([None, *model.input.shape[1:]], tf.uint8, name="image")

    @tf.function(input_signature=[spec])
    def serve(image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": model(image, training=False)}

    return serve


def _of_files(model: keras.Model, decoding: Decoding | None) -> Any:
    shape = model.input.shape[1:]

    def decode(data: tf.Tensor) -> tf.Tensor:
        # Reads PNG too. INTEGER_ACCURATE gives the pixels that the data set was decoded to.
        image = tf.io.decode_jpeg(data, channels=shape[2], dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, shape)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")])
    def serve(image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        images = tf.map_fn(decode, image_bytes, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
        logits = model(images, training=False)
        if decoding is None:
            return {"logits": logits}
        return {"logits": logits, "label": decoding.texts(logits)}

    return serve


def _converted(name: str, convert: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return convert(*args, **options)
    except Exception as error:  # converters raise anything at an operation that they don't know
        raise _refused(name, f"the converter refuses the model ({error})") from error


def _refused(name: str, reason: str) -> DataError:
    return DataError(CONFIG, f"--format {name}", reason, fix="use --format saved_model")
