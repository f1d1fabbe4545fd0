"""Archives from the web: a known size and SHA-256, one folder, regular files in it."""

import dataclasses
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_tools.errors import INTEGRITY, DataError, os_errors

MAX_EXPANSION = 4
"""The unpacked files may have as many times the bytes of the archive."""
COPY_BYTES = 1 << 20
ANEW = "nothing was unpacked; run it again to start anew, or pass --url of another mirror"


@dataclass(frozen=True, slots=True)
class Archive:
    """A .tar.gz with one folder of files.

    Attributes:
        url: where it is, HTTPS.
        size: in bytes.
        sha256: of the whole file.
    """

    url: str
    size: int
    sha256: str


def check(archive: Archive, file: io.FileIO) -> None:
    """Raises INTEGRITY unless the file is the archive."""
    size = file.seek(0, os.SEEK_END)
    if size > archive.size:
        reason = f"more comes than the {archive.size} bytes that the archive has"
        raise DataError(INTEGRITY, archive.url, reason, fix=ANEW)
    file.seek(0)
    with os_errors(file.name):
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if (size, digest) != (archive.size, archive.sha256):
        reason = (
            f"{size} bytes with SHA-256 {digest} came; "
            f"the archive has {archive.size} bytes with SHA-256 {archive.sha256}"
        )
        raise DataError(INTEGRITY, archive.url, reason, fix=ANEW)


def unpack(archive: Archive, file: io.FileIO, folder: Path) -> None:
    """Writes the files of the archive's one folder.

    Nothing but their last names and their bytes is taken from the archive. That is stricter than
    tarfile's filter "data", which Python 3.11.2, that of Debian 12, doesn't have.
    """
    file.seek(0)
    rule = _Rule(MAX_EXPANSION * archive.size)
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as tar:
            for member in tar:
                if reason := rule.refusal(member):
                    raise DataError(INTEGRITY, archive.url, member.name, reason, fix=ANEW)
                if member.isdir():
                    continue
                source = tar.extractfile(member)
                assert source is not None
                with (folder / PurePosixPath(member.name).name).open("xb") as target:
                    shutil.copyfileobj(source, target, COPY_BYTES)
                    target.flush()
                    os.fsync(target.fileno())
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(INTEGRITY, archive.url, "not a whole .tar.gz", fix=ANEW) from error


@dataclass(slots=True)
class _Rule:
    """What an archive may hold: one folder, and regular files of different names in it."""

    bytes_left: int
    top: tuple[str, ...] = ()
    names: set[str] = dataclasses.field(default_factory=set)

    def refusal(self, member: tarfile.TarInfo) -> str:
        """Why this member may not be; "" if it may."""
        path = PurePosixPath(member.name)
        self.top = self.top or path.parts[:1]
        self.bytes_left -= member.size
        if path.is_absolute() or ".." in path.parts:
            return "it would be outside of the folder"
        if member.isdir() and path.parts == self.top:
            return ""
        if not member.isreg():
            return "it is no regular file"
        if path.parts[:-1] != self.top:
            return "it isn't in the archive's one folder"
        if path.name in self.names:
            return "it is there twice"
        if self.bytes_left < 0:
            return f"the files have more than {MAX_EXPANSION} times the bytes of the archive"
        self.names.add(path.name)
        return ""
