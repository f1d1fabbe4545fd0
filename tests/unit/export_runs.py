"""Exports runs in one process, the good and the bad, and reports what the predictor reads.

python export_runs.py FOLDER: FOLDER/runs and FOLDER/images/RUN are there.
"""

import contextlib
import io
import json
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_tools import images
from data_tools.errors import DataError
from data_tools.manifest import ImageSpec
from data_tools.whole_folder import INCOMPLETE, MARK, whole_folder
from hvd_train import cli, export_formats
from hvd_train.export import check_answers, check_replaceable, of_pixels
from hvd_train.predictor import Predictor, text_of
from hvd_train.saved_run import newest, open_run
from hvd_train.task import TaskModel

RUNS = ("ctc", "linear", "tutorial")
FORMATS = ("saved_model", "keras", "onnx", "tflite")


class Absent:
    """Lets the import of a package fail as if it weren't installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "tf2onnx":
            raise ModuleNotFoundError("No module named 'tf2onnx'", name=name)


def export(*flags: object) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        rc = cli.main(["export", *map(str, flags)])
    return {"rc": rc, "stdout": out.getvalue(), "stderr": err.getvalue()}


def answers(run: Path, files: list[Path], *, averaged: bool) -> tuple[np.ndarray, list[str]]:
    """The outputs and labels of `hvd_train predict`."""
    saved_run = open_run(run)
    task_model = saved_run.build()
    saved_run.load(task_model, newest(saved_run, skipped=[]), averaged=averaged)
    pixels = np.stack([images.decode(file.read_bytes(), str(file)) for file in files])
    found = Predictor(task_model).predict(pixels)
    return found.outputs, [text_of(label, saved_run.manifest) for label in found.labels]


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Lets no file grow above 2 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def bad_exports(folder: Path) -> dict[str, dict[str, Any]]:
    run, done = folder / "runs" / "ctc", {}
    unsaved = folder / "runs" / "unsaved"
    shutil.copytree(run, unsaved, ignore=shutil.ignore_patterns("checkpoints", "export"))
    done["no checkpoint"] = export(unsaved, "--format", "keras")
    done["unknown format"] = export(run, "--format", "pickle")
    with contextlib.suppress(KeyError), whole_folder(folder / "taken", check_replaceable):
        done["taken"] = export(run, "--format", "keras", "--output", folder / "taken")
        raise KeyError
    done["in the way"] = export(run, "--format", "keras", "--output", folder / "images")
    sys.meta_path.insert(0, Absent())
    packages = {name: sys.modules.pop(name) for name in list(sys.modules) if "tf2onnx" in name}
    done["absent package"] = export(run, "--format", "onnx")
    sys.meta_path.pop(0)
    sys.modules.update(packages)
    for name in FORMATS:
        with full_disk():
            done[f"full disk, {name}"] = export(
                run, "--format", name, "--output", folder / "full" / name
            )
    return done


class Twice(keras.layers.Layer):
    """A layer of somebody's own."""

    def call(self, inputs: Any) -> Any:
        return 2 * inputs


def refusal(folder: Path, *layers: keras.layers.Layer, **task: Any) -> str:
    """What is said of a model of somebody's own when it is exported for Keras; "" if nothing."""
    task_model = TaskModel(
        model=keras.Sequential([keras.Input((4, 4, 3)), *layers, keras.layers.Flatten()]),
        losses=lambda logits, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels[:, 0], logits
        ),
        predict=lambda logits: np.argmax(logits, axis=1).astype(np.int32)[:, None],
        **task,
    )
    try:
        model = of_pixels(task_model, ImageSpec(height=4, width=4, channels=3, encoding="raw"))
        check_answers(model, task_model)
        export_formats.write("keras", model, None, folder)
    except DataError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    report: dict[str, Any] = {"good": {}, "texts": {}}
    killed = folder / "runs" / RUNS[0] / "export" / (FORMATS[0] + INCOMPLETE)
    killed.mkdir(parents=True)
    (killed / MARK).touch()
    (killed / "labels.json").write_text('{"format": "hvd-tr')
    for name in RUNS:
        run, files = folder / "runs" / name, sorted((folder / "images" / name).iterdir())
        report["good"][name] = [export(run, "--format", kind) for kind in FORMATS]
        logits, report["texts"][name] = answers(run, files, averaged=True)
        np.save(folder / f"{name}.npy", logits)
    run, files = folder / "runs" / "ctc", sorted((folder / "images" / "ctc").iterdir())
    plain = folder / "plain"
    report["good"]["plain"] = [
        export(run, "--format", "keras", "--no-ema", "--output", plain) for _ in range(2)
    ]
    logits, report["texts"]["plain"] = answers(run, files, averaged=False)
    np.save(folder / "plain.npy", logits)
    report["bad"] = bad_exports(folder)
    halve: dict[str, Any] = {"eval_inputs": lambda x: x / np.float32(2)}
    report["own"] = {
        "as it is": refusal(folder),
        "own layer": refusal(folder, Twice()),
        "eval_inputs": refusal(folder, **halve),
        "eval_layers": refusal(folder, **halve, eval_layers=keras.layers.Rescaling(0.5)),
    }
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
