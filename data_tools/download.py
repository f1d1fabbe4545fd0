"""`data_tools download`: CIFAR's binary archives, checked by size and SHA-256 before unpacking.

Bytes go to DIR.tar.gz.part beside DIR. What a cut, a stall or a kill leaves there is gone on with
by a Range request. The file is also the lock: whoever holds it downloads, and the others wait.
"""

import contextlib
import dataclasses
import errno
import http.client
import io
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

import data_tools
from data_tools import console
from data_tools.archive import Archive, check, unpack
from data_tools.durable import lock
from data_tools.errors import CONFIG, INPUT, INTEGRITY, DataError, os_errors
from data_tools.flags import Download

RETRIES = 3
PAUSE_SECONDS = 2.0
STALL_SECONDS = 30.0
CHUNK_BYTES = 1 << 18

ELSEWHERE = (
    "download it elsewhere, unpack it and pass the folder to data_tools cifar-to-tfrecord, "
    "or pass --url of a mirror"
)
ARCHIVES = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170_052_171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", 168_513_733,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
}  # fmt: skip
"""Sizes and hashes as in url_checksums/ of TensorFlow Datasets."""


def main(command: Download) -> None:
    """Runs the command."""
    from data_tools.writer import check_target  # and with it numpy, which takes its time

    check_target(command.out)
    fetch(command.name, command.out, url=command.url)
    print(f"{command.out}: {command.name}, {len(list(command.out.iterdir()))} files")


def fetch(name: str, folder: Path, url: str | None = None) -> None:
    """Makes the folder of a data set's binary files, unless it is there already.

    Of several processes that call this at a time one downloads, and the others wait for it.

    Args:
        name: "cifar10" or "cifar100".
        folder: what to make.
        url: a mirror of the same archive.

    Raises:
        DataError: INPUT when the archive can't be had, INTEGRITY when it isn't the right one,
            SPACE when the disk is full, CONFIG when the folder is a file or the URL isn't HTTPS.
    """
    archive = ARCHIVES[name]
    fetch_archive(archive if url is None else dataclasses.replace(archive, url=url), folder)


