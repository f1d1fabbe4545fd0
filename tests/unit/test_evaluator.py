"""What an evaluation counts for each class, character and position."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_tools.manifest import LabelSpec, Manifest
from hvd_train.evaluator import (
    MAX_CONFUSED,
    Evaluation,
    Evaluator,
    count_confusion,
    count_positions,
    count_top,
    label_names,
    num_confused,
)

LABEL = LabelSpec(charset="ABC", min_length=2, max_length=2, case="keep")


def manifest(**values: object) -> Manifest:
    return SimpleNamespace(**{"classes": None, "label": None, **values})  # type: ignore[return-value]


def test_a_position_counts_the_labels_that_reach_it_and_those_right_there() -> None:
    labels = np.array([[0, 1, -1], [2, -1, -1], [1, 1, 1]])
    predicted = np.array([[0, 2, -1], [2, 0, -1], [0, 1, 1]])
    assert count_positions(labels, predicted).tolist() == [[3, 2], [2, 1], [1, 1]]


def test_confusion_counts_what_was_taken_for_what() -> None:
    labels, predicted = np.array([[0], [0], [2], [1]]), np.array([[0], [1], [2], [1]])
    assert count_confusion(labels, predicted, 3).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_confusion_of_captchas_counts_the_characters_of_each_position() -> None:
    counts = count_confusion(np.array([[0, 1], [1, 2]]), np.array([[0, 0], [1, 2]]), 3)
    assert counts.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("of", "size"),
    [
        (manifest(classes=("cat", "dog")), 2),
        (manifest(classes=tuple(map(str, range(MAX_CONFUSED)))), MAX_CONFUSED),
        (manifest(classes=tuple(map(str, range(MAX_CONFUSED + 1)))), 0),
        (manifest(label=LABEL), 3),
        (manifest(label=dataclasses.replace(LABEL, min_length=1)), 0),
    ],
)
def test_confusion_is_counted_of_few_classes_and_labels_of_one_length(
    of: Manifest, size: int
) -> None:
    assert num_confused(of) == size
    assert count_confusion(np.zeros((1, 1), int), np.zeros((1, 1), int), size).shape == (size, size)


def test_the_right_class_is_sought_among_the_five_largest_outputs() -> None:
    rows = [[9, 8, 7, 6, 5, 4, 3], [0, 0, 0, 0, 0, 0, 0], [1, 2, 3, np.nan, np.nan, np.nan, np.nan]]
    outputs = np.array(rows, np.float32)
    found = [[count_top(outputs[[n]], np.array([[k]])) for k in range(7)] for n in range(3)]
    # Equal ones are all among the largest; what isn't a number is the largest, and never right.
    assert found == [[1, 1, 1, 1, 1, 0, 0], [1] * 7, [0, 0, 1, 0, 0, 0, 0]]
    assert count_top(outputs[[0, 0, 1]], np.array([[6], [4], [6]])) == 2


@pytest.mark.parametrize(("width", "counted"), [(12, (3, 3)), (8, (0, 0))])
def test_the_five_likeliest_are_told_of_outputs_for_each_class_alone(
    width: int, counted: tuple[int, int]
) -> None:
    classes = tuple(map(str, range(12)))
    task_model: Any = None
    source: Any = None
    world: Any = None
    evaluator = Evaluator(task_model, source, manifest(classes=classes), world)
    labels = np.array([[0], [1], [11]], np.int32)
    assert evaluator._count_top(np.zeros((3, width)), labels) == counted


def test_the_numbers_of_labels_stand_for_classes_or_characters() -> None:
    assert label_names(manifest(classes=("cat", "dog"))) == ["cat", "dog"]
    assert label_names(manifest(label=LABEL)) == ["A", "B", "C"]


def test_details_are_by_class_or_by_position() -> None:
    evaluation = Evaluation(
        examples=4, correct=2, loss=0.5, positions=[[4, 2]],
        confusion=[[1, 1, 0], [1, 1, 0], [0, 0, 0]],
    )  # fmt: skip
    assert evaluation.accuracy == 0.5
    # No example, no share.
    assert evaluation.details(manifest(classes=("cat", "dog", "owl"))) == {
        "accuracy_by_class": {"cat": 0.5, "dog": 0.5}
    }
    assert evaluation.details(manifest(label=LABEL)) == {"accuracy_by_position": [0.5]}
    many = dataclasses.replace(evaluation, confusion=None)
    assert many.details(manifest(classes=("a",) * 200)) == {}
