"""Reads the binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky 2009).

A record is one label byte (CIFAR-100: the coarse label, then the fine one) and the 32x32 pixels as
three planes, red, green, blue, each row by row. There is nothing else in a file, so what tells one
layout from another is its size, and the labels.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_tools.errors import CONFIG, INPUT, DataError, os_errors
from data_tools.sources.batch import Batch, Pixels, forget
from data_tools.sources.class_names import read_names

SIZE = 32
CHANNELS = 3
PIXEL_BYTES = SIZE * SIZE * CHANNELS
TEST_PREFIX = "test"
"""Files whose names begin so are the test split, all others the training split."""
_RECORDS_A_CHECK = 1 << 12

_OTHER_CONTENT = (
    (re.compile(rb"\x80[\x02-\x05]"), "a Python pickle", "get the binary version"),
    (re.compile(rb"\x1f\x8b"), "a gzip archive", "unpack it and pass the folder"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the records of a set are laid out.

    Attributes:
        name: the flag's value and the data set's name.
        title: its name in words.
        label_names: for each label byte of a record, the file that names its classes.
        classes: for each label byte, how many classes there are. The last one is the label, the
            one before it the coarse label.
        files: the names of the files in the official archive.
    """

    name: str
    title: str
    label_names: tuple[str, ...]
    classes: tuple[int, ...]
    files: re.Pattern[str]

    @property
    def record_bytes(self) -> int:
        """The size of a record."""
        return len(self.classes) + PIXEL_BYTES


CIFAR10 = Layout(
    name="cifar10", title="CIFAR-10", label_names=("batches.meta.txt",), classes=(10,),
    files=re.compile(r"(data|test)_batch(_\d+)?(\.bin)?"),
)  # fmt: skip
CIFAR100 = Layout(
    name="cifar100", title="CIFAR-100",
    label_names=("coarse_label_names.txt", "fine_label_names.txt"), classes=(20, 100),
    files=re.compile(r"(train|test)\.bin"),
)  # fmt: skip
LAYOUTS = (CIFAR10, CIFAR100)


def find_files(sources: Sequence[Path], dataset: str | None) -> tuple[Layout, list[Path]]:
    """Returns the layout and the files of a folder or of a list of files.

    Of a folder the files with the official names are taken, with or without `.bin`, in the order of
    their numbers; of a list all, as given.

    Args:
        sources: one folder, or files.
        dataset: the layout's name; told by the files if not given.

    Raises:
        DataError: INPUT when there are no such files, CONFIG when folders and files are mixed.
    """
    asked = [layout for layout in LAYOUTS if dataset in (None, layout.name)]
    folder = next((path for path in sources if path.is_dir()), None)
    if folder is None:
        for path in sources:
            if not path.is_file():
                raise DataError(INPUT, path, "no such file", fix="check the path")
        return (asked[0] if dataset else guess_layout(sources[0])), list(sources)
    if len(sources) > 1:
        raise DataError(
            CONFIG, folder, "a folder beside other sources", fix="pass one folder, or files only"
        )
    for layout in asked:
        with os_errors(folder):
            found = [path for path in folder.iterdir() if layout.files.fullmatch(path.name)]
        if found:
            return layout, sorted(found, key=_by_number)
    wanted = " or ".join(
        "data_batch_*.bin and test_batch.bin" if layout is CIFAR10 else "train.bin and test.bin"
        for layout in asked
    )
    raise DataError(
        INPUT, folder, f"no {wanted} in the folder", fix="pass the folder that holds the .bin files"
    )


def _by_number(path: Path) -> list[str | int]:
    """data_batch_2 comes before data_batch_10."""
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdecimal() else part for part in parts]


def guess_layout(path: Path) -> Layout:
    """Returns the layout that a file fits, CIFAR-10 if both or none does."""
    data = _read(path)
    return next((layout for layout in LAYOUTS if _fits(data, layout)), CIFAR10)


