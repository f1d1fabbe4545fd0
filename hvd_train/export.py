"""`hvd_train export`: a trained run as a model that other programs load, its labels and a card.

RUN/export/FORMAT/model.*        the model, uint8 images to logits
                  labels.json    what the logits stand for
                  MODEL_CARD.md
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from data_tools.durable import sync_folder, write_synced
from data_tools.errors import CONFIG, DataError, to_stderr, to_stdout
from data_tools.manifest import ImageSpec, Manifest
from data_tools.whole_folder import whole_folder
from hvd_train import export_formats, start
from hvd_train.decoding import Decoding, decoding_of
from hvd_train.flags import Export
from hvd_train.model_card import card_of
from hvd_train.models.stock import in_stock_layers
from hvd_train.predictor import Predictor
from hvd_train.saved_run import SavedRun, newest, open_run
from hvd_train.task import TaskModel

FOLDER = "export"
LABELS_FILE = "labels.json"
LABELS_FORMAT = "hvd-train-export/1"
PROBES = 8
"""Random images on which the exported model must answer as evaluation does."""
TOLERANCE = 1e-4
"""By how much of the largest logit it may be off; sums are rounded in another order."""


def main(command: Export) -> None:
    """Exports the newest checkpoint as the flags say.

    Raises:
        DataError: INPUT or INTEGRITY when there is none, CONFIG when the format can't hold the
            model or the output folder is something else, SPACE when the disk is full.
    """
    export_formats.check_installed(command.format)
    own_task = start.import_task(command.task) if command.task else None
    saved_run = open_run(command.run, own_task)
    target = command.output or command.run / FOLDER / command.format
    check_replaceable(target)
    skipped: list[str] = []
    saved = newest(saved_run, skipped=skipped)
    for line in skipped:
        to_stderr(line)
    task_model = in_float32(saved_run).build()
    saved_run.load(task_model, saved, averaged=command.ema)
    model = of_pixels(task_model, saved_run.manifest.image)
    check_answers(model, task_model)
    decoding = decoding_of(model.output.shape, saved_run.manifest)
    card = card_of(
        command.format, saved_run, saved.step, model, decoding, averaged=command.ema,
        task_path=command.task,
    )  # fmt: skip
    with whole_folder(target, check_replaceable) as folder:
        labels = json.dumps(labels_of(saved_run.manifest, decoding), indent=1, ensure_ascii=False)
        write_synced(folder / LABELS_FILE, (labels + "\n").encode())
        write_synced(folder / "MODEL_CARD.md", card.encode())
        export_formats.write(command.format, model, decoding, folder)
        for path in folder.rglob("*"):
            sync_folder(path)  # which takes files too
    weights = "moving averages" if command.ema else "weights"
    to_stdout(f"exported the {weights} after {saved.step} steps to {target}")


def in_float32(saved_run: SavedRun) -> SavedRun:
    """The run as if it had been computed in float32, which every format knows."""
    config = saved_run.config
    as_float32 = dataclasses.replace(config.run, dtype="float32")
    return dataclasses.replace(saved_run, config=dataclasses.replace(config, run=as_float32))


def of_pixels(task_model: TaskModel, image: ImageSpec) -> keras.Model:
    """The model with its preprocessing inside: uint8 [n, H, W, C] to the task's outputs."""
    pixels = keras.Input((image.height, image.width, image.channels), dtype="uint8", name="image")
    try:
        outputs = in_stock_layers(task_model.model)(task_model.eval_layers(pixels))
    except ValueError as error:
        raise _not_as_evaluated(f"doesn't take the data set's images ({error})") from error
    return keras.Model(pixels, outputs, name=task_model.model.name)


def check_answers(model: keras.Model, task_model: TaskModel) -> None:
    """Raises CONFIG unless the model gives the outputs of evaluation."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (PROBES, *model.input.shape[1:]), np.uint8)
    images[PROBES // 2 :] //= 8  # dark, of little contrast
    expected = Predictor(task_model).predict(images).outputs
    off = np.abs(keras.ops.convert_to_numpy(model(images, training=False)) - expected).max()
    if not off <= TOLERANCE * max(1.0, np.abs(expected).max()):
        raise _not_as_evaluated(f"gives logits that are off by up to {off:.2g}")


def _not_as_evaluated(reason: str) -> DataError:
    return DataError(
        CONFIG, "task", f"without the task's eval_inputs the model {reason}",
        fix="give its TaskModel eval_layers, the same in Keras layers",
    )  # fmt: skip


def labels_of(manifest: Manifest, decoding: Decoding | None) -> dict[str, Any]:
    """What labels.json says."""
    label = dataclasses.asdict(manifest.label) if manifest.label else {}
    is_ctc = decoding is not None and decoding.rule == "ctc"
    return {
        "format": LABELS_FORMAT,
        "image": {
            name: getattr(manifest.image, name) for name in ("height", "width", "channels")
        },
        "rule": decoding.rule if decoding else None,
        "classes": manifest.classes,
        **{name: label.get(name) for name in ("charset", "min_length", "max_length")},
        "blank": len(label["charset"]) if is_ctc else None,
    }  # fmt: skip


def check_replaceable(folder: Path) -> None:
    """Raises CONFIG when something is in the way that isn't an export of this program."""
    if not folder.exists() and not folder.is_symlink():
        return
    try:
        ours = json.loads((folder / LABELS_FILE).read_bytes())["format"] == LABELS_FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        ours = folder.is_dir() and not any(folder.iterdir())
    if not ours or folder.is_symlink() or folder.name in ("", ".."):
        raise DataError(
            CONFIG, folder, "it exists and is no export of this program",
            fix="choose another --output",
        )  # fmt: skip
