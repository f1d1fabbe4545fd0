"""Finds the data set that a command works on."""

import os
from collections.abc import Sequence
from pathlib import Path

from data_tools.errors import CONFIG, DataError

VARIABLE = "HVD_TRAIN_DATA"


def locate(name: str, flag: Path | None, how_to_make: Sequence[str]) -> Path:
    """Returns the data set folder: `flag`, else $HVD_TRAIN_DATA, else ./datasets/NAME.

    Args:
        name: the task's data set, such as "captcha".
        flag: what the user gave as --data, if anything.
        how_to_make: the commands that make the data set, in order.

    Raises:
        DataError: CONFIG with those commands when there is no such folder.
    """
    folder = flag or Path(os.environ.get(VARIABLE) or Path("datasets", name))
    if folder.is_dir():
        return folder
    reason = "no data set there"
    unfinished = folder.with_name(folder.name + ".incomplete")
    if unfinished.exists():
        reason += f" ({unfinished} is what a conversion that didn't finish left)"
    raise DataError(CONFIG, folder, reason, fix="make one: " + "; ".join(how_to_make))
