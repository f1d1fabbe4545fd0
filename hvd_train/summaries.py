"""What TensorBoard shows of a model's inside: images, histograms, sparsity, graph, confusion.

On the chief alone and without any collective, so that the other ranks only wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import metadata as histogram_plugin
from tensorboard.plugins.image import metadata as image_plugin
from tensorboard.util.tensor_util import make_tensor_proto

from data_tools import images
from hvd_train.data.source import Batch
from hvd_train.metric_writer import MetricWriter
from hvd_train.task import TaskModel

IMAGES = 3
"""Shown of a batch, as the tutorial did."""
EXAMPLES = 16
"""Of the chief's batch, whose activations and gradients are shown."""
BUCKETS = 30
"""Of a histogram, as TensorBoard's own."""
LOSS_DECAY = 0.9
"""Of the smoothed losses, the tutorial's."""

ACTIVATIONS = (
    keras.layers.Activation, keras.layers.ELU, keras.layers.LeakyReLU, keras.layers.PReLU,
    keras.layers.ReLU, keras.layers.Softmax,
)  # fmt: skip


@dataclass(slots=True)
class Smoothed:
    """Moving averages of numbers, unbiased from the first on, of the tutorial's decay.

    As tf.train.ExponentialMovingAverage(0.9) keeps them of tensors, which are averaged from 0 and
    divided by 1 - 0.9^t.

    Attributes:
        sums: the averages, by name, as if each had been 0 before its first number.
        weight: what they are to be divided by.
    """

    sums: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0

    def update(self, **values: float) -> None:
        """Takes in the numbers of one step."""
        self.weight = LOSS_DECAY * self.weight + (1 - LOSS_DECAY)
        for name, value in values.items():
            self.sums[name] = LOSS_DECAY * self.sums.get(name, 0.0) + (1 - LOSS_DECAY) * value

    def values(self) -> dict[str, float]:
        """The averages, by name and `_smoothed`."""
        return {f"{name}_smoothed": total / self.weight for name, total in self.sums.items()}


