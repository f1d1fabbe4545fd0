"""`hvd_train report`: all that a run tells, as one page that needs nothing else."""

from pathlib import Path

import numpy as np

from data_tools import datasets
from data_tools import manifest as manifests
from data_tools.durable import write_atomically
from data_tools.errors import DataError, os_errors
from hvd_train import history, report_page, run, saved_run, start
from hvd_train.checkpoint import Checkpoint
from hvd_train.data.source import Source
from hvd_train.dist import World
from hvd_train.flags import Report
from hvd_train.predictor import Predictor
from hvd_train.report_page import Scored
from hvd_train.saved_run import SavedRun
from hvd_train.scores import score

FILE = "report.html"
NUM_WORST = 24
ALONE = World(rank=0, size=1, local_rank=0, local_size=1)


def main(command: Report) -> None:
    """Runs the command."""
    own_task = start.import_task(command.task) if command.task else None
    saved = saved_run.open_run(command.run, own_task)
    lines = history.read_lines(saved.folder)
    result = history.result_of(saved.folder, lines)
    notes, scored = list[str](), None
    newest = saved_run.newest_if_any(saved, skipped=notes)
    if newest is None:
        notes.append("The run has no checkpoint yet, so its mistakes aren't shown.")
    else:
        scored = score_split(saved, newest, command.data, command.split, notes)
    page = report_page.render(saved, lines, result, scored, notes, task_path=command.task)
    path = saved.folder / FILE
    with os_errors(path):
        write_atomically(path, page.encode(errors="replace"))
    print(path, *notes, sep="\n")


def score_split(
    saved: SavedRun, newest: Checkpoint, data: Path | None, split: str | None, notes: list[str]
) -> Scored | None:
    """Reads a split by a checkpoint's moving averages.

    Args:
        saved: the run.
        newest: its checkpoint.
        data: the data set's folder, if the user names one; else it is looked for where the run
            had it, and may be gone or another one by now.
        split: its name; the run's test split if None.
        notes: gets what the reader of the page must know.

    Raises:
        DataError: where the user names the data set or the split: CONFIG when the data set isn't
            like the run's or has no such split, INTEGRITY when it is damaged.
    """
    name = split or saved.config.data.test_split
    try:
        source = _source(saved, data or saved.config.data.data, name, notes)
    except DataError as error:
        if data is not None or split is not None:
            raise
        notes.append(
            f"The run's data set can't be read ({error.where}: {error.reason}), so its mistakes "
            "aren't shown; --data names another place."
        )
        return None
    task_model = saved.build()
    saved.load(task_model, newest)
    scores = score(Predictor(task_model), source, saved.manifest, num_worst=NUM_WORST)
    pictures = source.gather(np.array([one.example for one in scores.worst], np.int64)).images
    return Scored(newest.step, name, scores, pictures)


def _source(saved: SavedRun, where: Path | None, split: str, notes: list[str]) -> Source:
    folder = datasets.locate(saved.task.name, where, saved.task.how_to_make_data)
    loaded = manifests.load(folder)
    run.check_kind(saved.task, loaded, folder)
    source = saved_run.open_split(saved, folder, loaded, split, ALONE)
    if manifests.digest(folder) != saved.digest:
        notes.append(f"{folder} isn't the data set that the run was trained on, but one like it.")
    return source
