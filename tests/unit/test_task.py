"""What counts as right, and which data suits which model."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from data_tools.errors import DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest, Split
from hvd_train.config import CaptchaConfig, CifarConfig, DataConfig, RunConfig
from hvd_train.data.augment import (
    center,
    cutout,
    distort,
    mixup,
    noise,
    random_crop,
    rotate,
    shift,
)
from hvd_train.data.source import Batch, MemorySource
from hvd_train.task import CAPTCHA, CIFAR, Task, TaskModel, build_captcha, build_classes

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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["ctc", "linear", "tutorial"])
def test_in_mixed_precision_weights_norms_and_logits_are_float32(name: str, dtype: str) -> None:
    own = RunConfig(dtype=dtype)  # type: ignore[arg-type]
    if name == "tutorial":
        model = build_classes(CifarConfig(run=own), CLASSES).model
    else:
        label = dataclasses.replace(MANIFEST.label, min_length=4)  # type: ignore[type-var]
        config = CaptchaConfig(run=own, model=name)  # type: ignore[arg-type]
        model = build_captcha(config, dataclasses.replace(MANIFEST, label=label)).model
    build_captcha(CaptchaConfig(), MANIFEST)  # sets the default type again
    assert {variable.dtype for variable in model.variables} == {"float32"}
    types = {layer.name: layer.compute_dtype for layer in model.layers if layer.weights}
    exact = {layer for layer, of_layer in types.items() if of_layer == "float32"}
    assert exact - {layer for layer in types if layer.startswith("norm")} == {
        "ctc": {"characters"}, "linear": set(), "tutorial": {"softmax_linear"},
    }[name]  # fmt: skip
    assert set(types.values()) - {"float32"} == {dtype}
    assert model(np.zeros((2, *model.input_shape[1:]), np.uint8)).dtype == "float32"


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


@pytest.mark.parametrize("task", [CAPTCHA, CIFAR], ids=lambda task: task.name)
def test_the_commands_that_make_the_data_are_those_that_exist(task: Task) -> None:
    from data_tools import cli

    named = {command.split()[1] for command in task.how_to_make_data}
    assert named <= set(cli.COMMANDS)


# Classes

CLASSES = dataclasses.replace(
    MANIFEST, name="cifar10", kind="classes", label=None, classes=tuple("abcdefghij"),
    image=ImageSpec(height=32, width=36, channels=3, encoding="raw"),
)  # fmt: skip


def class_images(count: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 32, 36, 3), np.uint8)


def test_the_network_has_an_output_for_each_class_of_the_set() -> None:
    assert build_classes(CifarConfig(), CLASSES).model.output_shape == (None, 10)
    many = dataclasses.replace(CLASSES, classes=tuple(map(str, range(100))))
    assert build_classes(CifarConfig(), many).model.output_shape == (None, 100)


def test_the_network_of_classes_takes_grey_images() -> None:
    grey = dataclasses.replace(CLASSES.image, channels=1)
    model = build_classes(CifarConfig(), dataclasses.replace(CLASSES, image=grey)).model
    assert model.input_shape == (None, 24, 24, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_network_of_classes_computes_in_the_type_of_the_settings(dtype: str) -> None:
    config = CifarConfig(run=RunConfig(dtype=dtype))  # type: ignore[arg-type]
    task_model = build_classes(config, CLASSES)
    assert {variable.dtype for variable in task_model.model.variables} == {dtype}
    outputs = task_model.model(task_model.eval_inputs(class_images()))
    assert outputs.dtype == dtype
    labels = np.zeros((9, 1), np.int32)
    assert task_model.losses(outputs, labels).dtype == dtype


def test_training_distorts_by_seed_epoch_and_example_and_evaluation_takes_the_middle() -> None:
    task_model = build_classes(CifarConfig(run=RunConfig(seed=3), image_size=20), CLASSES)
    ids, epochs = np.array([8, 0, 5]), np.array([1, 1, 2])
    images = class_images(3)
    expected = distort(images, ids, epochs, size=20, seed=3, num_examples=9)
    np.testing.assert_array_equal(task_model.train_inputs(images, ids, epochs), expected)
    np.testing.assert_array_equal(task_model.eval_inputs(images), center(images, size=20))


def test_without_augmentation_training_takes_the_middle_too() -> None:
    task_model = build_classes(CifarConfig(data=DataConfig(augment="none")), CLASSES)
    found = task_model.train_inputs(class_images(), np.arange(9), np.zeros(9, int))
    np.testing.assert_array_equal(found, center(class_images(), size=24))


def train_batch(config: CifarConfig, ids: np.ndarray, epochs: np.ndarray) -> Batch:
    labels = np.arange(9, dtype=np.int32)[:, None]
    source = MemorySource(Batch(np.arange(9), class_images(), labels))
    return build_classes(config, CLASSES).train_batch(source, ids, epochs)


def test_crops_cut_squares_and_mixed_pairs_combine() -> None:
    ids, epochs = np.array([8, 0, 5]), np.array([1, 1, 2])
    numbers: dict[str, Any] = {"seed": 3, "num_examples": 9}

    def prepare(ids: np.ndarray, epochs: np.ndarray) -> Batch:
        inputs = random_crop(class_images()[ids], ids, epochs, size=32, **numbers)
        cutout(inputs, ids, epochs, side=8, **numbers)
        return Batch(ids, inputs, ids[:, None])

    run = RunConfig(seed=3)
    data = DataConfig(augment="crop")
    config = CifarConfig(run=run, image_size=32, cutout=8, data=data)
    found, expected = train_batch(config, ids, epochs), prepare(ids, epochs)
    np.testing.assert_array_equal(found.images, expected.images)
    np.testing.assert_array_equal(found.labels, expected.labels)
    found = train_batch(dataclasses.replace(config, mixup=0.4), ids, epochs)
    expected = mixup(prepare, ids, epochs, alpha=0.4, num_classes=10, **numbers)
    np.testing.assert_array_equal(found.images, expected.images)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_captchas_are_changed_in_the_order_given() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 80, 3), np.uint8)
    ids, epochs = np.array([8, 0, 5]), np.array([1, 1, 2])
    numbers: dict[str, Any] = {"seed": 3, "num_examples": 9}
    for names, changes in (
        ("rotate,noise,shift", (rotate, noise, shift)), ("shift,rotate", (shift, rotate)),
        ("none", ()),
    ):  # fmt: skip
        config = CaptchaConfig(run=RunConfig(seed=3), data=DataConfig(augment=names))
        expected = images
        for change in changes:
            expected = change(expected, ids, epochs, **numbers)
        found = build_captcha(config, MANIFEST).train_inputs(images, ids, epochs)
        np.testing.assert_array_equal(found, expected)


def test_the_class_of_the_largest_logit_is_predicted() -> None:
    task_model = build_classes(CifarConfig(), CLASSES)
    logits = np.zeros((3, 10))
    logits[0, 9], logits[1, 4] = 1, 0.5
    predicted = task_model.predict(logits)
    assert (predicted.dtype, predicted.tolist()) == (np.int32, [[9], [4], [0]])
    labels = np.array([[9], [5], [0]], np.int32)
    assert task_model.correct(logits, labels).tolist() == [True, False, True]


def test_an_image_size_above_the_images_is_config() -> None:
    assert build_classes(CifarConfig(image_size=32), CLASSES).model.input_shape[1] == 32
    with pytest.raises(DataError) as caught:
        build_classes(CifarConfig(image_size=33), CLASSES)
    assert str(caught.value) == (
        "error: CONFIG: --image-size: 33, the images are 36x32; use at most 32"
    )


def test_weight_decay_of_captchas_is_of_kernels_only() -> None:
    for model in ("ctc", "linear"):
        fixed = dataclasses.replace(MANIFEST.label, min_length=4)  # type: ignore[type-var]
        config = CaptchaConfig(model=model)  # type: ignore[arg-type]
        task_model = build_captcha(config, dataclasses.replace(MANIFEST, label=fixed))
        names = {variable.path.rpartition("/")[2] for variable in task_model.decayed}
        assert names == {"kernel"}
