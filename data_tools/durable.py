"""Writes that survive a crash: flushed to the disk, and whole under their final name."""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Writes a file and flushes it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file in one step: readers see the old bytes or the new ones.

    After an error nothing new is left.
    """
    with atomic_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to write that takes the place of another in one step, at the block's end.

    After an error nothing new is left. Of two processes at a time the later one gets the name, the
    other an OSError.
    """
    temporary = path.with_name(path.name + ".incomplete")
    own = None
    try:
        temporary.unlink(missing_ok=True)  # what a killed process left, or somebody's link
        with temporary.open("xb") as file:
            own = os.fstat(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not _is_still(temporary, own):
                raise OSError(errno.EBUSY, "another process is writing it")
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            if _is_still(temporary, own):
                temporary.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # the name that the caller knows
        raise
    sync_folder(path.parent)


def _is_still(path: Path, file: os.stat_result | None) -> bool:
    """Tells whether a name is still that of a file."""
    try:
        return file is not None and os.path.samestat(path.lstat(), file)
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> bool:
    """Makes two names change places in one step, so that neither is ever missing.

    Returns:
        False, nothing being changed, where the file system or the C library refuses.
    """
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    try:
        return bool(ctypes.CDLL(None).renameat2(*names) == 0)
    except AttributeError:
        return False


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux


def replace_folder(new: Path, target: Path) -> None:
    """Gives a folder its final name, in one step where the file system can; an old one goes.

    The files in it must have been flushed to the disk.
    """
    sync_folder(new)
    if target.exists() and exchange(new, target):
        shutil.rmtree(new, ignore_errors=True)
    else:
        remove_folder(target)
        new.rename(target)
    sync_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Removes a folder, if it is there; its name goes first, so no half of it is found under it."""
    if folder.exists():
        leaving = folder.with_name(folder.name + ".old")
        shutil.rmtree(leaving, ignore_errors=True)
        folder.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def lock(descriptor: int, *, wait: bool = False) -> bool:
    """Locks an open file for this process; False while another holds it, unless we wait for it.

    The file must be open for writing, or NFS would lock it on this host alone. A killed process
    holds no lock. A file system without locks lets all pass.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