def read_batch(path: Path, layout: Layout) -> Batch:
    """Reads a file.

    Raises:
        DataError: INPUT with file, record and byte when its length isn't that of whole records, a
            label is above the range, or it is of another kind.
    """
    data = _read(path)
    _check_content(path, data, layout)
    records = data.reshape(-1, layout.record_bytes)
    width = len(layout.classes)
    _check_labels(path, data, records[:, :width], layout)
    planes = records[:, width:].reshape(-1, CHANNELS, SIZE, SIZE)
    return Batch(
        images=planes.transpose(0, 2, 3, 1),
        labels=records[:, width - 1],
        coarse_labels=records[:, width - 2] if width > 1 else None,
    )


def _read(path: Path) -> Pixels:
    """Maps a file, so that it is read where it is used and takes no memory of ours."""
    with os_errors(path):
        if not path.stat().st_size:
            return np.empty(0, np.uint8)
        return np.memmap(path, np.uint8, mode="r")


def _check_content(path: Path, data: Pixels, layout: Layout) -> None:
    """Raises INPUT unless the file can be whole records of the layout."""
    if not data.size:
        raise DataError(INPUT, path, "the file is empty", fix="get it again")
    start = data[:2].tobytes()
    for magic, what, fix in _OTHER_CONTENT:
        if magic.match(start):  # bytes that no record begins with: they are above all labels
            raise DataError(INPUT, path, f"{what}, not the binary version", fix=fix)
    remainder = data.size % layout.record_bytes
    if not remainder:
        return
    _refuse_other_layout(path, data, layout)
    raise DataError(
        INPUT, path,
        f"{data.size} bytes are not whole records of {layout.record_bytes}: {remainder} "
        f"byte{'s' if remainder > 1 else ''} left over",
        fix="the file is cut short or damaged, get it again",
    )  # fmt: skip


def _check_labels(path: Path, data: Pixels, labels: Pixels, layout: Layout) -> None:
    for first in range(0, len(labels), _RECORDS_A_CHECK):
        part = labels[first : first + _RECORDS_A_CHECK]
        above, places = np.nonzero(part >= np.array(layout.classes))
        if above.size:
            _refuse_other_layout(path, data, layout)
            record, place = first + int(above[0]), int(places[0])
            classes = layout.classes[place]
            raise DataError(
                INPUT, path, f"record {record}", f"byte {record * layout.record_bytes + place}",
                f"label {labels[record, place]}, the last of {layout.title} is {classes - 1}",
                fix="the file is damaged or of another set, get it again",
            )  # fmt: skip
        forget(data)


def _refuse_other_layout(path: Path, data: Pixels, layout: Layout) -> None:
    for other in LAYOUTS:
        if other is not layout and _fits(data, other):
            raise DataError(
                INPUT, path, f"it looks like {other.title}, not {layout.title}",
                fix=f"pass --dataset {other.name}",
            )  # fmt: skip


def _fits(data: Pixels, layout: Layout) -> bool:
    """Tells whether the bytes are whole records whose labels are all in range."""
    if not data.size or data.size % layout.record_bytes:
        return False
    labels = data.reshape(-1, layout.record_bytes)[:, : len(layout.classes)]
    return bool(np.all(labels < np.array(layout.classes)))


def read_class_names(folder: Path, layout: Layout) -> list[tuple[str, ...]]:
    """Reads the class names of each label byte; numbers where the folder has no such file.

    Raises:
        DataError: INPUT when a file has another number of names than there are classes.
    """
    return [
        _read_names(folder / file, classes)
        for file, classes in zip(layout.label_names, layout.classes, strict=True)
    ]


def _read_names(path: Path, classes: int) -> tuple[str, ...]:
    if not path.exists():
        return tuple(map(str, range(classes)))
    names = read_names(path)
    if len(names) != classes:
        raise DataError(
            INPUT, path, f"{len(names)} names for {classes} classes", fix="get the file again"
        )
    return names
