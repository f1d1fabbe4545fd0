"""What `hvd_train evaluate` says of an evaluation, and which data sets it takes."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_tools.errors import DataError
from data_tools.manifest import ImageSpec, LabelSpec
from hvd_train.evaluate import table, told
from hvd_train.evaluator import Evaluation
from hvd_train.results import AVERAGES, WEIGHTS
from hvd_train.saved_run import check_fits
from hvd_train.task import CIFAR

IMAGE = ImageSpec(height=32, width=32, channels=3, encoding="raw")
LABEL = LabelSpec(charset="AB", min_length=4, max_length=6, case="keep")


def manifest(**values: Any) -> Any:
    return SimpleNamespace(**{"image": IMAGE, "classes": None, "label": None, **values})


def saved(of: Any) -> Any:
    config = SimpleNamespace(data=SimpleNamespace(test_split="test"))
    return SimpleNamespace(folder=Path("runs/a"), manifest=of, task=CIFAR, config=config)


def of_classes(confusion: list[list[int]] | None, at_5: int | None = None) -> Evaluation:
    return Evaluation(
        examples=8, correct=3, loss=0.5, positions=[[8, 3]], confusion=confusion, correct_at_5=at_5
    )


def test_the_tutorial_s_line_comes_first_and_others_say_how_they_differ() -> None:
    run = saved(manifest(classes=("cat", "dog")))
    assert told(of_classes(None), run, "test", AVERAGES, 70) == [
        "precision @ 1 = 0.375", "test: 3 of 8 right after 70 steps",
    ]  # fmt: skip
    assert told(of_classes(None, at_5=6), run, "train", WEIGHTS, 70) == [
        "train precision @ 1 = 0.375, without moving averages",
        "train precision @ 5 = 0.750, without moving averages",
        "train: 3 of 8 right after 70 steps, without moving averages",
    ]


def test_the_table_is_by_class_where_there_are_examples() -> None:
    confusion = [[1, 3, 0], [0, 0, 0], [2, 0, 2]]
    of = manifest(classes=("cat", "horse", "ox"))
    assert table(of_classes(confusion), of) == ["  cat  0.250  1 of 4", "  ox   0.500  2 of 4"]
    assert table(of_classes(None), of) == []


def test_of_many_classes_the_worst_are_shown() -> None:
    names = tuple(f"c{n}" for n in range(30))
    confusion = [[0] * 30 for _ in names]
    for n, row in enumerate(confusion):
        row[n], row[0] = n, row[0] + 30 - n
    lines = table(of_classes(confusion), manifest(classes=names))
    assert lines[:2] == ["  c1   0.033  1 of 30", "  c2   0.067  2 of 30"]
    assert len(lines) == 21
    assert lines[-1] == "  the 10 better ones: see eval.json"


def test_the_table_of_captchas_is_by_position() -> None:
    evaluation = Evaluation(
        examples=8, correct=3, loss=0.5, positions=[[8, 4], [2, 1], [0, 0]], confusion=None
    )
    assert table(evaluation, manifest(label=LABEL)) == [
        "  position 1  0.500  4 of 8", "  position 2  0.500  1 of 2",
    ]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), [(4, 6), (5, 5)])
def test_labels_as_long_as_the_run_s_fit(low: int, high: int) -> None:
    other = manifest(label=dataclasses.replace(LABEL, min_length=low, max_length=high))
    check_fits(saved(manifest(label=LABEL)), Path("set"), other)


FIX = "name another data set with --data"
REFUSED = {
    "channels": (
        manifest(classes=("a",), image=dataclasses.replace(IMAGE, channels=1)),
        f"set: images of 32x32x1, the run's are 32x32x3; {FIX}",
    ),
    "classes": (manifest(classes=("b",)), f"set: its classes are not the run's; {FIX}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_images_and_classes_are_refused(case: str) -> None:
    other, line = REFUSED[case]
    with pytest.raises(DataError) as caught:
        check_fits(saved(manifest(classes=("a",))), Path("set"), other)
    assert str(caught.value) == f"error: CONFIG: {line}"
