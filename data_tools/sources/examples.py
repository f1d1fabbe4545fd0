"""Reads images and labels out of TFRecord files that other programs wrote.

Two layouts are known: the course's, whose `image` is raw and whose `label` is one uint8 a
character, and Examples in which the user names the features that hold image and label.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_tools import schema, tfrecord
from data_tools.console import Advance
from data_tools.errors import INPUT, INTEGRITY, LABEL, DataError, Fault, Kind

MAX_CLASSES = 1 << 16
"""A class is a uint16 when it is read."""
MAX_DESCRIBED = 1 << 20
"""Bytes of a record whose features are told when those that are wanted aren't there."""
_FIX = "see --image-key, --label-key, --charset and --shape"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What the features of a file hold.

    Attributes:
        image_key: the feature with the image.
        label_key: the feature with the label.
        shape: height, width and channels of raw images; None when they are JPEG or PNG.
        charset: the characters that label bytes stand for; None when labels are text or classes.
        classes: the names of the classes, which labels then are or number; None when numbers need
            no names and texts are captchas.
    """

    image_key: str
    label_key: str
    shape: tuple[int, int, int] | None
    charset: str | None
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One image with its label.

    Attributes:
        number: among the examples of all files, from 0.
        file: that it lies in.
        where: file, record and byte.
        image: the bytes of a JPEG or PNG, or the pixels, uint8 HWC.
        label: a text, or the number of a class.
    """

    number: int
    file: Path
    where: str
    image: bytes
    label: str | int


def read_examples(
    paths: Sequence[Path], layout: Layout, advance: Advance
) -> Iterator[Example | Fault]:
    """Yields the examples of all files in order, and what is wrong with those that don't fit.

    Args:
        paths: of the files.
        layout: of their records.
        advance: is told of the bytes that are read.

    Raises:
        DataError: INTEGRITY when a file is damaged, INPUT when it can't be read.
    """
    number = 0
    for path in paths:
        before = number
        for index, (offset, record) in enumerate(tfrecord.read_records(path, advance)):
            where = f"{path}:record {index}:byte {offset}"
            try:
                image, label = _read_example(record, layout)
                yield Example(number, path, where, image, label)
            except _UnfitError as error:
                yield Fault(number, error.kind, where, str(error), _FIX)
            number += 1
        if number == before:
            raise DataError(INTEGRITY, path, "no records", fix="get the file again")


class _UnfitError(Exception):
    """Why a record doesn't fit the layout."""

    def __init__(self, kind: Kind, reason: str) -> None:
        self.kind = kind
        super().__init__(reason)


def _read_example(record: bytes, layout: Layout) -> tuple[bytes, str | int]:
    try:
        features = tfrecord.decode_example(record, (layout.image_key, layout.label_key))
    except ValueError as error:
        raise _UnfitError(INPUT, f"not a tf.train.Example: {error}") from error
    image, label = (features.get(key, []) for key in (layout.image_key, layout.label_key))
    if len(image) != 1 or not isinstance(image[0], bytes):
        raise _UnfitError(INPUT, _no_single("bytes", layout.image_key, record))
    if len(label) != 1 or isinstance(label[0], float):
        raise _UnfitError(INPUT, _no_single("bytes or int64", layout.label_key, record))
    _check_size(image[0], layout.shape)
    try:
        return image[0], _read_label(label[0], layout)
    except ValueError as error:
        raise _UnfitError(LABEL, str(error)) from error


def _no_single(kinds: str, key: str, record: bytes) -> str:
    """Says that a feature isn't as it should be, and which there are."""
    if len(record) > MAX_DESCRIBED:  # whose numbers may be a hundred times as large as objects
        return f"no single {kinds} feature {key!r}"
    features = tfrecord.decode_example(record)
    there = ", ".join(f"{name} ({_kind_of(features[name])})" for name in sorted(features))
    return f"no single {kinds} feature {key!r}; the features are: {there or 'none'}"


def _kind_of(values: tfrecord.Values) -> str:
    """As "int64", "3 x float" or "empty"."""
    if not values:
        return "empty"
    name = {bytes: "bytes", int: "int64", float: "float"}[type(values[0])]
    return name if len(values) == 1 else f"{len(values)} x {name}"


def _check_size(image: bytes, shape: tuple[int, int, int] | None) -> None:
    if shape is None or len(image) == math.prod(shape):
        return
    given = "x".join(map(str, shape))
    raise _UnfitError(
        INPUT, f"an image of {len(image)} bytes, --shape {given} has {math.prod(shape)}"
    )


def _read_label(value: bytes | int, layout: Layout) -> str | int:
    """Returns a text or the number of a class; ValueError says what is wrong with it."""
    charset, classes = layout.charset, layout.classes
    if isinstance(value, int):
        if charset is not None:
            raise ValueError("the label is an int64, with --charset it is one uint8 a character")
        if not 0 <= value < MAX_CLASSES:
            raise ValueError(f"class {value} is outside 0 to {MAX_CLASSES - 1}")
        if classes is not None and value >= len(classes):
            raise ValueError(f"class {value} has no name, --classes has {len(classes)}")
        return value
    if charset is not None and value and max(value) >= len(charset):
        raise ValueError(f"label value {max(value)} is outside the charset of {len(charset)}")
    text = value.decode() if charset is None else schema.decode_label(value, charset)
    if not text:
        raise ValueError("the label is empty")
    if not text.isprintable():
        raise ValueError(f"label {text!r} has characters that can't be printed")
    if classes is not None:
        if text not in classes:
            raise ValueError(f"label {text!r} is none of the {len(classes)} names of --classes")
        return classes.index(text)
    return text
