"""Finds images whose given label a trained model confidently denies: labels of people are noisy."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools import charsets, images
from data_tools.durable import write_atomically
from data_tools.errors import CONFIG, INPUT, LABEL, DataError, Fault, os_errors, to_stderr
from data_tools.manifest import Manifest
from data_tools.sheet import draw_sheet
from data_tools.sources.captcha import read_labels
from data_tools.sources.folder import ClassFolders
from data_tools.sources.image_folder import ImageFolder
from data_tools.sources.rows import Rows
from hvd_train.data.source import NO_CHARACTER
from hvd_train.image_files import Preparation, conversion_flags
from hvd_train.predictor import Predictions, Predictor, text_of

TINY = float(np.finfo(np.float32).tiny)
SHOWN = 200
"""Images on a sheet, at most."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """Images with labels that somebody has given them.

    Attributes:
        files: paths of the images.
        texts: their labels.
        labels: the same, int32 [n, max_length], as a source has them.
        faults: of what can't be used.
    """

    files: list[str]
    texts: list[str]
    labels: np.ndarray
    faults: list[Fault]


def find_labelled(folder: Path, labels: Path, manifest: Manifest) -> Labelled:
    """Finds images of a folder and their labels.

    Args:
        folder: that the images lie in.
        labels: CSV with a row `image,label` for each image, or `-` where the label is the name of
            the folder that an image lies in.
        manifest: of the run that shall know these labels.

    Raises:
        DataError: INPUT when there are none, CONFIG for folders of captchas.
    """
    if not folder.is_dir():
        fix = "name the folder of the images that LABELS names"
        raise DataError(INPUT, folder, "not a folder", fix=fix)
    if labels == Path("-"):
        rows, faults = _rows_of_classes(folder, manifest)
    else:
        rows, faults = _rows_of_csv(labels, folder, manifest)
    found = Labelled([], [], np.empty(0), faults)
    encoded: list[list[int]] = []
    for row in rows:
        label, reason = _encode(row.label, manifest)
        if reason:
            where = str(folder / row.image)
            faults.append(Fault(row.number, LABEL, where, reason, "mend the label"))
            continue
        found.files.append(str(folder / row.image))
        found.texts.append(row.label)
        encoded.append(label)
    shape = (len(encoded), manifest.label.max_length if manifest.label else 1)
    return dataclasses.replace(found, labels=np.array(encoded, np.int32).reshape(shape))


def _rows_of_csv(labels: Path, folder: Path, manifest: Manifest) -> tuple[Rows, list[Fault]]:
    """Reads a CSV as the conversion of the run's data set read its own."""
    given = conversion_flags(manifest)
    separator, names = given.get("--separator", ","), given.get("--row-names", "None")
    rows, faults, notes = read_labels(
        labels, ImageFolder(folder),
        separator="\t" if separator == r"\t" else separator,
        header=given.get("--header", "guess"),
        row_names=None if names == "None" else names,
        first_row=int(given.get("--first-row", "0")),
    )  # fmt: skip
    for note in notes:
        to_stderr(note)
    if given.get("--zero-pad") != "True" or manifest.label is None:
        return rows, faults
    length = manifest.label.max_length
    padded = (row._replace(label=charsets.zero_padded(row.label, length)) for row in rows)
    return Rows.of(padded), faults


def _rows_of_classes(folder: Path, manifest: Manifest) -> tuple[Rows, list[Fault]]:
    if manifest.classes is None:
        raise DataError(
            CONFIG, "--suspicious", "- is for classes, the run reads captchas",
            fix="name a CSV with rows `image,label`",
        )  # fmt: skip
    source = ClassFolders(folder)
    rows = source.read()
    if not rows and not source.faults:
        fix = "put the images of each class into a folder of its name, or name a CSV"
        raise DataError(INPUT, folder, "no class folders in it", fix=fix)
    return rows, source.faults


def _encode(text: str, manifest: Manifest) -> tuple[list[int], str]:
    """The label in numbers, [max_length], and why the run can't know it; one of them is empty."""
    if manifest.classes is not None:
        if text in manifest.classes:
            return [manifest.classes.index(text)], ""
        return [], f"class {text!r} is none of the run's"
    spec = manifest.label
    assert spec is not None
    text = charsets.fold_case(text, spec.case)
    allowed = range(spec.min_length, spec.max_length + 1)
    if reason := charsets.label_fault(text, allowed, spec.charset):
        return [], reason
    places = [spec.charset.index(character) for character in text]
    return places + [NO_CHARACTER] * (spec.max_length - len(places)), ""


class Denied(NamedTuple):
    """An image whose given label the model denies.

    Attributes:
        file: its path.
        given: the label that somebody gave it.
        probability_of_given: by the model, between 0 and 1.
        label: the model's own.
        probability: of that.
    """

    file: str
    given: str
    probability_of_given: float
    label: str
    probability: float


def denied(
    labelled: Labelled,
    read: Iterable[tuple[Sequence[int], Predictions]],
    predictor: Predictor,
    manifest: Manifest,
    min_ratio: float,
) -> list[Denied]:
    """Lists the images whose given label isn't the model's, the most confidently denied first.

    Args:
        labelled: the images.
        read: the numbers of some of them and what the model reads there, until all are read.
        predictor: of the model.
        manifest: of its run.
        min_ratio: how many times as probable as the given label the model's own must be. A ratio,
            since a model that spreads its probability over many labels may still be sure that one
            of them is wrong.
    """
    found = []
    for numbers, own in read:
        given = labelled.labels[numbers]
        differs = np.any(own.labels != given, axis=1)
        given_probabilities = predictor.probabilities(own.outputs, given)
        least = np.maximum(min_ratio * given_probabilities.astype(np.float64), TINY)
        is_denied = differs & (own.probabilities >= least)  # where both are 0, nothing is said
        found += [
            Denied(
                labelled.files[numbers[at]], labelled.texts[numbers[at]],
                float(f"{given_probabilities[at]:.3g}"), text_of(own.labels[at], manifest),
                round(float(own.probabilities[at]), 6),
            )
            for at in np.flatnonzero(is_denied).tolist()
        ]  # fmt: skip
    return sorted(found, key=lambda one: (one.probability_of_given, -one.probability))


def write_sheet(path: Path, found: Sequence[Denied], preparation: Preparation) -> None:
    """Draws the first of them, each as `given -> label`."""
    shown = found[:SHOWN]
    while True:
        labels = [f"{one.given} -> {one.label}" for one in shown]
        pixels = (preparation.read(one.file) for one in shown)
        try:
            picture = images.encode_png(draw_sheet(labels, pixels, preparation.image, path))
            break
        except DataError as error:  # too large, which is known before a file is read
            if error.kind != CONFIG or len(shown) == 1:
                raise
            shown = shown[: len(shown) // 2]
    with os_errors(path):
        write_atomically(path, picture)
