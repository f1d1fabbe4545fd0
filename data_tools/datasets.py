"""Finds the data set that a command works on, and makes the one that can be downloaded."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from data_tools.durable import lock
from data_tools.errors import CONFIG, INPUT, DataError, os_errors

VARIABLE = "HVD_TRAIN_DATA"


def locate(
    name: str,
    flag: Path | None,
    how_to_make: Sequence[str],
    make: Callable[[Path], None] | None = None,
) -> Path:
    """Returns the data set folder: `flag`, else $HVD_TRAIN_DATA, else ./datasets/NAME.

    Args:
        name: the task's data set, such as "captcha".
        flag: what the user gave as --data, if anything.
        how_to_make: the commands that make the data set, in order.
        make: makes ./datasets/NAME where there is none.

    Raises:
        DataError: CONFIG with those commands when there is no such folder; what `make` raises.
    """
    named = flag or os.environ.get(VARIABLE)
    folder = Path(named or Path("datasets", name))
    if folder.is_dir():
        return folder
    if make is not None and not named:
        make(folder)
        return folder
    reason = "no data set there"
    unfinished = folder.with_name(folder.name + ".incomplete")
    if unfinished.exists():
        reason += f" ({unfinished} is what a conversion that didn't finish left)"
    raise DataError(CONFIG, folder, reason, fix="make one: " + "; ".join(how_to_make))


HOW_TO_MAKE_CIFAR10 = (
    "data_tools download cifar10 cifar-10-binary",
    "data_tools cifar-to-tfrecord cifar-10-binary datasets/cifar10",
)


def make_cifar10(folder: Path, url: str | None = None) -> None:
    """Downloads CIFAR-10 and converts it, unless the folder is there already.

    Of several processes of a host that call this at a time one works, and the others wait for it.
    The binary files stay beside the folder, in cifar-10-binary.

    Args:
        folder: the data set folder to make.
        url: a mirror of the archive.

    Raises:
        DataError: CONFIG with the commands to run when it can't be downloaded; otherwise as
            `download.fetch` and the conversion do.
    """
    from data_tools import convert_cifar, download
    from data_tools.flags import CifarToTfrecord
    from data_tools.writer import check_target

    binary = folder.with_name("cifar-10-binary")
    lock_file = folder.with_name(f".{folder.name}.lock")
    with os_errors(lock_file):
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        file = lock_file.open("w")
    with file:
        lock(file.fileno(), wait=True)
        if not folder.is_dir():
            check_target(folder)
            try:
                download.fetch("cifar10", binary, url)
            except DataError as error:
                if error.kind is not INPUT:
                    raise
                raise DataError(
                    CONFIG, folder,
                    f"no data set there, and downloading failed: {error.where}: {error.reason}",
                    fix=f"{error.fix}; or make one: {'; '.join(HOW_TO_MAKE_CIFAR10)}",
                ) from error  # fmt: skip
            convert_cifar.main(CifarToTfrecord(src=(binary,), out=folder))
