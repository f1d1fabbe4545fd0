"""Reads the labels of a folder of images: from a CSV, a label a line, or file names.

The CSV is RFC 4180 in UTF-8, or in UTF-16 with a byte order mark, two columns: the image (its path
in the folder, with or without extension) and the label; or the label alone, where the number of the
row tells the image. White space around a cell is taken off, before quotes too, and of `="0012"`,
which spreadsheets are given to keep their hands off, the 0012 is taken. Letters with marks are
composed, one character each. Otherwise labels stay as they are written.
"""

import codecs
import csv
import dataclasses
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_tools.errors import INPUT, LABEL, DataError, Fault, os_errors
from data_tools.sources.image_folder import IMAGE_SUFFIXES, ImageFolder, composed
from data_tools.sources.rows import Row, Rows

HEADER_LABELS = ("label", "labels", "text", "captcha", "value", "word", "words", "class",
                 "category")  # fmt: skip
"""A first row that names no image is a header when its last cell is one of these."""


def labels_from_names(
    folder: Path, names: Sequence[str], pattern: re.Pattern[str]
) -> tuple[Rows, list[Fault]]:
    """Takes the label of each image from its file name.

    Args:
        folder: that the images lie in.
        names: their paths in there.
        pattern: looked for anywhere in the file name without its folder, in Unicode's composed
            form. The label is its group `label`, else its first group, else all that it matches.

    Returns:
        The rows in the order of the names, and the faults of names without a label.

    Raises:
        DataError: INPUT when there are no names, LABEL when none of several has a label.
    """
    if not names:
        raise DataError(INPUT, folder, "no images", fix=f"name them *{', *'.join(IMAGE_SUFFIXES)}")
    rows = Rows()
    faults: list[Fault] = []
    what = f"--label-from-name {pattern.pattern!r} finds no label"
    fix = "rename the file, or mend the expression"
    for number, image in enumerate(names, 1):
        label = _label_in(composed(PurePosixPath(image).name), pattern)
        if label:
            rows.append(number, image, label)
        else:
            reason = f"{what} in this name"
            faults.append(Fault(number, LABEL, str(folder / image), reason, fix))
    if not rows and len(faults) > 1:
        reason, fix = f"{what} in any of {len(names)} names", "mend the expression"
        raise DataError(LABEL, folder, f"{reason}, such as {names[0]!r}", fix=fix)
    return rows, faults


def _label_in(name: str, pattern: re.Pattern[str]) -> str | None:
    match = pattern.search(name)
    if match is None:
        return None
    label: str | None = match["label" if "label" in pattern.groupindex else min(pattern.groups, 1)]
    return label


def read_labels(
    path: Path,
    images: ImageFolder,
    *,
    separator: str = ",",
    header: str = "guess",
    row_names: str | None = None,
    first_row: int = 0,
) -> tuple[Rows, list[Fault], list[str]]:
    """Reads the CSV and finds the image of each row.

    Args:
        path: of the CSV.
        images: that it names.
        separator: stands between two cells.
        header: whether the first row is one: "yes", "no" or "guess".
        row_names: the name of the image of row i, as `str.format` writes it from i, where each row
            is a label alone; None where it is an image and a label.
        first_row: i of the first row.

    Returns:
        The rows that name one image, in order, the faults of the others, and a note where a row
        was taken for a header.

    Raises:
        DataError: INPUT when the file isn't UTF-8 or not a CSV, has another separator, or no rows.
    """
    lines: Iterator[Line]
    if row_names is None:
        shape = _Shape(2, separator, f"`image{separator}label`", "take out the row")
        lines = ((number, cells) for number, cells in _read_cells(path, separator) if any(cells))
        last = None
    else:
        shape = _Shape(1, separator, "`label`", "see --row-names, --first-row and --header")
        count = _count_to_last(path, separator)  # must be known first
        lines = itertools.islice(_read_cells(path, separator), count)
        last = row_names.format(first_row + count - 1)
    head, lines = _part_header(lines, header, images, last)
    notes = [f"row {n}, {separator.join(cells)!r}, was taken for a header" for n, cells in head]
    if row_names is not None:
        lines = _name_rows(lines, row_names, first_row)
    rows = Rows()
    faults: list[Fault] = []
    for number, cells in lines:
        found = _check_row(number, cells, path, images, shape)
        if isinstance(found, Row):
            rows.append(*found)
        else:
            faults.append(found)
    if not rows and row_names is None:
        _refuse_separator(path, separator)
    if not rows and not faults:
        raise DataError(INPUT, path, "no examples", fix=f"write a row {shape.row} for each image")
    if header == "guess" and row_names is None and not head:
        faults = _tell_of_header(rows, faults)
    return rows, faults, notes


