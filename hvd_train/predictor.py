"""What a trained model reads in images: labels, and how sure it is of each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from data_tools.manifest import Manifest
from hvd_train.task import TaskModel

BATCH = 256
"""Images a forward pass; it changes the speed, not the result."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """What was read in n images.

    Attributes:
        outputs: of the model, float32 [n, ...].
        labels: int32 [n, max_length], as a source has them.
        probabilities: that the model gives to the whole label, float32 [n], between 0 and 1.
    """

    outputs: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray


class Predictor:
    """Holds the compiled forward pass of a model, so that it is traced once."""

    def __init__(self, task_model: TaskModel) -> None:
        self._task_model = task_model
        self._forward = tf.function(self._outputs, reduce_retracing=True)
        self._losses = tf.function(task_model.losses, reduce_retracing=True)

    def predict(self, images: np.ndarray) -> Predictions:
        """Reads images, uint8 [n, H, W, C]."""
        outputs = np.concatenate([self._forward(part).numpy() for part in self._inputs(images)])
        labels = self._task_model.predict(outputs)
        return Predictions(outputs, labels, self.probabilities(outputs, labels))

    def probabilities(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The probability of labels, int32 [n, max_length]: float32 [n].

        A task's loss is the negative logarithm of the label's probability.
        """
        parts = [
            self._losses(outputs[at : at + BATCH], labels[at : at + BATCH]).numpy()
            for at in range(0, len(outputs), BATCH)
        ]
        found: np.ndarray = np.exp(-np.concatenate(parts)).astype(np.float32)
        return found

    def _inputs(self, images: np.ndarray) -> Iterator[np.ndarray]:
        for at in range(0, len(images), BATCH):
            yield self._task_model.eval_inputs(images[at : at + BATCH])

    def _outputs(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.cast(self._task_model.model(inputs, training=False), tf.float32)


def text_of(label: np.ndarray, manifest: Manifest) -> str:
    """A label, int32 [max_length], in words: the name of its class, or its characters."""
    if manifest.classes is not None:
        return manifest.classes[int(label[0])]
    assert manifest.label is not None
    return "".join(manifest.label.charset[place] for place in label if place >= 0)
