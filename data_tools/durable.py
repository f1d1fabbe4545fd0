"""Writes that survive a crash: flushed to the disk, and whole under their final name."""

import fcntl
import os
from pathlib import Path


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Writes a file and flushes it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file in one step: readers see the old bytes or the new ones."""
    temporary = path.with_name(path.name + ".incomplete")
    write_synced(temporary, data)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder for this process; False while another holds it.

    A killed process holds no lock. A file system without locks, such as some NFS, lets all pass.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
