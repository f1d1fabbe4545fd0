"""What a task is to the training loop: a model, its loss, and what counts as right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from data_tools.errors import CONFIG, DataError
from data_tools.manifest import LabelSpec, Manifest
from hvd_train.config import CaptchaConfig, TrainConfig
from hvd_train.models import ctc, linear


@dataclass(frozen=True, kw_only=True, slots=True)
class Recogniser:
    """A model and how to train and read it.

    Attributes:
        model: uint8 images [n, H, W, C] to outputs.
        losses: (outputs, labels) to the loss of each example [n]; runs inside tf.function.
        predict: outputs as NumPy array to labels as the source gives them, int32 [n, max_length].
    """

    model: keras.Model
    losses: Callable[[Any, Any], Any]
    predict: Callable[[np.ndarray], np.ndarray]

    def correct(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Tells for each example whether the whole label is right, bool [n]."""
        right: np.ndarray = np.all(self.predict(outputs) == labels, axis=1)
        return right


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A kind of data set and the models for it."""

    name: str
    kind: str
    metric: str
    how_to_make_data: tuple[str, ...]
    build: Callable[[Any, Manifest], Recogniser]


def build_captcha(config: TrainConfig, manifest: Manifest) -> Recogniser:
    """Builds the model that a CaptchaConfig names.

    Raises:
        DataError: CONFIG when the data set's labels don't suit the model.
    """
    assert isinstance(config, CaptchaConfig)
    label = _label_spec(manifest)
    keras.config.set_floatx(config.run.dtype)
    keras.config.set_dtype_policy(config.run.dtype)
    if config.model == "ctc":
        return Recogniser(
            model=ctc.build(manifest.image, label),
            losses=ctc.losses,
            predict=lambda logits: ctc.decode(
                logits, min_length=label.min_length, max_length=label.max_length
            ),
        )
    if label.min_length != label.max_length:
        raise DataError(
            CONFIG, "--model linear",
            f"labels have {label.min_length} to {label.max_length} characters, it needs one length",
            fix="use --model ctc",
        )  # fmt: skip
    return Recogniser(
        model=linear.build(manifest.image, label, init_stddev=config.init_stddev),
        losses=linear.losses,
        predict=linear.decode,
    )


def _label_spec(manifest: Manifest) -> LabelSpec:
    if manifest.label is None:
        raise DataError(
            CONFIG, manifest.name, f"a data set of kind {manifest.kind} has no captcha labels",
            fix="name a captcha data set with --data",
        )  # fmt: skip
    return manifest.label


CAPTCHA = Task(
    name="captcha",
    kind="captcha",
    metric="accuracy",
    how_to_make_data=(
        "data_tools make-captcha captcha-images",
        "data_tools captcha-to-tfrecord captcha-images captcha-images/labels.csv datasets/captcha",
    ),
    build=build_captcha,
)
