"""Reads arrays of numbers from MATLAB files of version 5.

A file is a header of 128 bytes, then elements of a type, a length and data. A variable is an
element of elements: flags, dimensions, name, values; most are compressed as a zlib stream
(MathWorks, "MAT-File Format"). SciPy reads these files too, but a wrong bit in one can end the
process (1.17.1), and all of it is in memory then.
"""

import os
import struct
import tempfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

HEADER_BYTES = 128
_VERSION_7_3 = (b"MATLAB 7.3", b"\x89HDF")
"""How a file begins that is HDF5 inside."""
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8",
          13: "u8"}  # fmt: skip
"""How numbers are stored."""
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8",
            15: "u8"}  # fmt: skip
"""What numbers are; whole ones may be stored in fewer bytes."""
_COMPLEX = 0x800
_MAX_HEAD = 4096
"""Bytes of a variable's dimensions or name, far more than there are."""
_CHUNK = 1 << 20
_CUT = "the file is cut short"


def read_arrays(file: BinaryIO, names: Collection[str], scratch: Path) -> dict[str, Array]:
    """Reads the variables of these names that are arrays of numbers.

    Args:
        file: a whole file.
        names: of the variables.
        scratch: a folder where large arrays are unpacked, to files that nobody sees.

    Returns:
        The arrays that are there, with the dimensions that MATLAB shows, mapped from the disk.

    Raises:
        ValueError: with the reason, when it is of another kind or damaged.
        OSError: when `scratch` is full.
    """
    order = _byte_order(file.read(HEADER_BYTES))
    arrays: dict[str, Array] = {}
    for kind, length in _elements(file, order):
        packed = kind == _COMPRESSED
        stream: _Stream = _Inflated(file, length) if packed else _Plain(file, length)
        inner = _unpack(stream, order)[0] if packed else kind
        named = _read_variable(stream, order, names, scratch) if inner == _MATRIX else None
        if named is not None:
            stream.finish()
            arrays[named[0]] = named[1]
    return arrays


def _byte_order(header: bytes) -> str:
    if header.startswith(_VERSION_7_3):
        raise ValueError("a MATLAB file of version 7.3, not 5")
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(header[124:])
    if order is None:
        raise ValueError("not a MATLAB file of version 5")
    return order


def _elements(file: BinaryIO, order: str) -> Iterator[tuple[int, int]]:
    """Yields type and length of each element of the file, which then stands before its data."""
    size = os.fstat(file.fileno()).st_size
    position = HEADER_BYTES
    while position < size:
        file.seek(position)
        tag = file.read(8)
        if len(tag) < 8:
            raise ValueError(_CUT)
        kind, length = struct.unpack(order + "II", tag)
        position += 8 + length
        if position > size:
            raise ValueError(_CUT)
        yield kind, length


class _Stream(Protocol):
    """The data of an element."""

    def read(self, count: int) -> bytes:
        """Returns so many bytes, or ValueError."""
        ...

    def array(self, dtype: str, count: int, scratch: Path) -> Array:
        """Returns the numbers that come next."""
        ...

    def finish(self) -> None:
        """Checks what can be checked once all has been read."""
        ...


class _Plain:
    """An element as it lies in the file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise ValueError("a variable is longer than its element")
        self._left -= count
        return self._file.read(count)

    def array(self, dtype: str, count: int, scratch: Path) -> Array:
        if count * np.dtype(dtype).itemsize > self._left:
            raise ValueError("a variable is longer than its element")
        return np.memmap(self._file, dtype, "r", self._file.tell(), count)

    def finish(self) -> None:
        """There is no checksum."""


class _Inflated:
    """An element inside of a compressed one."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length
        self._zlib = zlib.decompressobj()

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            data += self._some(count - len(data))
        return bytes(data)

    def array(self, dtype: str, count: int, scratch: Path) -> Array:
        left = count * np.dtype(dtype).itemsize
        with tempfile.TemporaryFile(dir=scratch) as unpacked:
            while left:
                left -= unpacked.write(self._some(min(left, _CHUNK)))
            unpacked.flush()
            return np.memmap(unpacked, dtype, "r", 0, count)

    def finish(self) -> None:
        """Checks that the stream ends here, which zlib lets it do only if its checksum is right."""
        rest = self._inflate(8)  # what pads the last element
        if len(rest) == 8 or not self._zlib.eof or self._zlib.unused_data or self._left:
            raise ValueError("a compressed variable is damaged")

    def _some(self, limit: int) -> bytes:
        """At least one byte and at most so many."""
        if not (data := self._inflate(limit)):
            raise ValueError("a compressed variable is damaged")
        return data

    def _inflate(self, limit: int) -> bytes:
        """Up to so many bytes; none at the end."""
        try:
            while not self._zlib.eof:
                packed = self._zlib.unconsumed_tail
                if not packed:
                    packed = self._file.read(min(_CHUNK, self._left))
                    self._left -= len(packed)
                data = self._zlib.decompress(packed, limit)
                if data or not packed:
                    return data
        except zlib.error as error:
            raise ValueError("a compressed variable is damaged") from error
        return b""


def _read_variable(
    stream: _Stream, order: str, names: Collection[str], scratch: Path
) -> tuple[str, Array] | None:
    """Returns name and values of a variable; None if it is not asked for, or no plain numbers."""
    flags = _head(stream, order, 6)
    if len(flags) < 4:
        raise ValueError("a variable without flags")
    (flag,) = struct.unpack(order + "I", flags[:4])
    if flag & 0xFF not in _CLASSES or flag & _COMPLEX:
        return None
    dims = np.frombuffer(_head(stream, order, 5), order + "i4").tolist()
    name = _head(stream, order, 1).decode("latin-1")
    if name not in names:
        return None
    kind, length, inline = _tag(stream, order)
    dtype = order + _TYPES.get(kind, "")
    count = int(np.prod(dims, dtype=object)) if min(dims, default=0) >= 0 else -1
    if kind not in _TYPES or count * np.dtype(dtype).itemsize != length:
        raise ValueError(f"variable {name} has another number of values than its dimensions say")
    if inline is not None or not count:
        values: Array = np.frombuffer(inline or b"", dtype, count)
    else:
        values = stream.array(dtype, count, scratch)
    shown = values.reshape(dims[::-1]).T  # the first index changes fastest
    return name, shown.astype(_CLASSES[flag & 0xFF], order="K", copy=False)


def _unpack(stream: _Stream, order: str) -> tuple[int, int]:
    kind, length = struct.unpack(order + "II", stream.read(8))
    return kind, length


def _tag(stream: _Stream, order: str) -> tuple[int, int, bytes | None]:
    """Returns type, length and, where it is so short that it stands in its tag, the data."""
    kind, length = _unpack(stream, order)
    if not kind >> 16:
        return kind, length, None
    kind, length, data = kind & 0xFFFF, kind >> 16, struct.pack(order + "I", length)
    if length > len(data):
        raise ValueError("a tag is damaged")
    return kind, length, data[:length]


def _head(stream: _Stream, order: str, expected: int) -> bytes:
    """Returns the data of one of the elements that describe a variable."""
    kind, length, data = _tag(stream, order)
    if kind != expected or length > _MAX_HEAD:
        raise ValueError("a variable's flags, dimensions or name are damaged")
    return stream.read(-(-length // 8) * 8)[:length] if data is None else data
