"""Reads GZIP and ZLIB files forward, in bounded memory; every cut and wrong checksum is an error.

Python's gzip module takes zeros after the end for padding and knows no ZLIB.
"""

import zlib
from typing import BinaryIO

GZIP, ZLIB = "gzip", "zlib"
_WINDOW_BITS = {GZIP: 31, ZLIB: 15}
"""What zlib takes to read such a header, and to check what it says of the data."""
_BLOCK = 1 << 16


def compression_of(start: bytes) -> str | None:
    """Returns "gzip" or "zlib" by the first bytes of a file, None for anything else."""
    if start.startswith(b"\x1f\x8b"):
        return GZIP
    # Method 8 with a window of 32 KiB, as all write it, and the check of the header.
    if start.startswith(b"\x78") and int.from_bytes(start[:2], "big") % 31 == 0:
        return ZLIB
    return None


class Inflated:
    """The uncompressed bytes of a file; a GZIP file may have several members, as `cat` joins them.

    Args:
        file: open at its start.
        compression: "gzip" or "zlib".
    """

    def __init__(self, file: BinaryIO, compression: str) -> None:
        self._file = file
        self._compression = compression
        self._input = b""
        self._inflater = zlib.decompressobj(_WINDOW_BITS[compression])

    def read(self, count: int) -> bytes:
        """Returns the next `count` bytes, fewer at the end only; allocates what there is, no more.

        Raises:
            ValueError: the stream is cut, damaged or followed by something else.
        """
        parts = []
        try:
            while count and (part := self._read_some(count)):
                parts.append(part)
                count -= len(part)
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]
            raise ValueError(f"the {self._compression} stream is damaged: {reason}") from error
        return b"".join(parts)

    def _read_some(self, limit: int) -> bytes:
        """The next bytes, at most `limit`; none at the end."""
        while True:
            if self._inflater.eof:
                rest = self._inflater.unused_data or self._file.read(_BLOCK)
                if not rest:
                    return b""
                if self._compression != GZIP:
                    raise ValueError(f"there is more after the end of the {ZLIB} stream")
                self._input = rest
                self._inflater = zlib.decompressobj(_WINDOW_BITS[GZIP])
            self._input = self._input or self._file.read(_BLOCK)
            at_end = not self._input
            data = self._inflater.decompress(self._input, limit)
            self._input = self._inflater.unconsumed_tail
            if data:
                return data
            if at_end and not self._inflater.eof:
                raise ValueError(f"the {self._compression} stream is cut short")
