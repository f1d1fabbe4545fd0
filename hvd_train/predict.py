"""`hvd_train predict`: what a trained run reads in image files."""

import contextlib
import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from data_tools.durable import atomic_file
from data_tools.errors import CONFIG, DataError, Fault, os_errors, to_stderr
from data_tools.sheet import not_a_picture
from hvd_train import image_files, saved_run, start, suspicious
from hvd_train.data.pipeline import InputWait, prefetch
from hvd_train.flags import Predict
from hvd_train.image_files import Chunk, Preparation
from hvd_train.predictor import Predictions, Predictor, text_of
from hvd_train.saved_run import SavedRun
from hvd_train.suspicious import Denied


class Predicted(NamedTuple):
    """A row of the output.

    Attributes:
        file: path of the image.
        label: what was read.
        probability: that the model gives to it, between 0 and 1.
    """

    file: str
    label: str
    probability: float


def main(command: Predict) -> None:
    """Runs the command."""
    task = None if command.task is None else start.import_task(command.task)
    run = saved_run.open_run(command.run, task)
    if command.suspicious is None:
        predict(command, run)
    else:
        list_suspicious(command, command.suspicious, run)


def predict(command: Predict, run: SavedRun) -> None:
    """Writes what the run reads in each file."""
    files, others = image_files.find(command.files)
    if others:
        to_stderr(f"{others} files that are not named as images were left out")
    faults: list[Fault] = []
    predictor = load_predictor(run)
    with opened(command.output) as stream:
        write_head(stream, Predicted._fields, command.format)
        for numbers, own in read(files, Preparation.of(run.manifest), predictor, faults):
            rows = (
                Predicted(files[number], text_of(label, run.manifest), rounded(probability))
                for number, label, probability in zip(
                    numbers, own.labels, own.probabilities, strict=True
                )
            )
            write_rows(stream, rows, command.format)
    where = command.files[0] if len(command.files) == 1 else "FILE"
    refuse_faults(faults, where, f"{len(files)} files could not be read")


def list_suspicious(command: Predict, labels: Path, run: SavedRun) -> None:
    """Writes which images have a given label that the run denies, and draws them."""
    (folder,) = command.files
    if command.sheet is not None and (reason := not_a_picture(command.sheet)):
        raise DataError(CONFIG, command.sheet, reason, fix="choose another name with --sheet")
    if command.output is not None and command.output.resolve() == labels.resolve():
        raise DataError(CONFIG, command.output, "it holds the labels", fix="choose another name")
    labelled = suspicious.find_labelled(folder, labels, run.manifest)
    count, faults = len(labelled.files) + len(labelled.faults), list(labelled.faults)
    predictor, preparation = load_predictor(run), Preparation.of(run.manifest)
    batches = read(labelled.files, preparation, predictor, faults)
    found = suspicious.denied(labelled, batches, predictor, run.manifest, command.min_ratio)
    with opened(command.output) as stream:
        write_head(stream, Denied._fields, command.format)
        write_rows(stream, found, command.format)
    to_stderr(f"{len(found)} of {len(labelled.files)} given labels are suspicious")
    if command.sheet is not None and found:
        suspicious.write_sheet(command.sheet, found, preparation)
    refuse_faults(faults, folder, f"{count} images and labels can't be used")


def load_predictor(run: SavedRun) -> Predictor:
    """Builds the run's model with the moving averages of its newest checkpoint."""
    skipped: list[str] = []
    saved = saved_run.newest(run, skipped=skipped)
    for line in skipped:
        to_stderr(line)
    task_model = run.build()
    run.load(task_model, saved)
    return Predictor(task_model)


def read(
    files: Sequence[str], preparation: Preparation, predictor: Predictor, faults: list[Fault]
) -> Iterator[tuple[list[int], Predictions]]:
    """Yields the places of some images among the files, and what was read there, in order.

    Args:
        files: paths of images.
        preparation: what is done to them.
        predictor: of the model.
        faults: gets those of files that can't be read.
    """
    size = image_files.chunk_size(preparation.image)

    def read_and_predict(step: int) -> tuple[Chunk, Predictions | None]:
        numbers = range(step * size, min((step + 1) * size, len(files)))
        chunk = image_files.read_chunk(files, numbers, preparation)
        return chunk, predictor.predict(np.stack(chunk.images)) if chunk.images else None

    # A thread a core, each with images of its own: while one reads, the others compute.
    threads = len(os.sched_getaffinity(0))
    steps = range(-(-len(files) // size))
    for chunk, own in prefetch(read_and_predict, steps, InputWait(), threads=threads):
        faults += chunk.faults
        if own is not None:
            yield chunk.numbers, own


@contextlib.contextmanager
def opened(output: Path | None) -> Iterator[TextIO]:
    """Opens the output as text: standard output, or a file that is there once it is whole.

    A device or a pipe is written to as it is. Names of files that are not UTF-8 are escaped.
    """
    if output is None:
        yield sys.stdout
        return
    in_place = output.exists() and not output.is_file()
    with os_errors(output), output.open("wb") if in_place else atomic_file(output) as file:
        text = io.TextIOWrapper(file, "utf-8", "backslashreplace", newline="")
        yield text
        text.detach()  # flushes, and leaves it to the file's own context to close it


def write_head(stream: TextIO, fields: Sequence[str], form: str) -> None:
    """Writes the names of the columns of a CSV; a JSON object has them in itself."""
    if form == "csv":
        csv.writer(stream, lineterminator="\n").writerow(fields)


def write_rows(stream: TextIO, rows: Iterable[Predicted | Denied], form: str) -> None:
    """Writes rows as CSV or as a JSON object a line, and lets a reader see them."""
    if form == "csv":
        for row in rows:
            # Which Python 3.11 would leave bare, a line's end for other programs.
            bare = any("\r" in str(cell) for cell in row)
            quoted = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_ALL)
            (quoted if bare else csv.writer(stream, lineterminator="\n")).writerow(row)
    else:
        stream.writelines(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows)
    stream.flush()


def rounded(probability: float) -> float:
    """A probability to six places."""
    return round(float(probability), 6)


def refuse_faults(faults: Sequence[Fault], where: object, among: str) -> None:
    """Raises the faults, the others being done: one of one as itself, else a line each.

    Args:
        faults: of images and labels.
        where: what was to be read.
        among: how many there were, and what is wrong with so many of them.
    """
    if not faults:
        return
    if len(faults) == 1 and among.startswith("1 "):
        raise faults[0].error()
    raise DataError(
        faults[0].kind, where, f"{len(faults)} of {among}",
        fix="mend them or leave them out; the others are done",
        faults=[fault.line() for fault in faults],
    )  # fmt: skip
