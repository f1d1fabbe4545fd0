"""`hvd_train predict`: what a trained run reads in image files."""

import contextlib
import csv
import errno
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
    check_outputs(command, files)
    faults: list[Fault] = []
    where = command.files[0] if len(command.files) == 1 else "FILE"
    among = f"{len(files)} files could not be read"
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
        if len(faults) == len(files):  # an old output is worth more than none
            refuse_faults(faults, where, among)
    refuse_faults(faults, where, among)


def list_suspicious(command: Predict, labels: Path, run: SavedRun) -> None:
    """Writes which images have a given label that the run denies, and draws them."""
    (folder,) = command.files
    labelled = suspicious.find_labelled(folder, labels, run.manifest)
    check_outputs(command, labelled.files)
    count, faults = len(labelled.files) + len(labelled.faults), list(labelled.faults)
    among = f"{count} images and labels can't be used"
    predictor, preparation = load_predictor(run), Preparation.of(run.manifest)
    with opened(command.output) as stream:
        write_head(stream, Denied._fields, command.format)
        batches = read(labelled.files, preparation, predictor, faults)
        found = suspicious.denied(labelled, batches, predictor, run.manifest, command.min_ratio)
        write_rows(stream, found, command.format)
        if len(faults) == count:
            refuse_faults(faults, folder, among)
    to_stderr(f"{len(found)} of {len(labelled.files)} given labels are suspicious")
    if command.sheet is not None and found:
        suspicious.write_sheet(command.sheet, found, preparation)
    elif command.sheet is not None:
        to_stderr(f"{command.sheet}: nothing to draw, so nothing was written")
    refuse_faults(faults, folder, among)


def check_outputs(command: Predict, files: Sequence[str]) -> None:
    """Checks, before anything is read, that what will be written can be and takes no input's place.

    Args:
        command: names what will be written.
        files: the images that will be read.

    Raises:
        DataError: CONFIG when an output is an input or the other output, or --sheet no picture of
            ours; INPUT when it can't be there.
    """
    outputs = [path for path in (command.output, command.sheet) if path is not None]
    for output in outputs:
        with os_errors(output):
            if output.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not output.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        alike = [Path(file) for file in files if file.endswith(output.name)]
        place = (output.parent.resolve(), output.name)
        if any((file.parent.resolve(), file.name) == place for file in alike):
            reason = "it is one of the images"
        elif command.suspicious is not None and output.resolve() == command.suspicious.resolve():
            reason = "it holds the labels"
        elif len({path.resolve() for path in outputs}) < len(outputs):
            reason = "--output and --sheet both name it"
        else:
            continue
        raise DataError(CONFIG, output, reason, fix="choose another name")
    if command.sheet is not None and (reason := not_a_picture(command.sheet)):
        raise DataError(CONFIG, command.sheet, reason, fix="choose another name with --sheet")


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
