"""What a task is to the training loop: a model, its loss, and what counts as right."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from data_tools import datasets
from data_tools.errors import CONFIG, DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest
from hvd_train.config import CaptchaConfig, CifarConfig, TrainConfig
from hvd_train.data import augment
from hvd_train.models import ctc, linear, tutorial


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskModel:
    """A model and how to feed, train and read it.

    Attributes:
        model: inputs to outputs.
        train_inputs: (images, ids, epochs) of a training batch to the model's inputs: uint8
            [n, H, W, C], the examples' numbers in the split and the epoch of each visit, int64 [n].
        eval_inputs: images to the model's inputs.
        losses: (outputs, labels) to the loss of each example [n]; runs inside tf.function.
        decayed: the weights that weight decay pulls to 0.
        predict: outputs as NumPy array to labels as the source gives them, int32 [n, max_length].
    """

    model: keras.Model
    train_inputs: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    eval_inputs: Callable[[np.ndarray], np.ndarray]
    losses: Callable[[Any, Any], Any]
    decayed: Sequence[keras.Variable]
    predict: Callable[[np.ndarray], np.ndarray]

    def correct(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Tells for each example whether the whole label is right, bool [n]."""
        right: np.ndarray = np.all(self.predict(outputs) == labels, axis=1)
        return right


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A kind of data set and the models for it.

    Attributes:
        name: of the data set and the run folder, unless the user names others.
        kind: of the data sets that it takes.
        metric: what the share of right labels is called in files.
        metric_in_words: the same in lines.
        shown_each_step: whether each step's line shows it for the batch.
        how_to_make_data: the commands that make the data set.
        make_data: makes it, where it can be downloaded; all ranks of a host call it.
        build: (settings, manifest) to the model that they name.
    """

    name: str
    kind: str
    metric: str
    metric_in_words: str
    shown_each_step: bool
    how_to_make_data: tuple[str, ...]
    make_data: Callable[[Path], None] | None = None
    build: Callable[[Any, Manifest], TaskModel]


def set_dtype(config: TrainConfig) -> None:
    """Sets the type of the weights and of the arithmetic of all models built from now on."""
    dtype = config.run.dtype
    mixed = dtype in ("bfloat16", "float16")
    keras.config.set_floatx("float32" if mixed else dtype)
    keras.config.set_dtype_policy(f"mixed_{dtype}" if mixed else dtype)


def build_captcha(config: TrainConfig, manifest: Manifest) -> TaskModel:
    """Builds the model that a CaptchaConfig names.

    Raises:
        DataError: CONFIG when the data set's labels don't suit the model.
    """
    assert isinstance(config, CaptchaConfig)
    label = _label_spec(manifest)
    set_dtype(config)
    predict: Callable[[np.ndarray], np.ndarray]
    if config.model == "ctc":
        check_width(manifest.image, label)
        model, losses = ctc.build(manifest.image, label, batch_norm=config.batch_norm), ctc.losses
        predict = functools.partial(
            ctc.decode, min_length=label.min_length, max_length=label.max_length
        )
    elif label.min_length != label.max_length:
        raise DataError(
            CONFIG, "--model linear",
            f"labels have {label.min_length} to {label.max_length} characters, it needs one length",
            fix="use --model ctc",
        )  # fmt: skip
    else:
        model = linear.build(manifest.image, label, init_stddev=config.init_stddev)
        losses, predict = linear.losses, linear.decode
    shift = functools.partial(
        augment.shift, seed=config.run.seed,
        num_examples=manifest.splits[config.data.train_split].examples,
    )  # fmt: skip
    return TaskModel(
        model=model,
        train_inputs=shift if config.data.augment == "shift" else lambda images, *_: images,
        eval_inputs=lambda images: images,
        losses=losses,
        decayed=[v for v in model.trainable_variables if v.path.endswith("/kernel")],
        predict=predict,
    )


def check_width(image: ImageSpec, label: LabelSpec) -> None:
    """Raises CONFIG when the columns are too few: CTC sets a blank between equal neighbours."""
    if image.width < 2 * label.max_length - 1:
        raise DataError(
            CONFIG, "--model ctc",
            f"images {image.width} pixels wide are too narrow for {label.max_length} characters",
            fix="use --model linear, or wider images",
        )  # fmt: skip


def _label_spec(manifest: Manifest) -> LabelSpec:
    if manifest.label is None:
        raise DataError(
            CONFIG, manifest.name, f"a data set of kind {manifest.kind} has no captcha labels",
            fix="name a captcha data set with --data",
        )  # fmt: skip
    return manifest.label


def build_classes(config: TrainConfig, manifest: Manifest) -> TaskModel:
    """Builds the model that a CifarConfig names, for any set of classes.

    Raises:
        DataError: CONFIG when the images are smaller than what the model sees.
    """
    assert isinstance(config, CifarConfig)
    assert manifest.classes is not None
    image, size = manifest.image, config.image_size
    if size > min(image.height, image.width):
        raise DataError(
            CONFIG, "--image-size", f"{size}, the images are {image.width}x{image.height}",
            fix=f"use at most {min(image.height, image.width)}",
        )  # fmt: skip
    set_dtype(config)
    model = tutorial.build(size, image.channels, len(manifest.classes))
    center = functools.partial(augment.center, size=size)
    distort = functools.partial(
        augment.distort, size=size, seed=config.run.seed,
        num_examples=manifest.splits[config.data.train_split].examples,
    )  # fmt: skip
    return TaskModel(
        model=model,
        train_inputs=distort if config.data.augment == "distort" else lambda x, *_: center(x),
        eval_inputs=center,
        losses=tutorial.losses,
        decayed=tutorial.decayed(model),
        predict=lambda logits: np.argmax(logits, axis=1).astype(np.int32)[:, None],
    )


CAPTCHA = Task(
    name="captcha",
    kind="captcha",
    metric="accuracy",
    metric_in_words="accuracy",
    shown_each_step=True,
    how_to_make_data=(
        "data_tools make-captcha captcha-images",
        "data_tools captcha-to-tfrecord captcha-images captcha-images/labels.csv datasets/captcha",
    ),
    build=build_captcha,
)

CIFAR = Task(
    name="cifar10",
    kind="classes",
    metric="precision_at_1",
    metric_in_words="precision @ 1",
    shown_each_step=False,
    how_to_make_data=datasets.HOW_TO_MAKE_CIFAR10,
    make_data=datasets.make_cifar10,
    build=build_classes,
)
