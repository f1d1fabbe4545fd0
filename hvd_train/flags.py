"""The flags of the commands that work on a trained run: what each means, its default.

They stand apart from the commands, so that `--help` needn't import TensorFlow.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True, slots=True)
class OfRun:
    """What every command on a run has."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, such as runs/captcha."""
    task: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Of a run of your own task, where it is, such as photos:TASK."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate(OfRun):
    """Evaluates the newest checkpoint of a run, each example once, on one or many ranks."""

    split: str | None = None
    """Split to evaluate on; if not given, the run's test split."""
    data: Path | None = None
    """Data set folder; else the run's own, $HVD_TRAIN_DATA, or ./datasets/ and the task's name."""
    ema: bool = True
    """With the moving averages of the weights; else with the weights themselves."""
    both: bool = False
    """Evaluate with moving averages, then without."""
    watch: bool = False
    """Evaluate each new checkpoint as it comes, up to that of the run's last step."""
    interval: float = 10.0
    """Seconds between two looks of --watch."""

    def __post_init__(self) -> None:
        if self.both and not self.ema:
            raise ValueError("--both evaluates without moving averages too; leave --no-ema out")
        if not 0 < self.interval < math.inf:
            raise ValueError(f"--interval is {self.interval}; it must be a positive number")


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(OfRun):
    """Writes a run's newest checkpoint as a model that other programs load, and a card of it."""

    format: Literal["saved_model", "keras", "onnx", "tflite"]
    """Of the file: SavedModel, .keras, ONNX or TFLite."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to write; RUN/export/FORMAT if not given. An earlier export is replaced."""
    ema: bool = True
    """With the moving averages of the weights; else with the weights themselves."""
