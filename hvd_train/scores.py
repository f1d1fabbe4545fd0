"""What a trained model reads in a whole split, and where it errs."""

import heapq
from dataclasses import dataclass

import numpy as np

from data_tools.manifest import Manifest
from hvd_train.data.source import Source
from hvd_train.evaluator import count_confusion, count_positions, label_names, num_confused
from hvd_train.predictor import Predictor, text_of

CHUNK = 2048
"""Examples read and predicted at a time."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """An example that was read wrong.

    Attributes:
        example: its number in the split.
        truth: its label in words.
        guess: what was read.
        probability: that the model gives to the guess.
        probability_of_truth: that it gives to the label.
    """

    example: int
    truth: str
    guess: str
    probability: float
    probability_of_truth: float


@dataclass(frozen=True, slots=True)
class Scores:
    """Counts over a split.

    Attributes:
        examples: how many there are.
        correct: those whose whole label is right.
        positions: of each place of a label, how many reach it and are right there, int64 [L, 2].
        names: of each class or character, how often it is in a label and was read at its place,
            int64 [number of names, 2].
        confusion: as an Evaluation has it, int64 [names, names]; [0, 0] where none is counted.
        worst: the mistakes whose guess is most probable, the most probable first.
    """

    examples: int
    correct: int
    positions: np.ndarray
    names: np.ndarray
    confusion: np.ndarray
    worst: list[Mistake]


def score(predictor: Predictor, source: Source, manifest: Manifest, *, num_worst: int) -> Scores:
    """Reads every example of a split once."""
    num_names, confused = len(label_names(manifest)), num_confused(manifest)
    correct, worst = 0, list[Mistake]()
    positions = np.zeros((manifest.label.max_length if manifest.label else 1, 2), np.int64)
    names = np.zeros((num_names, 2), np.int64)
    confusion = np.zeros((confused, confused), np.int64)
    for start in range(0, len(source), CHUNK):
        batch = source.gather(np.arange(start, min(start + CHUNK, len(source))))
        found = predictor.predict(batch.images)
        of_truth = predictor.probabilities(found.outputs, batch.labels)
        wrong = np.flatnonzero(np.any(found.labels != batch.labels, axis=1))
        correct += len(batch.ids) - len(wrong)
        positions += count_positions(batch.labels, found.labels)
        names += count_names(batch.labels, found.labels, num_names)
        confusion += count_confusion(batch.labels, found.labels, confused)
        mistakes = [
            Mistake(
                int(batch.ids[row]), text_of(batch.labels[row], manifest),
                text_of(found.labels[row], manifest), float(found.probabilities[row]),
                float(of_truth[row]),
            )
            for row in wrong
        ]  # fmt: skip
        worst = heapq.nlargest(num_worst, [*worst, *mistakes], key=lambda one: one.probability)
    return Scores(len(source), correct, positions, names, confusion, worst)


def count_names(labels: np.ndarray, predicted: np.ndarray, size: int) -> np.ndarray:
    """Counts how often each class or character is in a label, and how often it was read there.

    Args:
        labels: int32 [n, max_length], shorter ones filled up with -1.
        predicted: the same for the predictions.
        size: the number of classes or characters.

    Returns:
        int64 [size, 2].
    """
    there = labels >= 0
    right = there & (labels == predicted)
    return np.stack([np.bincount(labels[one], minlength=size) for one in (there, right)], axis=1)
