"""`hvd_train compare`: a table of runs of one task, and their evaluations in one picture."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from data_tools.durable import write_atomically
from data_tools.errors import CONFIG, INPUT, DataError, one_line, os_errors
from hvd_train import config_files, history, saved_run, start
from hvd_train.flags import Compare
from hvd_train.history import ELAPSED, Line
from hvd_train.saved_run import SavedRun

MARK = "hvd_train compare"
"""Stands in the pictures, by which a file of ours is told."""
_MARKED_BYTES = 4096
LINES = ("-", "--", ":", "-.")
"""Tell runs apart whose colors are the same."""
STYLE: dict[Any, Any] = {
    "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": MARK, "text.parse_math": False,
    "axes.grid": True, "grid.alpha": 0.35, "grid.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """A run among others: its name here, its folder's content, and its evaluations."""

    name: str
    saved: SavedRun
    lines: list[Line]
    result: Line
    split: str
    evaluations: list[Line]


def main(command: Compare) -> None:
    """Runs the command."""
    check_output(command.output)
    own_task = start.import_task(command.task) if command.task else None
    runs = [read(folder, own_task, command.runs) for folder in command.runs]
    check_same_task(runs)
    picture = draw(runs, command.output.suffix[1:])
    with os_errors(command.output):
        write_atomically(command.output, picture)
    print("\n".join([*table(runs), "", *differences(runs), f"picture: {command.output}"]))


def check_output(path: Path) -> None:
    """Raises CONFIG when the picture would take the place of what this command didn't draw."""
    if not path.is_file():
        return
    with os_errors(path), path.open("rb") as file:
        start_of_file = file.read(_MARKED_BYTES)
    if MARK.encode() not in start_of_file:
        raise DataError(
            CONFIG, path, "it exists already and isn't a picture of this command",
            fix="choose another name with --output",
        )  # fmt: skip


def read(folder: Path, own_task: Any, among: Sequence[Path]) -> Compared:
    """Reads a run, which may still be trained; it is called by its path where names are the same.

    Raises:
        DataError: as `open_run` does; INPUT when it has measured nothing yet.
    """
    saved = saved_run.open_run(folder, own_task)
    lines = history.read_lines(folder)
    result = history.result_of(folder, lines)
    data = saved.config.data
    split = data.validation_split or data.test_split
    is_only = sum(other.name == folder.name for other in among) == 1
    name = one_line(folder.name if is_only else str(folder))
    return Compared(
        name, saved, lines, result, split,
        history.of_split(lines, split, saved.task.metric),
    )  # fmt: skip


def check_same_task(runs: Sequence[Compared]) -> None:
    """Raises CONFIG unless all runs learnt the same thing, INPUT if none has been evaluated."""
    first = runs[0]
    for other in runs[1:]:
        if other.saved.task.name != first.saved.task.name:
            raise DataError(
                CONFIG, other.saved.folder,
                f"it is of {other.saved.task.name}, {first.saved.folder} of "
                f"{first.saved.task.name}",
                fix="compare runs of one task",
            )  # fmt: skip
    if not any(run.evaluations for run in runs):
        raise DataError(
            INPUT, first.saved.folder, "none of the runs has been evaluated yet",
            fix="wait for the first evaluation",
        )  # fmt: skip


def table(runs: Sequence[Compared]) -> list[str]:
    """The lines of the table, one for each run below their heads."""
    metric = runs[0].saved.task.metric_in_words
    head = (
        "run", "model", "ranks", "batch", "steps", f"best {metric}", f"last {metric}",
        "result", "examples/sec", "time",
    )  # fmt: skip
    return aligned([head, *map(_row, runs)])


def _row(run: Compared) -> tuple[str, ...]:
    config, metric = run.saved.config, run.saved.task.metric
    rate = history.examples_per_sec(run.lines)
    best = last = "-"
    if run.evaluations:
        top = max(run.evaluations, key=lambda line: float(line[metric]))
        best = f"{top[metric]:.3f} at epoch {history.epoch(run.saved, top['step']):.4g}"
        last = f"{run.evaluations[-1][metric]:.3f} of {run.split}"
    result = "-"
    if run.result.get("examples"):
        share = run.result["correct"] / run.result["examples"]
        result = f"{share:.3f} of {run.result['split']}"
    return (
        run.name, str(getattr(config, "model", run.saved.task.name)),
        str(run.result.get("ranks", "-")), str(config.optim.global_batch),
        f"{history.steps_done(run.lines)} of {history.total_steps(run.saved)}", best, last,
        result, "-" if rate is None else f"{rate:.0f}", history.duration(run.lines[-1][ELAPSED]),
    )  # fmt: skip


def differences(runs: Sequence[Compared]) -> list[str]:
    """The lines of a table of the settings in which the runs differ; none if in nothing."""
    settings = [
        {**config_files.to_save(run.saved.config), "data set": run.saved.digest[:12]}
        for run in runs
    ]
    differing = [
        (name, *(str(own[name]) for own in settings))
        for name in settings[0]
        if len({str(own[name]) for own in settings}) > 1
    ]
    if not differing:
        return ["the settings are the same", ""]
    return [*aligned([("differing", *(run.name for run in runs)), *differing]), ""]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below each other."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def draw(runs: Sequence[Compared], kind: str) -> bytes:
    """Draws the evaluations of all runs over epochs and over seconds.

    Args:
        runs: of one task.
        kind: "svg" or "png".
    """
    metric = runs[0].saved.task.metric
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names may have what the font lacks
        figure = Figure(figsize=(10, 4), layout="constrained")
        by_epoch, by_time = figure.subplots(1, 2, sharey=True)
        for place, run in enumerate(runs):
            values = [line[metric] for line in run.evaluations]
            look: dict[str, Any] = {
                "label": run.name, "color": f"C{place % 10}", "marker": "o", "markersize": 3,
                "linestyle": LINES[place // 10 % len(LINES)],
            }  # fmt: skip
            epochs = [history.epoch(run.saved, line["step"]) for line in run.evaluations]
            by_epoch.plot(epochs, values, **look)
            by_time.plot([line[ELAPSED] for line in run.evaluations], values, **look)
        by_epoch.set(xlabel="epoch", ylabel=runs[0].saved.task.metric_in_words)
        by_time.set(xlabel="seconds since the first step")
        by_epoch.legend(by_epoch.lines, [run.name for run in runs])  # names with _ first, too
        buffer = io.BytesIO()
        mark = {"Creator": MARK, "Date": None} if kind == "svg" else {"Software": MARK}
        figure.savefig(buffer, format=kind, dpi=150, metadata=mark)
    return buffer.getvalue()
