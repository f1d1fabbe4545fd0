"""Reads a split by example number: held decoded in memory, or decoded from the shards."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from data_tools import schema, tfrecord
from data_tools.errors import INTEGRITY, DataError, os_errors
from data_tools.manifest import Manifest, Split, check_hash, check_sizes, load_offsets

NO_CHARACTER = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples by id.

    Attributes:
        ids: int64 [n], the examples' numbers in the split.
        images: uint8 [n, height, width, channels].
        labels: int32 [n, max_length], the characters' places in the charset, a shorter label filled
            up with -1; or [n, 1], the numbers of the classes; or float32 [n, classes], the shares
            of the classes of mixed pictures.
    """

    ids: np.ndarray
    images: np.ndarray
    labels: np.ndarray


class Source(Protocol):
    """A split whose examples are read by number."""

    def __len__(self) -> int:
        """The number of examples."""
        ...

    def gather(self, ids: np.ndarray) -> Batch:
        """Returns the examples with these numbers, in this order."""
        ...


class DiskSource:
    """Reads records by offset from the shards and decodes them on each visit.

    By pread, not by mmap: a file that is cut or can't be read is an error, not a signal that ends
    the process.
    """

    def __init__(self, folder: Path, manifest: Manifest, split_name: str) -> None:
        split = manifest.split(split_name, folder)
        self._manifest = manifest
        self._offsets = _offsets_of(folder, split)
        self._paths = [folder / shard.file for shard in split.shards]
        self._files = [_open(path) for path in self._paths]
        self._shard_ends = np.cumsum([shard.bytes for shard in split.shards])

    def __len__(self) -> int:
        """The number of examples."""
        return len(self._offsets) - 1

    def gather(self, ids: np.ndarray) -> Batch:
        """Returns the examples with these numbers, in this order."""
        batch = self._empty(np.asarray(ids))
        for row, example in enumerate(ids):
            record, where = self._record(int(example))
            batch.images[row], label = schema.decode_record(record, self._manifest, where)
            batch.labels[row, : len(label)] = label
        return batch

    def read_all(self) -> Batch:
        """Returns the whole split; records that are rows of one length are decoded at once."""
        batch = self._empty(np.arange(len(self)))
        start = 0
        for rows in self._rows():
            decoded = schema.decode_rows(rows, self._manifest)
            if decoded is None:
                break
            stop = start + len(rows)
            batch.images[start:stop], batch.labels[start:stop, 0] = decoded
            start = stop
        return batch if start == len(self) else self.gather(batch.ids)

    def _empty(self, ids: np.ndarray) -> Batch:
        image, label = self._manifest.image, self._manifest.label
        images = np.empty((len(ids), image.height, image.width, image.channels), np.uint8)
        max_length = label.max_length if label else 1
        return Batch(ids, images, np.full((len(ids), max_length), NO_CHARACTER, np.int32))

    def _rows(self) -> Iterator[np.ndarray]:
        """The records of each shard as an array, if all are of one length: uint8 [n, length].

        Their checksums aren't looked at: the hash of the whole shard has been.
        """
        lengths = np.diff(self._offsets)
        if not len(lengths) or np.any(lengths != lengths[0]):
            return
        for path, file, size in zip(self._paths, self._files, self._shard_bytes(), strict=True):
            framed = np.frombuffer(_read(file, 0, size, path), np.uint8)
            if framed.size % lengths[0]:
                return
            rows = framed.reshape(-1, int(lengths[0]))
            yield rows[:, tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES]

    def _shard_bytes(self) -> list[int]:
        return [int(size) for size in np.diff(self._shard_ends, prepend=0)]

    def _record(self, example: int) -> tuple[bytes, str]:
        start, stop = int(self._offsets[example]), int(self._offsets[example + 1])
        shard = int(np.searchsorted(self._shard_ends, start, side="right"))
        begin = int(self._shard_ends[shard - 1]) if shard else 0
        where = f"{self._paths[shard]}:byte {start - begin}"
        framed = _read(self._files[shard], start - begin, stop - start, self._paths[shard])
        return tfrecord.unframe(framed, 0, stop - start, where), where


class MemorySource:
    """Holds a split decoded and gathers a batch by index."""

    def __init__(self, everything: Batch) -> None:
        self._images = everything.images
        self._labels = everything.labels

    def __len__(self) -> int:
        """The number of examples."""
        return len(self._images)

    @property
    def nbytes(self) -> int:
        """The memory that it holds, in bytes."""
        return self._images.nbytes + self._labels.nbytes

    def gather(self, ids: np.ndarray) -> Batch:
        """Returns the examples with these numbers, in this order."""
        return Batch(np.asarray(ids), self._images[ids], self._labels[ids])


def open_source(folder: Path, manifest: Manifest, split_name: str, *, budget: float) -> Source:
    """Opens a split in memory if it fits into `budget` bytes when decoded, else on disk.

    Raises:
        DataError: INTEGRITY when a record or the offsets are broken.
    """
    on_disk = DiskSource(folder, manifest, split_name)
    image = manifest.image
    if len(on_disk) * image.height * image.width * image.channels > budget:
        return on_disk
    return MemorySource(on_disk.read_all())


def check_own_hashes(folder: Path, manifest: Manifest, *, local_rank: int, local_size: int) -> None:
    """Checks all sizes, and the hashes of this rank's part of its host's copy.

    So the ranks of a host together read each shard once a run.

    Raises:
        DataError: INTEGRITY when a shard is missing or isn't what the manifest says.
    """
    for split in manifest.splits.values():
        check_sizes(folder, split)
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    for shard in shards[local_rank::local_size]:
        check_hash(folder, shard)


def _offsets_of(folder: Path, split: Split) -> np.ndarray:
    path = folder / split.offsets
    offsets = load_offsets(path)
    ends = np.cumsum([shard.bytes for shard in split.shards])
    fits = len(offsets) == split.examples + 1 and offsets[0] == 0 and np.all(np.diff(offsets) > 0)
    if not (fits and np.isin(ends, offsets).all()):
        raise DataError(
            INTEGRITY, path, "doesn't fit the manifest's examples and bytes",
            fix="convert the data set again",
        )  # fmt: skip
    return offsets


def _open(path: Path) -> BinaryIO:
    with os_errors(path):
        return path.open("rb", buffering=0)


def _read(file: BinaryIO, start: int, size: int, path: Path) -> bytes:
    """The bytes of a place in a file; fewer where the file has been cut."""
    with os_errors(path):
        return os.pread(file.fileno(), size, start)
