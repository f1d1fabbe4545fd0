"""Writes a data set folder so that it is there whole or not at all.

Everything goes to NAME.incomplete beside the target, is flushed to the disk and renamed last.
The rows of a set are cut into as many contiguous chunks as there are to be shards; a chunk is one
task, which writes a file for each split. So the bytes don't depend on how many workers there are,
and few files are open at once.
"""

import functools
import hashlib
import itertools
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data_tools import schema, tfrecord
from data_tools.durable import write_synced
from data_tools.errors import CONFIG, DataError, os_errors
from data_tools.manifest import FILE_NAME, Manifest, Shard, Split, dump
from data_tools.whole_folder import INCOMPLETE, whole_folder


@contextmanager
def atomic_folder(target: Path, *, overwrite: bool | None = None, rank: int = 0) -> Iterator[Path]:
    """Gives a folder to write to; it gets its final name when the block ends without an error.

    Args:
        target: the final name.
        overwrite: replace a data set of that name, once the new one is whole; None where the
            command has no such flag.
        rank: above 0 the folder that rank 0 makes is told, and nothing else done.

    Raises:
        DataError: CONFIG when the target exists and may not be replaced or another process is
            writing it; SPACE or INPUT when the disk refuses, the target then being as before.
    """
    if rank:
        with os_errors(target):
            yield target.parent / (target.name + INCOMPLETE)
        return
    with whole_folder(target, functools.partial(check_target, overwrite=overwrite)) as folder:
        yield folder


def check_inputs_stay(out: Path, inputs: Iterable[tuple[str, Path]]) -> None:
    """Raises CONFIG when `out` would replace an input, given with its name, or lie in it."""
    target = out.resolve()
    replaced = (target, Path(f"{target}{INCOMPLETE}"))
    for what, path in inputs:
        source = path.resolve()
        if any(source.is_relative_to(folder) for folder in replaced):
            raise DataError(CONFIG, out, f"it holds the {what}", fix="choose another folder")
        if target.is_relative_to(source):
            raise DataError(CONFIG, out, f"it lies in the {what}", fix="choose another folder")


def check_given_once(inputs: Iterable[Path]) -> None:
    """Raises CONFIG when a file is given twice, by one name or several."""
    for path, times in Counter(path.resolve() for path in inputs).items():
        if times > 1:
            raise DataError(CONFIG, path, "it is given twice", fix="pass each file once")


def split_evenly(count: int, parts: int) -> list[range]:
    """Cuts range(count) into at most `parts` contiguous ranges, none of them empty."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds) if a < b]


def check_target(target: Path, *, overwrite: bool | None = None) -> None:
    """Raises CONFIG when the target exists and may not be replaced; see `atomic_folder`."""
    reason = ""
    if target.name in ("", ".."):
        reason = "not the name of a new folder"
    elif target.is_symlink() and not target.exists():
        reason = "it is a link to nothing"
    elif target.exists() and not target.is_dir():
        reason = "it is a file"
    elif target.exists() and overwrite and not (target / FILE_NAME).is_file():
        reason = "--overwrite replaces data sets only, and this is none"
    if reason:
        raise DataError(CONFIG, target, reason, fix="choose another folder")
    if target.exists() and not overwrite:
        fix = "choose another folder"
        if overwrite is not None and (target / FILE_NAME).is_file():
            fix += " or pass --overwrite"
        raise DataError(CONFIG, target, "it exists already", fix=fix)


class ShardWriter:
    """Writes the records of one shard, their lengths to a file beside it, and hashes the shard.

    Nothing is held that grows with the number of records.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb")
        self._lengths: BinaryIO = _lengths_of(path).open("wb")
        self._sha256 = hashlib.sha256()
        self._examples = self._bytes = 0

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        # After an error too, or NFS would keep the removed files, and with them their folder.
        for file in (self._file, self._lengths):
            with suppress(OSError):
                file.close()

    def write(self, record: bytes) -> None:
        """Appends a record in its frame."""
        framed = tfrecord.frame(record)
        self._append(framed, 1, len(framed))

    def write_rows(self, framed: npt.NDArray[np.uint8]) -> None:
        """Appends framed records of one length, uint8 [n, bytes of each]."""
        self._append(framed.reshape(-1).data, *framed.shape)

    def _append(self, framed: bytes | memoryview, examples: int, length: int) -> None:
        self._file.write(framed)
        self._sha256.update(framed)
        self._lengths.write(_PACKED_LENGTH.pack(length) * examples)
        self._examples += examples
        self._bytes += examples * length

    def close(self) -> "WrittenShard":
        """Flushes the shard to the disk and returns what is in it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._lengths.close()
        return WrittenShard(self.path, self._examples, self._bytes, self._sha256.hexdigest())


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard under its temporary name.

    Attributes:
        path: where it is.
        examples: how many records it has.
        bytes: its size.
        sha256: of the whole file.
    """

    path: Path
    examples: int
    bytes: int
    sha256: str

    def to_json(self) -> list[str | int]:
        """The same as a value of JSON, for another rank."""
        return [str(self.path), self.examples, self.bytes, self.sha256]

    @classmethod
    def from_json(cls, value: list[Any]) -> "WrittenShard":
        """What `to_json` made a value of JSON of."""
        path, *rest = value
        return cls(Path(path), *rest)


