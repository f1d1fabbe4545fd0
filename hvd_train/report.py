"""`hvd_train report`: all that a run tells, as one page that needs nothing else."""

from pathlib import Path

import numpy as np

from data_tools import datasets
from data_tools import manifest as manifests
from data_tools.durable import write_atomically
from data_tools.errors import CONFIG, DataError, os_errors
from data_tools.manifest import Manifest
from hvd_train import checkpoint, history, report_page, run, saved_run, start
from hvd_train.data.source import Source, open_source
from hvd_train.flags import Report
from hvd_train.predictor import Predictor
from hvd_train.report_page import Scored
from hvd_train.saved_run import SavedRun
from hvd_train.scores import score

FILE = "report.html"
NUM_WORST = 24


def main(command: Report) -> None:
    """Runs the command."""
    own_task = start.import_task(command.task) if command.task else None
    saved = saved_run.open_run(command.run, own_task)
    lines = history.read_lines(saved.folder)
    result = history.read_result(saved.folder, lines)
    notes, scored = list[str](), None
    if checkpoint.saved_steps(saved.folder):
        scored = score_newest(saved, command.data, command.split, notes)
    else:
        notes.append("The run has no checkpoint yet, so its mistakes aren't shown.")
    page = report_page.render(saved, lines, result, scored, notes, task_path=command.task)
    path = saved.folder / FILE
    with os_errors(path):
        write_atomically(path, page.encode(errors="replace"))
    print(path, *notes, sep="\n")


def score_newest(
    saved: SavedRun, data: Path | None, split: str | None, notes: list[str]
) -> Scored | None:
    """Reads a split by the newest checkpoint's moving averages.

    Args:
        saved: the run.
        data: the data set's folder, if the user names one; else it is looked for where the run
            had it, and needn't be there.
        split: its name; the run's test split if None.
        notes: gets what the reader of the page must know.

    Raises:
        DataError: CONFIG when the data set isn't like the run's or has no such split, INTEGRITY
            when it or every checkpoint is damaged.
    """
    where, task = data or saved.config.data.data, saved.task
    try:
        folder = datasets.locate(task.name, where, task.how_to_make_data)
    except DataError as error:
        if data is not None:
            raise
        notes.append(
            f"The data set isn't here ({error.where}), so the run's mistakes aren't shown; "
            "--data names another place."
        )
        return None
    loaded = manifests.load(folder)
    check_like(saved.manifest, loaded, folder)
    if manifests.digest(folder) != saved.digest:
        notes.append(f"{folder} isn't the data set that the run was trained on, but one like it.")
    name = split or saved.config.data.test_split
    source = _open(folder, loaded, name, saved.config.data.memory_budget)
    newest = saved_run.newest(saved, skipped=notes)
    task_model = saved.build()
    saved.load(task_model, newest)
    scores = score(Predictor(task_model), source, loaded, num_worst=NUM_WORST)
    pictures = source.gather(np.array([one.example for one in scores.worst], np.int64)).images
    return Scored(newest.step, name, scores, pictures)


def check_like(of_run: Manifest, other: Manifest, folder: Path) -> None:
    """Raises CONFIG unless a data set has images and labels of the form of a run's."""
    for form in (_size, _labels):
        if form(of_run) != form(other):
            raise DataError(
                CONFIG, folder, f"it has {form(other)}, the run's set {form(of_run)}",
                fix="name the run's own data set, or one like it, with --data",
            )  # fmt: skip


def _size(manifest: Manifest) -> str:
    image = manifest.image
    return f"images of {image.width}x{image.height}x{image.channels}"


def _labels(manifest: Manifest) -> str:
    label = manifest.label
    if label is None:
        return f"classes {', '.join(manifest.classes or ())}"
    return f"labels of {label.min_length} to {label.max_length} of {label.charset}"


def _open(folder: Path, loaded: Manifest, name: str, budget: float) -> Source:
    split = loaded.split(name, folder)
    manifests.check_sizes(folder, split)
    for shard in split.shards:
        manifests.check_hash(folder, shard)
    source = open_source(folder, loaded, name, budget=budget * 2**30)
    run.check_not_empty("--split", name, source, folder)
    return source
