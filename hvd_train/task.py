"""What a task is to the training loop: a model, its loss, and what counts as right."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import keras
import numpy as np

from data_tools import datasets
from data_tools.errors import CONFIG, DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest
from hvd_train.config import CaptchaConfig, CifarConfig, TrainConfig
from hvd_train.data import augment
from hvd_train.data.source import Batch, Source
from hvd_train.models import ctc, linear, stock, tutorial

PrepareBatch = Callable[[np.ndarray, np.ndarray], Batch]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskModel:
    """A model and how to feed, train and read it.

    Attributes:
        model: inputs to outputs.
        train_inputs: (images, ids, epochs) of a training batch to the model's inputs: uint8
            [n, H, W, C], the examples' numbers in the split and the epoch of each visit, int64 [n].
        mixup: (prepare, ids, epochs) to a training batch that mixes examples; prepare makes a batch
            of ids and epochs by `train_inputs`. None trains on the examples as they are.
        eval_inputs: images to the model's inputs.
        eval_layers: the same of Keras tensors, for export.
        losses: (outputs, labels) to the loss of each example [n]; runs inside tf.function.
        decayed: the weights that weight decay pulls to 0.
        predict: outputs as NumPy array to labels as the source gives them, int32 [n, max_length].
    """

    model: keras.Model
    train_inputs: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = lambda x, *_: x
    eval_inputs: Callable[[np.ndarray], np.ndarray] = lambda x: x
    eval_layers: Callable[[Any], Any] = lambda x: x
    losses: Callable[[Any, Any], Any]
    decayed: Sequence[keras.Variable] = ()
    predict: Callable[[np.ndarray], np.ndarray]
    mixup: Callable[[PrepareBatch, np.ndarray, np.ndarray], Batch] | None = None

    def train_batch(self, source: Source, ids: np.ndarray, epochs: np.ndarray) -> Batch:
        """Reads examples, int64 [n], each in an epoch, int64 [n], as the model trains on them."""

        def prepare(ids: np.ndarray, epochs: np.ndarray) -> Batch:
            batch = source.gather(ids)
            inputs = self.train_inputs(batch.images, batch.ids, epochs)
            return dataclasses.replace(batch, images=inputs)

        return prepare(ids, epochs) if self.mixup is None else self.mixup(prepare, ids, epochs)

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
        config_type: of the settings.
    """

    name: str
    kind: str
    metric: str = "accuracy"
    metric_in_words: str = "accuracy"
    shown_each_step: bool = False
    how_to_make_data: tuple[str, ...] = ("data_tools --help",)
    make_data: Callable[[Path], None] | None = None
    build: Callable[[Any, Manifest], TaskModel]
    config_type: type[TrainConfig] = TrainConfig


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

    def train_inputs(images: np.ndarray, ids: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        for name in config.data.augmentations:
            images = CAPTCHA_CHANGES[name](images, ids, epochs, **numbers)
        return images

    numbers = drawn_by(config, manifest)
    return TaskModel(
        model=model,
        train_inputs=train_inputs,
        losses=losses,
        decayed=[v for v in model.trainable_variables if v.path.endswith("/kernel")],
        predict=predict,
    )


CAPTCHA_CHANGES = {"shift": augment.shift, "rotate": augment.rotate, "noise": augment.noise}
CLASS_CHANGES = {"distort": augment.distort, "crop": augment.random_crop}


class DrawnBy(TypedDict):
    """What the random numbers of augmentation depend on, beside the epoch and the example."""

    seed: int
    num_examples: int


def drawn_by(config: TrainConfig, manifest: Manifest) -> DrawnBy:
    """Returns what a run's random numbers depend on."""
    examples = manifest.splits[config.data.train_split].examples
    return {"seed": config.run.seed, "num_examples": examples}


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
    numbers = drawn_by(config, manifest)
    mixup = functools.partial(
        augment.mixup, alpha=config.mixup, num_classes=len(manifest.classes), **numbers
    )

    def train_inputs(images: np.ndarray, ids: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        change = CLASS_CHANGES.get(config.data.augment)
        inputs = change(images, ids, epochs, size=size, **numbers) if change else center(images)
        if config.cutout:
            augment.cutout(inputs, ids, epochs, side=config.cutout, **numbers)
        return inputs

    return TaskModel(
        model=model,
        train_inputs=train_inputs,
        mixup=mixup if config.mixup else None,
        eval_inputs=center,
        eval_layers=functools.partial(stock.center, size=size),
        losses=tutorial.losses,
        decayed=tutorial.decayed(model),
        predict=lambda logits: np.argmax(logits, axis=1).astype(np.int32)[:, None],
    )


CAPTCHA = Task(
    name="captcha",
    kind="captcha",
    shown_each_step=True,
    how_to_make_data=(
        "data_tools make-captcha captcha-images",
        "data_tools captcha-to-tfrecord captcha-images captcha-images/labels.csv datasets/captcha",
    ),
    build=build_captcha,
    config_type=CaptchaConfig,
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
    config_type=CifarConfig,
)

BUILT_IN = {task.kind: task for task in (CAPTCHA, CIFAR)}
"""By kind of data set."""
