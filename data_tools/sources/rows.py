"""Rows of image and label in little memory: sets of millions are converted in one process."""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

_NUMBER = struct.Struct("<I")
_BLOCK = 1 << 14
"""Bytes of joined texts that are taken apart at a time."""


class Row(NamedTuple):
    """An image of the folder and its label.

    Attributes:
        number: of its last line in the file, from 1, as an editor counts; of labels from names
            the place of the image among all, from 1.
        image: path of the image inside the folder.
        label: the label's characters.
    """

    number: int
    image: str
    label: str


@dataclass(slots=True)
class Rows:
    """Rows in order: 6 bytes and their own texts each, where three objects would take 200.

    Attributes:
        joined_numbers: uint32 of each row.
        joined_images: the images, each in UTF-8 with a NUL behind it, which is in no file's name.
        joined_labels: the same of the labels; a CSV with a NUL is none.
    """

    joined_numbers: bytearray = field(default_factory=bytearray)
    joined_images: bytearray = field(default_factory=bytearray)
    joined_labels: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Rows":
        """Packs rows."""
        packed = cls()
        for row in rows:
            packed.append(*row)
        return packed

    def append(self, number: int, image: str, label: str) -> None:
        """Adds a row."""
        self.joined_numbers += _NUMBER.pack(number)
        # Names of files are of any bytes, which Python writes as lone surrogates.
        self.joined_images += f"{image}\0".encode(errors="surrogatepass")
        self.joined_labels += f"{label}\0".encode(errors="surrogatepass")

    def __len__(self) -> int:
        return len(self.joined_numbers) // _NUMBER.size

    def __iter__(self) -> Iterator[Row]:
        numbers = (number for (number,) in _NUMBER.iter_unpack(bytes(self.joined_numbers)))
        return map(Row, numbers, self.images(), self.labels())

    def images(self) -> Iterator[str]:
        """The images alone."""
        return _split(self.joined_images)

    def labels(self) -> Iterator[str]:
        """The labels alone."""
        return _split(self.joined_labels)

    def digest(self) -> str:
        """SHA-256 over all rows, in hexadecimal digits."""
        joined = (self.joined_numbers, self.joined_images, self.joined_labels)
        each = b"".join(hashlib.sha256(part).digest() for part in joined)
        return hashlib.sha256(each).hexdigest()

    def parts(self, ranges: Iterable[range]) -> list["Rows"]:
        """Cuts the rows into ranges of their places, which follow on each other."""
        left = iter(self)
        return [Rows.of(islice(left, len(part))) for part in ranges]


def _split(joined: bytearray) -> Iterator[str]:
    start = 0
    while start < len(joined):
        end = joined.index(0, min(start + _BLOCK, len(joined) - 1))
        yield from joined[start:end].decode(errors="surrogatepass").split("\0")
        start = end + 1