_LENGTH = np.dtype("<i8")
_PACKED_LENGTH = struct.Struct("<q")
_LENGTHS_A_BLOCK = 1 << 16


def _lengths_of(shard: Path) -> Path:
    """The file that holds the framed bytes of each record of a shard until they become offsets."""
    return shard.with_name(shard.name + ".lengths")


def write_chunk(
    folder: Path, chunk: int, records: Iterator[tuple[str, bytes]]
) -> dict[str, WrittenShard]:
    """Writes the records of one chunk, a file for each split that has any.

    Args:
        folder: where the files go.
        chunk: the chunk's number, part of the temporary names.
        records: split and record, in order.
    """
    writers: dict[str, ShardWriter] = {}
    with ExitStack() as files:
        for split, record in records:
            if split not in writers:
                writer = ShardWriter(folder / f"{split}.chunk-{chunk:05d}")
                writers[split] = files.enter_context(writer)
            writers[split].write(record)
        return {split: writer.close() for split, writer in writers.items()}


def finish_splits(
    folder: Path, name: str, written: Mapping[str, Sequence[WrittenShard]]
) -> dict[str, Split]:
    """Finishes the splits, in order; those without any shard are left out."""
    return {
        split: finish_split(folder, name, split, shards)
        for split, shards in written.items()
        if shards
    }


def finish_split(folder: Path, name: str, split: str, written: Sequence[WrittenShard]) -> Split:
    """Gives the shards of a split their final names and writes its offsets.

    Args:
        folder: where the shards are.
        name: the data set's name, first part of the file names.
        split: the split's name.
        written: its shards in order.
    """
    offsets = f"offsets-{split}.npy"
    _write_offsets(folder / offsets, written)
    shards = []
    for index, shard in enumerate(written):
        final = f"{name}-{split}.tfrecord-{index:05d}-of-{len(written):05d}"
        shard.path.rename(folder / final)
        _lengths_of(shard.path).unlink()
        shards.append(
            Shard(file=final, examples=shard.examples, bytes=shard.bytes, sha256=shard.sha256)
        )
    examples = sum(shard.examples for shard in written)
    return Split(examples=examples, offsets=offsets, shards=tuple(shards))


def _write_offsets(path: Path, written: Sequence[WrittenShard]) -> None:
    """Sums up the lengths of the records as a stream; np.save of int64 [examples + 1]."""
    shape = (1 + sum(shard.examples for shard in written),)
    header = {"descr": _LENGTH.str, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        end = np.zeros(1, _LENGTH)
        file.write(end.tobytes())
        for shard in written:
            with _lengths_of(shard.path).open("rb") as lengths:
                while block := lengths.read(_LENGTHS_A_BLOCK * _LENGTH.itemsize):
                    ends = end[-1] + np.cumsum(np.frombuffer(block, _LENGTH))
                    file.write(ends.tobytes())
                    end = ends
        file.flush()
        os.fsync(file.fileno())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the files that describe the set, manifest.json last."""
    for file, data in schema.tfds_files(manifest).items():
        write_synced(folder / file, data)
    write_synced(folder / FILE_NAME, dump(manifest))
