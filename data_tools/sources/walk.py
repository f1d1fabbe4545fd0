"""Which folders of a source are read: each once, and none that lies outside."""

import os
from pathlib import Path, PurePosixPath


class FoldersRead:
    """The folders of a source that are read, told apart by device and inode.

    So links that form circles, double at each level or lead to / end the walk at once.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self.top = Path(os.path.realpath(source))
        # The path under which each folder is read; "" for what holds the source, never read.
        self._read = {_identity(path): "" for path in (self.top, *self.top.parents)}

    def refuse(self, folder: PurePosixPath) -> str:
        """Says why a folder isn't to be read; empty if it is, which is noted.

        Args:
            folder: its path in the source.
        """
        path = self._source / folder
        identity = _identity(path)
        if identity in self._read:
            same = self._read[identity]
            return f"the same folder as {same}" if same else "it leads back to the source"
        if self.leads_out(folder):
            return "it leads out of the source"
        self._read[identity] = str(folder)
        return ""

    def leads_out(self, path: PurePosixPath) -> bool:
        """Tells whether a path in the source is, by links, one outside of it."""
        return not Path(os.path.realpath(self._source / path)).is_relative_to(self.top)


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