def fetch_archive(archive: Archive, folder: Path) -> None:
    """Does what `fetch` says for any archive."""
    from data_tools.writer import check_target

    if not archive.url.lower().startswith("https://"):
        reason = f"{archive.url!r} doesn't begin with https://"
        raise DataError(CONFIG, "--url", reason, fix="pass a mirror with HTTPS")
    if folder.is_dir():
        return
    check_target(folder)
    partial = folder.with_name(folder.name + ".tar.gz.part")
    with os_errors(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        file = _open_alone(partial)
    with file:
        try:
            if not folder.is_dir():  # which another may have made while we waited
                _make_folder(archive, file, folder)
        finally:
            if not _size(file):
                partial.unlink(missing_ok=True)


def _open_alone(path: Path) -> io.FileIO:
    """Opens a file to append to, in one process at a time; a killed one holds no lock."""
    while True:
        file = io.FileIO(path, "a+", opener=_open_no_symlink)
        if not lock(file.fileno()):
            print(f"{path}: another process is at it; waiting for it to end", flush=True)
            lock(file.fileno(), wait=True)
        # The one that held the lock may have removed the file after we opened it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _open_no_symlink(path: str, flags: int) -> int:
    """Opens no link that somebody else has put there, to have us write to its target."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _size(file: io.FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _make_folder(archive: Archive, file: io.FileIO, folder: Path) -> None:
    """Downloads, checks and unpacks; what is good of the archive is kept when that fails."""
    from data_tools.writer import atomic_folder

    try:
        _download(archive, file)
        check(archive, file)
        with atomic_folder(folder) as incomplete:
            unpack(archive, file, incomplete)
    except DataError as error:
        if error.kind is INTEGRITY:
            file.truncate(0)
        raise
    file.truncate(0)


def _download(archive: Archive, file: io.FileIO) -> None:
    """Adds what the file lacks, and goes on where it was after a cut or a stall."""
    have = _size(file)
    if have >= archive.size:
        return
    begin = time.monotonic()
    going_on = f", going on from byte {have}" if have else ""
    print(f"{archive.url}: downloading {archive.size} bytes{going_on}", flush=True)
    for left in reversed(range(RETRIES + 1)):
        try:
            _receive(archive, file)
            break
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 416:
                file.truncate(0)
            have = _size(file)
            reason = f"{_reason(error)} at byte {have} of {archive.size}"
            if not left:
                fix = f"run it again to go on from byte {have}, or pass --url of a mirror"
                raise DataError(INPUT, archive.url, reason, fix=fix) from error
        print(f"{archive.url}: {reason}; trying again", flush=True)
        time.sleep(PAUSE_SECONDS)
    seconds = time.monotonic() - begin
    print(f"{archive.url}: {_size(file)} bytes are there, after {seconds:.1f} s", flush=True)


def _receive(archive: Archive, file: io.FileIO) -> None:
    """Asks once for what the file lacks and appends it.

    Raises:
        OSError, HTTPException: another try may get further.
        DataError: it would not, or the disk refuses.
    """
    have = _size(file)
    with _request(archive.url, have) as response:
        end = None if response.length is None else int(response.length)  # of what will come
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server knows no ranges
            file.truncate(have)
        elif response.headers["Content-Range"] == f"bytes {have}-{archive.size - 1}/{archive.size}":
            end = archive.size
        else:
            file.truncate(0)
            raise http.client.HTTPException("the server sends another range than it was asked for")
        with console.progress("downloading", archive.size, done=have) as advance:
            # Bytes beyond the size show that it is the wrong file; the rest stays where it is.
            while have != end and have <= archive.size and (data := response.read1(CHUNK_BYTES)):
                _append(file, data)
                have += len(data)
                advance(len(data))
    if have < archive.size and have != end:
        raise ConnectionError("the connection ended")


def _request(url: str, have: int) -> Any:
    headers = {"User-Agent": f"hvd-train/{data_tools.__version__}"}
    if have:
        headers["Range"] = f"bytes={have}-"
    opener = urllib.request.build_opener(_HttpsRedirects)
    try:
        return opener.open(urllib.request.Request(url, headers=headers), timeout=STALL_SECONDS)
    except (ValueError, http.client.InvalidURL) as error:
        raise DataError(CONFIG, url, "not a valid URL", fix="pass another --url") from error
    except urllib.error.URLError as error:
        _refuse_final(error, url, have)
        raise


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
        headers: http.client.HTTPMessage, newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        if not newurl.startswith("https://"):
            reason = f"it redirects to {newurl}, which isn't HTTPS"
            raise DataError(INPUT, req.full_url, reason, fix="pass --url of another mirror")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_final(error: urllib.error.URLError, url: str, have: int) -> None:
    """Raises INPUT for what another try won't mend: no network, no such file, no certificate."""
    fix = ELSEWHERE + (f"; run again, it goes on from byte {have}" if have else "")
    if isinstance(error, urllib.error.HTTPError):
        passing = error.code >= 500 or error.code in (408, 416, 429)
    elif isinstance(error.reason, ssl.SSLCertVerificationError):
        passing = False
        fix = "install the system's CA certificates (ca-certificates) and check the clock"
    else:
        passing = isinstance(error.reason, TimeoutError | ConnectionError)
        passing = passing and not isinstance(error.reason, ConnectionRefusedError)
    if not passing:
        raise DataError(INPUT, url, _reason(error), fix=fix) from error


def _reason(error: Exception) -> str:
    """What happened, in words, without the codes around it."""
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return _reason(error.reason) if isinstance(error.reason, OSError) else str(error.reason)
    if isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT:
        return f"no byte came for {STALL_SECONDS:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate isn't trusted: {error.verify_message}"
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _append(file: io.FileIO, data: bytes) -> None:
    with os_errors(file.name):  # which would look like an error of the network
        while data:
            data = data[file.write(data) :]
