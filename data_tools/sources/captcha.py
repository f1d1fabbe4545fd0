"""Reads a folder of captcha images and the CSV of their labels.

The CSV is RFC 4180 in UTF-8, two columns: the image (its file name, or the name without extension)
and the label. White space around a cell is taken off; otherwise labels stay as they are written.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_tools.errors import INPUT, LABEL, DataError, Kind, os_errors

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
IGNORED = ("thumbs.db", "desktop.ini")
HEADER_LABELS = ("label", "labels", "text", "captcha", "value", "word", "words")
"""A first row that names no image is a header when its second cell is one of these."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the CSV that names an image of the folder.

    Attributes:
        number: of its last line in the file, from 1, as an editor counts.
        image: path of the image inside the folder.
        label: the label's characters.
    """

    number: int
    image: str
    label: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one row or its image; the others may be right."""

    number: int
    kind: Kind
    where: str
    reason: str
    fix: str

    def line(self) -> str:
        """The fault as a line under an error that counts several."""
        return f"{self.where}: {self.reason}"

    def error(self) -> DataError:
        """The fault as the only error."""
        return DataError(self.kind, self.where, self.reason, fix=self.fix)


class ImageFolder:
    """The images of a folder, found by file name or by name without extension."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with os_errors(folder):
            self.names = sorted(path.name for path in folder.iterdir() if _is_image(path.name))
        self._known = set(self.names)
        self._suffixes = sorted({PurePosixPath(name).suffix for name in self.names})

    def find(self, cell: str) -> list[str]:
        """Returns the images that a cell can mean: none, one, or several of the same name."""
        cell = str(PurePosixPath(cell))  # ./0.jpg is 0.jpg
        if cell in self._known:
            return [cell]
        if named := [cell + suffix for suffix in self._suffixes if cell + suffix in self._known]:
            return named
        inside = "/" in cell and not self.leaves(cell) and _is_file(self.folder / cell)
        return [cell] if inside else []

    def leaves(self, cell: str) -> bool:
        """Tells whether a cell names something outside the folder, or the folder itself."""
        path = PurePosixPath(cell)
        return path.is_absolute() or ".." in path.parts or not path.parts


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, a folder that may not be entered
        return False


def _is_image(name: str) -> bool:
    hidden = name.startswith(".") or name.lower() in IGNORED
    return not hidden and name.lower().endswith(IMAGE_SUFFIXES)


def read_labels(path: Path, images: ImageFolder) -> tuple[list[Row], list[Fault]]:
    """Reads the CSV and finds the image of each row.

    Returns:
        The rows that name one image, in order, and the faults of the others.

    Raises:
        DataError: INPUT when the file isn't UTF-8 or not a CSV, or has no rows.
    """
    rows: list[Row] = []
    faults: list[Fault] = []
    first_named: dict[str, int] = {}
    seen_any = False
    for number, cells in _skip_header(_read_cells(path), images):
        seen_any = True
        found = _check_row(number, cells, path, images, first_named)
        if isinstance(found, Row):
            first_named[found.image] = number
            rows.append(found)
        else:
            faults.append(found)
    if not seen_any:
        raise DataError(INPUT, path, "no examples", fix="write a row `image,label` for each image")
    return rows, faults


def _read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields line number and trimmed cells of each row that isn't blank."""
    with os_errors(path):
        data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            INPUT, path, f"byte {error.start}", "the CSV is not UTF-8", fix="save it as UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(INPUT, path, "a NUL character: not a CSV", fix="save it as UTF-8 text")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise DataError(
            INPUT, path, f"row {reader.line_num}", f"not a CSV: {error}",
            fix="quote cells as RFC 4180 says",
        ) from error  # fmt: skip


def _skip_header(
    rows: Iterator[tuple[int, list[str]]], images: ImageFolder
) -> Iterator[tuple[int, list[str]]]:
    for index, (number, cells) in enumerate(rows):
        header = (
            index == 0
            and len(cells) == 2
            and cells[1].lower() in HEADER_LABELS
            and not images.find(cells[0])
        )
        if not header:
            yield number, cells


def _check_row(
    number: int, cells: Sequence[str], path: Path, images: ImageFolder, named: dict[str, int]
) -> Row | Fault:
    where = f"{path}:row {number}"
    if len(cells) != 2:
        return Fault(
            number, INPUT, where, f"{len(cells)} columns in place of 2",
            "write `image,label`; quote a cell that holds a comma",
        )  # fmt: skip
    name, label = cells
    found = images.find(name)
    if images.leaves(name):
        reason = f"{name!r} is not the name of an image inside the folder"
        return Fault(number, INPUT, where, reason, "name images of the folder only")
    if not found:
        fix = "add the image or take out the row"
        return Fault(number, INPUT, where, f"no image {name!r}", fix)
    if len(found) > 1:
        reason = f"{name!r} can be {' or '.join(found)}"
        return Fault(number, INPUT, where, reason, "write the whole file name")
    if found[0] in named:
        reason = f"{found[0]} is named in row {named[found[0]]} already"
        return Fault(number, INPUT, where, reason, "leave one row for each image")
    if not label:
        return Fault(number, LABEL, where, f"the label of {found[0]} is empty", "write its label")
    return Row(number, found[0], label)
