"""Reads a split by example number: held decoded in memory, or decoded from mapped shards."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
            up with -1; or [n, 1], the numbers of the classes.
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


class MappedSource:
    """Reads records by offset from memory-mapped shards and decodes them on each visit."""

    def __init__(self, folder: Path, manifest: Manifest, split_name: str) -> None:
        split = manifest.split(split_name, folder)
        self._manifest = manifest
        self._offsets = _offsets_of(folder, split)
        self._paths = [folder / shard.file for shard in split.shards]
        self._maps = [_map_file(path) for path in self._paths]
        self._shard_ends = np.cumsum([shard.bytes for shard in split.shards])

    def __len__(self) -> int:
        """The number of examples."""
        return len(self._offsets) - 1

    def gather(self, ids: np.ndarray) -> Batch:
        """Returns the examples with these numbers, in this order."""
        image_spec, label_spec = self._manifest.image, self._manifest.label
        shape = (len(ids), image_spec.height, image_spec.width, image_spec.channels)
        images = np.empty(shape, np.uint8)
        max_length = label_spec.max_length if label_spec else 1
        labels = np.full((len(ids), max_length), NO_CHARACTER, np.int32)
        for row, example in enumerate(ids):
            record, where = self._record(int(example))
            images[row], label = schema.decode_record(record, self._manifest, where)
            labels[row, : len(label)] = label
        return Batch(np.asarray(ids), images, labels)

    def read_all(self) -> Batch:
        """Returns the whole split; records that are rows of one length are decoded at once."""
        ids = np.arange(len(self))
        decoded = [schema.decode_rows(rows, self._manifest) for rows in self._rows()]
        parts = [part for part in decoded if part is not None]
        if not parts or len(parts) < len(decoded):
            return self.gather(ids)
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Batch(ids, images, labels.astype(np.int32)[:, None])

    def _rows(self) -> Iterator[np.ndarray]:
        """The records of each shard as an array, if all are of one length: uint8 [n, length].

        Their checksums aren't looked at: the hash of the whole shard has been.
        """
        lengths = np.diff(self._offsets)
        if not len(lengths) or np.any(lengths != lengths[0]):
            return
        for shard in self._maps:
            framed = np.frombuffer(shard, np.uint8).reshape(-1, int(lengths[0]))
            yield framed[:, tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES]

    def _record(self, example: int) -> tuple[bytes, str]:
        start, stop = int(self._offsets[example]), int(self._offsets[example + 1])
        shard = int(np.searchsorted(self._shard_ends, start, side="right"))
        begin = int(self._shard_ends[shard - 1]) if shard else 0
        where = f"{self._paths[shard]}:byte {start - begin}"
        return tfrecord.unframe(self._maps[shard], start - begin, stop - begin, where), where


class MemorySource:
    """Holds a split decoded and gathers a batch by index."""

    def __init__(self, everything: Batch) -> None:
        self._images = everything.images
        self._labels = everything.labels

    def __len__(self) -> int:
        """The number of examples."""
        return len(self._images)

    def gather(self, ids: np.ndarray) -> Batch:
        """Returns the examples with these numbers, in this order."""
        return Batch(np.asarray(ids), self._images[ids], self._labels[ids])


def open_source(folder: Path, manifest: Manifest, split_name: str, *, budget: float) -> Source:
    """Opens a split in memory if it fits into `budget` bytes when decoded, else mapped.

    Raises:
        DataError: INTEGRITY when a record or the offsets are broken.
    """
    mapped = MappedSource(folder, manifest, split_name)
    image = manifest.image
    if len(mapped) * image.height * image.width * image.channels > budget:
        return mapped
    return MemorySource(mapped.read_all())


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


def _map_file(path: Path) -> mmap.mmap:
    with os_errors(path), path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
