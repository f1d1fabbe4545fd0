"""Reads a folder that holds a folder of images for each class.

The folder's name is the class; folders further down hold more of its images. Every file is taken
for an image, whatever its name, except hidden ones and those that Windows and macOS leave. Links
to files are followed, wherever they lead; of folders none is read twice, and none outside.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from data_tools.errors import INPUT, Fault, os_errors
from data_tools.sources.image_folder import IGNORED, composed
from data_tools.sources.rows import Row, Rows
from data_tools.sources.walk import FoldersRead

TOP = PurePosixPath()
LEFT_BY_SYSTEMS = (*IGNORED, "__macosx")


class ClassFolders:
    """A source folder, read class folder by class folder.

    Attributes:
        faults: of folders, numbered among the rows.
        stray: files that lie in no class folder.
        outside: links to files that lie outside of the source.
    """

    def __init__(self, source: Path) -> None:
        self.faults: list[Fault] = []
        self.stray: list[str] = []
        self.outside: list[str] = []
        self._source = source
        self._count = 0
        with os_errors(source):
            self._folders_read = FoldersRead(source)

    def read(self, inside: PurePosixPath = TOP) -> Rows:
        """Returns the images of all class folders that lie in a folder of the source.

        Raises:
            DataError: INPUT when a folder can't be read.
        """
        rows = Rows()
        for path, is_folder in self._entries(inside):
            if is_folder:
                for row in self._read_class(path):
                    rows.append(*row)
            else:
                self.stray.append(str(path))
        return rows

    def _read_class(self, folder: PurePosixPath) -> Iterator[Row]:
        name = composed(folder.name)  # systems write one name in several ways
        if reason := name_fault(name):
            self._add_fault(folder, reason, "rename the folder")
            return
        before = self._count
        for path in self._files(folder):
            self._count += 1
            yield Row(self._count, str(path), name)
        if self._count == before:
            self._add_fault(folder, "no image in the class folder", "add some or remove the folder")

    def _files(self, folder: PurePosixPath) -> Iterator[PurePosixPath]:
        """All files in the folder and further down."""
        left = [folder]
        while left:
            path = left.pop()
            with os_errors(self._source / path):
                reason = self._folders_read.refuse(path)
            if reason:
                self._add_fault(path, reason, "remove the link")
                continue
            folders = []
            for entry, is_folder in self._entries(path):
                if is_folder:
                    folders.append(entry)
                else:
                    yield entry
            left += reversed(folders)

    def _entries(self, folder: PurePosixPath) -> Iterator[tuple[PurePosixPath, bool]]:
        """Yields path and whether it is a folder, of each entry that counts, by name."""
        with os_errors(self._source / folder):
            names = sorted(os.listdir(self._source / folder))  # noqa: PTH208 - a Path takes more
        for name in sorted(names, key=composed):
            if name.startswith(".") or name.lower() in LEFT_BY_SYSTEMS:
                continue
            path = self._source / folder / name
            is_folder = path.is_dir()
            if path.is_symlink() and not is_folder and self._folders_read.leads_out(folder / name):
                self.outside.append(str(folder / name))
            yield folder / name, is_folder

    def _add_fault(self, path: PurePosixPath, reason: str, fix: str) -> None:
        self._count += 1
        self.faults.append(Fault(self._count, INPUT, str(self._source / path), reason, fix))


def name_fault(name: str) -> str:
    """Says why a name can't be a class's; empty if it can."""
    if not name.isprintable():
        return f"the class name {name!r} has a character that can't be printed"
    if name != name.strip():
        return f"the class name {name!r} begins or ends with a space"
    return ""
