"""A folder that takes its name when it is whole: made beside it, marked until then, by one process.

A killed process leaves NAME.incomplete with its mark, which the next one empties; a set or a model
of that name stays until the new one takes its place.
"""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from data_tools import interrupts
from data_tools.durable import exchange, lock, sync_folder
from data_tools.errors import CONFIG, DataError, from_os_error

INCOMPLETE = ".incomplete"
MARK = ".unfinished"
CLEARINGS = 8
"""How often a folder is emptied until nobody writes to it any more."""


@contextmanager
def whole_folder(target: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """Gives a folder to write to; it gets its final name when the block ends without an error.

    The files in it must have been flushed to the disk.

    Args:
        target: the final name.
        check: raises CONFIG when what has that name may not be replaced.

    Raises:
        DataError: CONFIG when another process is writing it; SPACE or INPUT when the disk refuses,
            the target then being as before.
    """
    incomplete = target.parent / (target.name + INCOMPLETE)  # . has no name to replace
    try:
        check(target)
        with _sole_writer(incomplete):
            yield incomplete
            sync_folder(incomplete)
            check(target)  # it may have come meanwhile
            _put_in_place(incomplete, target)
    except OSError as error:
        raise from_os_error(error, target) from error


@contextmanager
def _sole_writer(folder: Path) -> Iterator[None]:
    """Makes the folder, or empties what a killed run left, and removes it after an error.

    While it is unfinished it holds a mark, so that nothing else of that name is ever emptied. The
    mark is locked, so that two never write to one folder.
    """
    with ExitStack() as stack:
        with interrupts.held():  # or nobody would remove what has just been made
            _make_folder(folder)
            stack.enter_context(_locked_mark(folder))
            clearing = stack.enter_context(ExitStack())
            clearing.callback(_clear_if_we_can, folder)
        _empty(folder)
        yield
        clearing.pop_all()


def _make_folder(folder: Path) -> None:
    """Raises CONFIG where something else has that name."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise _not_ours(folder) from error
    left = list(folder.iterdir())
    if folder.is_symlink() or (left and folder / MARK not in left):
        raise _not_ours(folder)


def _not_ours(folder: Path) -> DataError:
    reason = "it is in the way, and no unfinished folder of this program"
    return DataError(CONFIG, folder, reason, fix="move it, or choose another name")


@contextmanager
def _locked_mark(folder: Path) -> Iterator[None]:
    """Raises CONFIG when another process writes the folder."""
    taken = DataError(CONFIG, folder, "another process is writing it", fix="wait for it to end")
    path = folder / MARK
    try:
        mark = path.open("a")
    except FileNotFoundError as error:  # it has just been renamed
        raise taken from error
    with mark:
        # The other may have renamed the folder after we opened the mark.
        free = lock(mark.fileno()) and path.exists()
        if not (free and os.path.samestat(os.fstat(mark.fileno()), path.stat())):
            raise taken
        yield


def _clear_if_we_can(folder: Path) -> None:
    with suppress(OSError):
        for _ in range(CLEARINGS):
            try:
                _clear(folder)
                break
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            # Another rank of this job, which is being ended, has just made a file.
            (folder / MARK).touch()
            time.sleep(0.1)


def _clear(folder: Path) -> None:
    """Removes the folder, its mark last."""
    _empty(folder)
    (folder / MARK).unlink()
    folder.rmdir()


def _empty(folder: Path) -> None:
    """Removes all but the mark."""
    for path in folder.iterdir():
        if path.name != MARK:
            _remove(path)


def _put_in_place(new: Path, target: Path) -> None:
    """Renames the new folder; an old one of that name is there until that moment, then removed."""
    if not target.exists():
        new.rename(target)
        _settle(target)
        return
    # The old folder gets a mark, by which the next run knows what it may remove if this one is
    # killed, locked as long as it is there.
    with _locked_mark(target):
        if not target.is_symlink() and exchange(new, target):
            _settle(target)
            _clear(new)
            return
        (target / MARK).unlink()
    with interrupts.held():  # or the old set would be left under another name
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
        try:
            target.rename(old / target.name)
            new.rename(target)
        except OSError:
            with suppress(FileNotFoundError):
                (old / target.name).rename(target)
            old.rmdir()
            raise
        _settle(target)
    _remove(old)


def _settle(target: Path) -> None:
    """Makes the new name durable and takes the mark away."""
    sync_folder(target.parent)
    (target / MARK).unlink()
    sync_folder(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
