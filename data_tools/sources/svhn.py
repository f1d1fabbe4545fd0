"""Reads the cropped digits of SVHN (Netzer et al. 2011), MATLAB files of version 5.

`X` is uint8 [32, 32, 3, n]; `y` [n, 1] are the labels, of which 10 stands for the digit 0.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_tools.errors import INPUT, DataError, os_errors
from data_tools.sources.batch import Batch, Pixels
from data_tools.sources.matlab import read_arrays

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}
"""By split."""
SHAPE = (32, 32, 3)
DIGITS = 10
_AGAIN = "get the file again, or save it with -v7"
_OTHER = "pass the files of cropped digits, format 2"


def find_files(folder: Path) -> dict[str, Path]:
    """Returns the files that are in a folder, by split.

    Raises:
        DataError: INPUT when there is none.
    """
    with os_errors(folder):
        there = {path.name for path in folder.iterdir()}
    found = {split: folder / name for split, name in FILES.items() if name in there}
    if not found:
        reason = f"no {', '.join(FILES.values())} in the folder"
        raise DataError(INPUT, folder, reason, fix="pass the folder that holds such files")
    return found


def read_file(path: Path, scratch: Path) -> Batch:
    """Reads a file.

    Args:
        path: of the file.
        scratch: a folder where it is unpacked, to files that nobody sees.

    Raises:
        DataError: INPUT when it is damaged, of another version, or holds anything else.
    """
    try:
        with path.open("rb") as file:
            variables = read_arrays(file, ("X", "y"), scratch)
    except ValueError as error:
        raise DataError(INPUT, path, str(error), fix=_AGAIN) from error
    for name in ("X", "y"):
        if name not in variables:
            raise DataError(INPUT, path, f"no array {name} of numbers in it", fix=_OTHER)
    pixels, labels = variables["X"], variables["y"]
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != SHAPE:
        reason = f"X is {_describe(pixels)}, not uint8 [32, 32, 3, n]"
        raise DataError(INPUT, path, reason, fix=_OTHER)
    if not pixels.size:
        raise DataError(INPUT, path, "no examples", fix=_AGAIN)
    return Batch(pixels.transpose(3, 0, 1, 2), _digits(path, labels, pixels.shape[3]))


def _digits(path: Path, labels: npt.NDArray[Any], count: int) -> Pixels:
    """Returns the digits, uint8 [n], of labels of any type of number."""
    if labels.dtype.kind not in "uif" or labels.shape not in ((count, 1), (1, count)):
        reason = f"y is {_describe(labels)}, not {count} numbers"
        raise DataError(INPUT, path, reason, fix=_OTHER)
    flat = labels.reshape(-1)
    wrong = np.flatnonzero(~np.isin(flat, np.arange(1, DIGITS + 1)))
    if wrong.size:
        record = int(wrong[0])
        reason = f"label {flat[record]:g}, not one of 1 to {DIGITS}"
        raise DataError(INPUT, path, f"record {record}", reason, fix=_AGAIN)
    digits: Pixels = flat.astype(np.uint8) % DIGITS
    return digits


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