def _tell_of_header(rows: Rows, faults: list[Fault]) -> list[Fault]:
    """Lets the fix name --header where the first row alone names no image."""
    if len(faults) != 1 or not rows or faults[0].number > next(iter(rows)).number:
        return faults
    fix = f"{faults[0].fix}; if it is a header, pass --header yes"
    return [dataclasses.replace(faults[0], fix=fix)]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the rows of a file look like, as the fixes of their faults tell it."""

    columns: int
    separator: str
    row: str
    if_missing: str

    def fault(self, number: int, where: str, columns: int) -> Fault:
        """The fault of a row with another number of columns."""
        separator = "a comma" if self.separator == "," else repr(self.separator)
        return Fault(
            number, INPUT, where, f"{columns} columns in place of {self.columns}",
            f"write {self.row}; quote a cell that holds {separator}, or see --separator",
        )  # fmt: skip


Line = tuple[int, list[str]]
"""The number of a row's last line in the file, and its cells."""


def _read_cells(path: Path, separator: str) -> Iterator[Line]:
    """Yields line number and trimmed cells of each row, none of a blank line."""
    with os_errors(path):
        data = path.read_bytes()
    # Excel's "Unicode text" is UTF-16 with a byte order mark.
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding, name = ("utf-16", "UTF-16") if utf_16 else ("utf-8-sig", "UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            INPUT, path, f"byte {error.start}", f"the CSV is not {name}", fix="save it as UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(INPUT, path, "a NUL character: not a CSV", fix="save it as UTF-8 text")
    del text  # a StringIO of it would take 4 bytes a character
    file = io.TextIOWrapper(io.BytesIO(data), encoding, newline="")
    reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, [_trimmed(cell) for cell in cells]
    except csv.Error as error:
        raise DataError(
            INPUT, path, f"row {reader.line_num}", f"not a CSV: {error}",
            fix="quote cells as RFC 4180 says",
        ) from error  # fmt: skip


def _trimmed(cell: str) -> str:
    """The cell without white space around it and without the quotes of `="0012"`."""
    cell = cell.strip()
    return cell[2:-1] if cell.startswith('="') and cell.endswith('"') and len(cell) > 3 else cell


def _refuse_separator(path: Path, separator: str) -> None:
    """Raises INPUT where each row is one cell that holds one and the same other separator."""
    others, count = {",", ";", "\t", "|"}, 0
    for _, cells in _read_cells(path, separator):
        if any(cells):
            others = {other for other in others if len(cells) == 1 and other in cells[0]}
            count += 1
        if not others:
            return
    if len(others) == 1 and count:
        (other,) = others
        reason = f"the rows are separated by {other!r}"
        raise DataError(INPUT, path, reason, fix=f"pass --separator {other!r}")


def _count_to_last(path: Path, separator: str) -> int:
    """How many rows there are up to the last that isn't blank."""
    lines = enumerate(_read_cells(path, separator), 1)
    return max((index for index, (_, cells) in lines if any(cells)), default=0)


def _part_header(
    lines: Iterator[Line], header: str, images: ImageFolder, last: str | None
) -> tuple[list[Line], Iterator[Line]]:
    """Parts the header, one row or none, from the rows behind it; see `_is_header`."""
    first = list(itertools.islice(lines, 1))
    if header == "yes" or (header == "guess" and first and _is_header(first[0][1], images, last)):
        return first, lines
    return [], itertools.chain(first, lines)


def _is_header(cells: Sequence[str], images: ImageFolder, last: str | None) -> bool:
    """Guesses by the last cell of the first row.

    Args:
        cells: of the row.
        images: one of which a row that is no header names.
        last: where labels stand alone, the name of the last row's image unless there is a header.
    """
    columns, name = (2, cells[:1]) if last is None else (1, [last])
    may_be = len(cells) == columns and cells[-1].lower() in HEADER_LABELS
    return may_be and not images.find(name[0])


def _name_rows(lines: Iterator[Line], row_names: str, first_row: int) -> Iterator[Line]:
    """Puts the name of its image before the cells of each row."""
    for index, (number, cells) in enumerate(lines, first_row):
        yield number, [row_names.format(index), *(cells or [""])]


def _check_row(
    number: int, cells: Sequence[str], path: Path, images: ImageFolder, shape: _Shape
) -> Row | Fault:
    if len(cells) != 2:
        return shape.fault(number, f"{path}:row {number}", len(cells) - 2 + shape.columns)
    name, label = cells
    found = images.find(name)
    earlier = images.claim(found[0], number if label else 0) if len(found) == 1 else 0
    if len(found) == 1 and label and not earlier:
        return Row(number, found[0], composed(label))
    kind = INPUT
    if not found and images.leaves(name):
        reason = f"{name!r} is not the name of an image inside the folder"
        fix = "name images of the folder only"
    elif not found:
        reason, fix = f"no image {name!r}", f"add the image or {shape.if_missing}"
    elif len(found) > 1:
        reason, fix = f"{name!r} can be {' or '.join(found)}", "write the whole file name"
    elif earlier:
        reason = f"{found[0]} is named in row {earlier} already"
        fix = "leave one row for each image"
    else:
        kind, reason, fix = LABEL, f"the label of {found[0]} is empty", "write its label"
    return Fault(number, kind, f"{path}:row {number}", reason, fix)
