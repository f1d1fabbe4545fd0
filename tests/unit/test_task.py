"""What counts as right, and which data suits which model."""

import dataclasses

import numpy as np
import pytest

from data_tools.errors import DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest, Split
from hvd_train.config import CaptchaConfig, RunConfig
from hvd_train.task import CAPTCHA, TaskModel, build_captcha

MANIFEST = Manifest(
    tool="0.1.0", name="set", kind="captcha", created_from={},
    image=ImageSpec(height=20, width=80, channels=3, encoding="raw"),
    label=LabelSpec(charset="AB", min_length=2, max_length=4, case="keep"),
    classes=None, skipped=(),
    splits={"train": Split(examples=9, offsets="offsets-train.npy", shards=())},
)  # fmt: skip


def test_an_example_is_right_only_if_its_whole_label_is() -> None:
    predicted = np.array([[1, 2, -1], [1, 2, 0], [1, 2, -1], [0, 2, -1]], np.int32)
    labels = np.array([[1, 2, -1], [1, 2, 0], [1, 2, 0], [1, 2, -1]], np.int32)
    task_model = TaskModel(
        model=None, train_inputs=lambda x, *_: x, eval_inputs=lambda x: x,
        losses=lambda *_: None, decayed=(), predict=lambda _: predicted,
    )  # fmt: skip
    assert task_model.correct(np.zeros(4), labels).tolist() == [True, True, False, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_model_computes_in_the_type_of_the_settings(dtype: str) -> None:
    config = CaptchaConfig(run=RunConfig(dtype=dtype))  # type: ignore[arg-type]
    model = build_captcha(config, MANIFEST).model
    assert {variable.dtype for variable in model.variables} == {dtype}
    assert model(np.zeros((1, 20, 80, 3), np.uint8)).dtype == dtype


def test_ctc_predicts_only_lengths_that_the_data_set_has() -> None:
    task_model = build_captcha(CaptchaConfig(), MANIFEST)
    logits = np.random.default_rng(0).normal(size=(200, 20, 3))
    logits[:100, :, 2] += 20  # blank nearly everywhere
    lengths = (task_model.predict(logits) >= 0).sum(axis=1)
    assert lengths.min() == 2
    assert lengths.max() == 4


def test_linear_refuses_labels_of_several_lengths() -> None:
    with pytest.raises(DataError) as caught:
        build_captcha(CaptchaConfig(model="linear"), MANIFEST)
    assert str(caught.value) == (
        "error: CONFIG: --model linear: labels have 2 to 4 characters, it needs one length; "
        "use --model ctc"
    )


def test_a_data_set_without_captcha_labels_is_config() -> None:
    other = dataclasses.replace(MANIFEST, kind="cifar", name="cifar10", label=None)
    with pytest.raises(DataError) as caught:
        build_captcha(CaptchaConfig(), other)
    assert str(caught.value) == (
        "error: CONFIG: cifar10: a data set of kind cifar has no captcha labels; "
        "name a captcha data set with --data"
    )


def test_the_commands_that_make_the_data_are_those_that_exist() -> None:
    from data_tools import cli

    named = {command.split()[1] for command in CAPTCHA.how_to_make_data}
    assert named <= set(cli.COMMANDS)