class Summaries:
    """Looks into a model on some examples, in a compiled function of its own.

    The model runs as in evaluation, so batch normalisation uses its moving statistics and talks to
    no other rank. The gradients are those of the mean loss of these examples, not of the update.
    """

    def __init__(self, task_model: TaskModel) -> None:
        self._task_model = task_model
        self._model = task_model.model
        self._last = self._model.layers[-1].name
        self._tapped: keras.Model | None = None
        if self.shows_activations:
            taps = {layer.name: layer.output for layer in self._model.layers if activates(layer)}
            outputs = {**taps, self._last: self._model.outputs[0]}
            self._tapped = keras.Model(self._model.inputs, outputs)
        self._compiled = tf.function(self._look)

    @property
    def shows_activations(self) -> bool:
        """Whether Keras knows what is between the layers, as it does not in a subclassed model."""
        return bool(getattr(self._model, "outputs", None))

    def write(self, step: int, batch: Batch, writer: MetricWriter) -> dict[str, float]:
        """Writes the images, histograms and, at step 0, the graph.

        Returns:
            The share of zeros in each layer's activations, by `sparsity/` and layer.
        """
        some = (tf.constant(batch.images[:EXAMPLES]), tf.constant(batch.labels[:EXAMPLES]))
        activations, gradients = self._compiled(*some)
        arrays = {
            "activations": {name: a.numpy() for name, a in activations.items()},
            "gradients": {name: g.numpy() for name, g in gradients.items()},
            "weights": {v.path: v.numpy() for v in self._model.trainable_variables},
        }
        values = [image_value("images", [to_pixels(image) for image in batch.images[:IMAGES]])]
        for kind, named in arrays.items():
            values += [histogram_value(f"{kind}/{name}", array) for name, array in named.items()]
        writer.show(step, values)
        if step == 0:
            graph = self._compiled.get_concrete_function(*some).graph.as_graph_def()
            writer.show_graph(graph.SerializeToString())
        return {f"sparsity/{name}": sparsity(a) for name, a in arrays["activations"].items()}

    def _look(self, inputs: Any, labels: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Activations by tapped layer, and the gradient by variable."""
        variables = {v.path: v.value for v in self._model.trainable_variables}
        with tf.GradientTape() as tape:
            if self._tapped is None:
                activations, outputs = {}, self._model(inputs, training=False)
            else:
                activations = self._tapped(inputs, training=False)
                outputs = activations[self._last]
            loss = tf.reduce_mean(self._task_model.losses(outputs, labels))
        gradients = tape.gradient(loss, variables)
        return (
            {name: tf.cast(a, tf.float32) for name, a in activations.items()},
            {name: tf.cast(g, tf.float32) for name, g in gradients.items() if g is not None},
        )


def activates(layer: keras.layers.Layer) -> bool:
    """Tells whether a layer ends in a function that isn't linear."""
    linear = keras.activations.linear
    return isinstance(layer, ACTIVATIONS) or getattr(layer, "activation", linear) is not linear


def sparsity(values: np.ndarray) -> float:
    """The share of zeros."""
    return 1.0 - np.count_nonzero(values) / values.size


def to_pixels(image: np.ndarray) -> np.ndarray:
    """Makes a model's input a picture: uint8 as it is, else by the tutorial's rule.

    That of tf.summary.image in TensorFlow 1: where there are values below 0, 0 is shown as 128 and
    the largest magnitude moves that by 127; otherwise the largest value is shown as 255.

    Args:
        image: [height, width, channels], uint8 or finite floats.

    Returns:
        uint8 of the same shape.
    """
    if image.dtype == np.uint8:
        return image
    largest = max(float(np.abs(image).max()), 1e-6)
    scale, zero = (127.0 / largest, 128.0) if image.min() < 0 else (255.0 / largest, 0.0)
    return (image * scale + zero).astype(np.uint8)


def image_value(tag: str, pictures: Sequence[np.ndarray]) -> Summary.Value:
    """Pictures for TensorBoard, each uint8 [height, width, 1 or 3], as PNG."""
    height, width = pictures[0].shape[:2]
    coloured = [np.broadcast_to(picture, (height, width, 3)) for picture in pictures]
    encoded = [images.encode_png(np.ascontiguousarray(picture)) for picture in coloured]
    return Summary.Value(
        tag=tag,
        tensor=make_tensor_proto([str(width).encode(), str(height).encode(), *encoded]),
        metadata=image_plugin.create_summary_metadata(display_name=None, description=None),
    )


def histogram_value(tag: str, values: np.ndarray) -> Summary.Value:
    """A histogram for TensorBoard of the finite values: left and right edge and count by bucket."""
    values = values.ravel()
    if not (np.isfinite(values.min(initial=0)) and np.isfinite(values.max(initial=0))):
        values = values[np.isfinite(values)]
    counts, edges = np.histogram(values, BUCKETS)
    buckets = np.stack([edges[:-1], edges[1:], counts], axis=1).astype(np.float64)
    return Summary.Value(
        tag=tag,
        tensor=make_tensor_proto(buckets),
        metadata=histogram_plugin.create_summary_metadata(display_name=None, description=None),
    )


def confusion_value(
    tag: str, counts: Sequence[Sequence[int]], names: Sequence[str]
) -> Summary.Value:
    """The picture of a confusion matrix for TensorBoard; see draw_confusion."""
    return image_value(tag, [draw_confusion(np.array(counts), names)])


def draw_confusion(counts: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Draws which class, by row, was taken for which, by column, as shares of the row.

    The darker, the more; each cell bears its percentage where there are 40 classes at most.

    Args:
        counts: int [n, n].
        names: of the n classes or characters.

    Returns:
        uint8 [height, width, 3].
    """
    font = ImageFont.load_default(11)
    cell = 24 if len(names) <= 40 else 12
    labels = [name.encode("latin-1", "backslashreplace").decode("latin-1")[:16] for name in names]
    margin = 6 + round(max(font.getlength(label) for label in labels))
    side = margin + cell * len(names)
    sheet = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(sheet)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row, label in enumerate(labels):
        middle = margin + cell * row + cell // 2
        draw.text((margin - 3, middle), label, "black", font, anchor="rm")
        turned = Image.new("RGB", (margin, cell), "white")
        ImageDraw.Draw(turned).text((3, cell // 2), label, "black", font, anchor="lm")
        sheet.paste(turned.rotate(90, expand=True), (margin + cell * row, 0))
        for column, share in enumerate(shares[row]):
            left, top = margin + cell * column, margin + cell * row
            shade = round(255 * (1 - share))
            draw.rectangle((left, top, left + cell - 1, top + cell - 1), (shade, shade, 255))
            if cell > 12 and share >= 0.005:
                ink = "white" if share > 0.5 else "black"
                at = (left + cell // 2, top + cell // 2)
                draw.text(at, f"{100 * share:.0f}", ink, font, anchor="mm")
    return np.asarray(sheet)
