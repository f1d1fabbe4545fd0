"""Evaluates every example of a split exactly once, shared out over all ranks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from data_tools.manifest import Manifest
from hvd_train import dist
from hvd_train.data.sharding import even_split
from hvd_train.data.source import Batch, Source
from hvd_train.decoding import decoding_of
from hvd_train.dist import World
from hvd_train.task import TaskModel

BATCH = 256
"""Examples a rank and forward pass; it changes the speed, not the result."""
MAX_CONFUSED = 100
"""Classes or characters up to which it is counted which were taken for which."""
FEW_CLASSES = 10
"""Classes up to which it isn't counted how often the right one is among the best TOP."""
TOP = 5


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Counts and the mean loss over a whole split.

    Attributes:
        examples: how many there are.
        correct: those whose whole label is right.
        loss: the mean of theirs.
        positions: of each place of a label, how many labels reach it and how many of them are right
            there, [max_length][2].
        confusion: how often each class or character, by row, was taken for each, by column; None
            when there are more than MAX_CONFUSED, or labels of several lengths, whose characters
            have no counterparts.
        correct_at_5: those whose class is among the five likeliest; None of captchas, where
            there are few classes, and where a task's outputs aren't one for each class.
    """

    examples: int
    correct: int
    loss: float
    positions: list[list[int]]
    confusion: list[list[int]] | None
    correct_at_5: int | None = None

    @property
    def accuracy(self) -> float:
        """The share of examples whose whole label is right."""
        return self.correct / self.examples

    def details(self, manifest: Manifest) -> dict[str, Any]:
        """The accuracy of each class or, of captchas, at each position of the label."""
        if manifest.classes is None:
            shares = [right / max(there, 1) for there, right in self.positions]
            return {"accuracy_by_position": shares}
        if self.confusion is None:
            return {}
        rows = dict(zip(manifest.classes, self.confusion, strict=True))
        shares_by_class = {
            name: row[own] / sum(row) for own, (name, row) in enumerate(rows.items()) if any(row)
        }
        return {"accuracy_by_class": shares_by_class}


def label_names(manifest: Manifest) -> list[str]:
    """What the numbers in labels stand for: the classes, or the characters."""
    if manifest.classes is not None:
        return list(manifest.classes)
    assert manifest.label is not None
    return list(manifest.label.charset)


def num_confused(manifest: Manifest) -> int:
    """The rows of the confusion matrix, 0 when none is counted."""
    label, names = manifest.label, label_names(manifest)
    one_length = label is None or label.min_length == label.max_length
    return len(names) if one_length and len(names) <= MAX_CONFUSED else 0


class Evaluator:
    """Holds the compiled forward pass, so that it is traced once a run."""

    def __init__(
        self, task_model: TaskModel, source: Source, manifest: Manifest, world: World
    ) -> None:
        self._task_model = task_model
        self._source = source
        self._world = world
        self._max_length = manifest.label.max_length if manifest.label else 1
        self._confused = num_confused(manifest)
        self._manifest = manifest
        self._forward = tf.function(self._outputs_and_loss, reduce_retracing=True)

    def run(self, stops: Callable[[], bool]) -> Evaluation | None:
        """Returns the counts over the split; a collective.

        Args:
            stops: whether this rank is asked to stop. If one is in the middle, there is no result.
        """
        sums, is_cut = np.zeros(5), False
        positions = np.zeros((self._max_length, 2))
        confusion = np.zeros((self._confused, self._confused))
        with dist.agreed(self._world):
            for batch in self._own_batches():
                if is_cut := stops():
                    break
                inputs = self._task_model.eval_inputs(batch.images)
                outputs, loss = self._forward(inputs, batch.labels)
                predicted = self._task_model.predict(outputs.numpy())
                correct = np.all(predicted == batch.labels, axis=1)
                at_5 = self._count_top(outputs.numpy(), batch.labels)
                sums += [len(batch.ids), correct.sum(), float(loss), *at_5]
                positions += count_positions(batch.labels, predicted)
                confusion += count_confusion(batch.labels, predicted, self._confused)
        parts = [sums, positions.ravel(), confusion.ravel(), np.array([is_cut], float)]
        summed = dist.sum_over_ranks(np.concatenate(parts))
        sums, flat, rest, (cut,) = np.split(summed, np.cumsum([len(part) for part in parts[:-1]]))
        if cut:
            return None
        return Evaluation(
            examples=round(sums[0]), correct=round(sums[1]), loss=float(sums[2] / sums[0]),
            positions=flat.astype(int).reshape(positions.shape).tolist(),
            confusion=rest.astype(int).reshape(confusion.shape).tolist() if rest.size else None,
            correct_at_5=round(sums[3]) if sums[4] == sums[0] else None,
        )  # fmt: skip

    def _count_top(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
        """Examples whose class is among the likeliest, and of how many that can be told."""
        decoding = decoding_of(outputs.shape, self._manifest)
        if len(self._manifest.classes or ()) <= FEW_CLASSES or decoding is None:
            return 0, 0
        return count_top(outputs, labels), len(labels)

    def _own_batches(self) -> Iterator[Batch]:
        share = even_split(len(self._source), rank=self._world.rank, size=self._world.size)
        for start in share[::BATCH]:
            yield self._source.gather(np.arange(start, min(start + BATCH, share.stop)))

    def _outputs_and_loss(
        self, inputs: tf.Tensor, labels: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = self._task_model.model(inputs, training=False)
        losses = self._task_model.losses(outputs, labels)
        return outputs, tf.reduce_sum(tf.cast(losses, tf.float64))


def count_positions(labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Counts for each position the labels that reach it and those that are right there.

    Args:
        labels: int32 [n, max_length], shorter ones filled up with -1.
        predicted: the same for the predictions.

    Returns:
        int64 [max_length, 2].
    """
    there = labels >= 0
    return np.stack([there.sum(axis=0), (there & (labels == predicted)).sum(axis=0)], axis=1)


def count_top(outputs: np.ndarray, labels: np.ndarray) -> int:
    """Counts the examples whose class has one of the TOP largest outputs.

    Args:
        outputs: [n, classes]; where some are equal, as many of them as there are count.
        labels: int32 [n, 1].
    """
    own = np.take_along_axis(outputs, labels, axis=1)
    larger = ~(outputs <= own)  # what isn't a number is never among the largest
    return int(np.count_nonzero(larger.sum(axis=1) < TOP))


def count_confusion(labels: np.ndarray, predicted: np.ndarray, size: int) -> np.ndarray:
    """Counts which number of a label was taken for which, int64 [size, size]; of 0, nothing."""
    if not size:
        return np.zeros((0, 0), np.int64)
    pairs = labels.ravel().astype(np.int64) * size + predicted.ravel()
    return np.bincount(pairs, minlength=size * size).reshape(size, size)
