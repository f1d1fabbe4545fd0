"""The images of a folder and its sub-folders, found as people name them in a CSV."""

import os
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from data_tools.errors import INPUT, DataError, Fault, os_errors
from data_tools.sources.names import Names
from data_tools.sources.walk import FoldersRead

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
IGNORED = ("thumbs.db", "desktop.ini")


class ImageFolder:
    """The images of a folder and its sub-folders, found by path or by path without extension.

    A folder is listed when something in it is looked for. Names are found in any Unicode form:
    "é" is one character or two, as the file system and the editor of the CSV like it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listings: dict[PurePosixPath, _Listing] = {}
        self._found: dict[PurePosixPath, PurePosixPath | None] = {}
        self._top = self._list(PurePosixPath())
        with os_errors(folder):
            self._folders_read = FoldersRead(folder)

    @property
    def names(self) -> list[str]:
        """The paths of the images in all folders listed so far, in the order of their names."""
        return _sorted(
            _join(folder, name)
            for folder, listing in self._listings.items()
            for name in listing.names
            if listing.is_image(name)
        )

    @property
    def others(self) -> int:
        """How many files in all folders listed so far are not named as images are."""
        return sum(
            not _is_image(name) and name not in listing.folders
            for listing in self._listings.values()
            for name in listing.names
        )

    def claim(self, image: str, number: int) -> int:
        """Notes which row an image belongs to, unless one is noted or `number` is 0.

        Returns:
            The number of the row that was noted before, 0 if none was.
        """
        folder, _, name = image.rpartition("/")
        listing = self._list(PurePosixPath(folder)) if folder else self._top
        place = listing.names.place(name)
        assert place is not None, image
        before = listing.rows[place]
        listing.rows[place] = before or number
        return before

    def unclaimed(self) -> list[str]:
        """The paths of the images that belong to no row, in the order of their names."""
        return _sorted(
            _join(folder, name)
            for folder, listing in self._listings.items()
            for name, row in zip(listing.names, listing.rows, strict=True)
            if not row and listing.is_image(name)
        )

    def walk(self) -> None:
        """Lists all sub-folders.

        Raises:
            DataError: INPUT with the links that lead to a folder outside, or to one listed already.
        """
        refused: list[Fault] = []
        left = [PurePosixPath()]
        while left:
            folder = left.pop()
            for path in sorted(folder / name for name in self._list(folder).folders):
                with os_errors(self.folder / path):
                    reason = self._folders_read.refuse(path)
                if reason:
                    where = str(self.folder / path)
                    refused.append(Fault(0, INPUT, where, reason, "remove the link"))
                else:
                    left.append(path)
        if len(refused) == 1:
            raise refused[0].error()
        if refused:
            reason, lines = f"{len(refused)} links can't be followed", map(Fault.line, refused)
            raise DataError(INPUT, self.folder, reason, fix="remove them", faults=sorted(lines))

    def find(self, cell: str) -> list[str]:
        """Returns the images that a cell can mean: none, one, or several of the same name."""
        found = self._find(cell)
        if not found and "\\" in cell:  # a path as Windows writes it
            found = self._find(cell.replace("\\", "/"))
        return found

    def _find(self, cell: str) -> list[str]:
        if "/" not in cell:
            return self._find_in(self._top, cell)
        path = PurePosixPath(cell)  # ./0.jpg is 0.jpg
        folder = None if self.leaves(cell) else self.find_folder(path.parent)
        if folder is None:
            return []
        return [_join(folder, name) for name in self._find_in(self._list(folder), path.name)]

    def _find_in(self, listing: "_Listing", name: str) -> list[str]:
        same = listing.find(name)
        if images := [other for other in same if _is_image(other)]:
            return images
        if images := [n for suffix in listing.suffixes for n in listing.find(name + suffix)]:
            return images
        # By its content it may be an image all the same.
        return [other for other in same if (listing.path / other).is_file()]

    def find_folder(self, path: PurePosixPath) -> PurePosixPath | None:
        """Returns a sub-folder as the file system writes its path, None if there is none."""
        if path not in self._found:
            self._found[path] = self._look_up(path)
        return self._found[path]

    def _look_up(self, path: PurePosixPath) -> PurePosixPath | None:
        folder = PurePosixPath()
        for part in path.parts:
            listing = self._list(folder)
            names = [name for name in listing.find(part) if name in listing.folders]
            if not names or self._folders_read.leads_out(folder / names[0]):
                return None
            folder /= names[0]
        return folder

    def leaves(self, cell: str) -> bool:
        """Tells whether a cell names something outside the folder, or the folder itself."""
        path = PurePosixPath(cell)
        return path.is_absolute() or ".." in path.parts or not path.parts

    def _list(self, folder: PurePosixPath) -> "_Listing":
        if folder not in self._listings:
            path = self.folder / folder
            with os_errors(path):
                self._listings[folder] = _Listing(path)
        return self._listings[folder]


class _Listing:
    """The names in one folder, but for hidden ones and what file managers leave.

    Attributes:
        path: of the folder.
        names: all of them.
        folders: those of folders, and of links to such.
        suffixes: of the images, sorted.
        rows: for each name the number of the row that it belongs to, 0 for none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folders: set[str] = set()
        self.names = Names(self._read(path))
        self.rows = array("I", bytes(4 * len(self.names)))
        self.suffixes = sorted({n[n.rindex(".") :] for n in self.names if _is_image(n)})
        self._decomposed: dict[str, list[str]] = {}
        for name in self.names:
            if not name.isascii() and composed(name) != name:
                self._decomposed.setdefault(composed(name), []).append(name)

    def _read(self, path: Path) -> Iterator[str]:
        with os.scandir(path) as entries:
            for entry in entries:
                if _is_ignored(entry.name):
                    continue
                # Files, which are the many, are told without another call; a link is looked up.
                if entry.is_dir(follow_symlinks=False) or (
                    entry.is_symlink() and Path(entry).is_dir()
                ):
                    self.folders.add(entry.name)
                yield entry.name

    def is_image(self, name: str) -> bool:
        """Tells whether a name here is that of an image, by its suffix."""
        return _is_image(name) and name not in self.folders

    def find(self, name: str) -> list[str]:
        """Returns the name if it is there, else those that differ by their Unicode form only."""
        if name in self.names:
            return [name]
        form = composed(name)
        other = [form] if form != name and form in self.names else []
        return other + self._decomposed.get(form, [])


def _join(folder: PurePosixPath, name: str) -> str:
    return str(folder / name) if folder.parts else name


def _sorted(paths: Iterable[str]) -> list[str]:
    """Sorts by the composed form, and paths of one form by themselves."""
    return sorted(sorted(paths), key=composed)


def composed(name: str) -> str:
    """The name in Unicode's composed form (NFC), where "é" is one character."""
    return unicodedata.normalize("NFC", name)


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)
