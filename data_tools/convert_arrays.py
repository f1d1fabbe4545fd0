"""From arrays of pixels to the shards of splits: what sets that come as few large files share.

Images are stored raw and are of one size, so that records are rows of one length.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import data_tools
from data_tools import schema, tfrecord
from data_tools.manifest import ImageSpec, Manifest
from data_tools.ranks import ALONE, Ranks
from data_tools.sources.batch import Batch
from data_tools.writer import (
    ShardWriter,
    WrittenShard,
    finish_splits,
    split_evenly,
    write_manifest,
)

KIND = "classes"
BLOCK = 512
"""Examples encoded at a time: they fit into a cache, and memory is used again and again."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples [rows] of files one after the other; nothing of them is copied.

    Attributes:
        files: what is in each file.
        rows: which of all their examples.
    """

    files: tuple[Batch, ...]
    rows: range

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, rows: range) -> "Examples":
        """Some of these examples, by their numbers among them."""
        return Examples(self.files, self.rows[rows.start : rows.stop])

    def blocks(self) -> Iterator[Batch]:
        """The examples in order, at most BLOCK at a time."""
        start = 0
        for file in self.files:
            own = range(
                max(self.rows.start - start, 0), min(self.rows.stop - start, len(file.images))
            )
            for first in own[::BLOCK]:
                yield file.part(slice(first, min(first + BLOCK, own.stop)))
                file.forget()
            start += len(file.images)


def write_splits(
    folder: Path,
    splits: Mapping[str, Examples],
    *,
    shards: int,
    workers: int,
    ranks: Ranks = ALONE,
) -> dict[str, list[WrittenShard]]:
    """Writes the shards of all splits, several at a time, under temporary names.

    Returns:
        What was written, in order; nothing on ranks above 0.
    """
    tasks = cut(folder, splits, shards)

    def write(own: Sequence[Task]) -> list[WrittenShard]:
        # Threads, not processes: checksums, hashes and writes let go of Python's lock.
        with ThreadPoolExecutor(workers if ranks.size == 1 else 1) as pool:
            return list(pool.map(lambda task: write_shard(*task[1:]), own))

    written = ranks.share(
        tasks, write,
        plan=[(split, len(examples)) for split, _, examples in tasks],
        to_json=WrittenShard.to_json, from_json=WrittenShard.from_json,
    )  # fmt: skip
    by_split: dict[str, list[WrittenShard]] = {}
    for (split, _, _), shard in zip(tasks, written, strict=not ranks.rank):
        by_split.setdefault(split, []).append(shard)
    return by_split


Task = tuple[str, Path, Examples]
"""The split of a shard, its temporary name, and what goes into it."""


def cut(folder: Path, splits: Mapping[str, Examples], shards: int) -> list[Task]:
    """Cuts the splits into shards of nearly one size."""
    return [
        (split, folder / f"{split}.chunk-{index:05d}", examples.part(rows))
        for split, examples in splits.items()
        for index, rows in enumerate(split_evenly(len(examples), shards))
    ]


def write_shard(path: Path, examples: Examples) -> WrittenShard:
    """Writes the examples of one shard."""
    with ShardWriter(path) as writer:
        for batch in examples.blocks():
            rows = schema.encode_rows(batch.images, batch.labels, batch.coarse_labels)
            writer.write_rows(tfrecord.frame_rows(rows))
        return writer.close()


def finish_set(
    folder: Path,
    written: Mapping[str, Sequence[WrittenShard]],
    *,
    name: str,
    image: ImageSpec,
    arguments: Sequence[str],
    classes: tuple[str, ...],
    coarse_classes: tuple[str, ...] | None = None,
) -> Manifest:
    """Names the shards, writes offsets, TFDS's files and the manifest, and returns the manifest.

    Args:
        folder: where the shards are.
        written: those of each split.
        name: of the data set.
        image: what all images are.
        arguments: the flags that decide what the data set holds.
        classes: the names of the classes.
        coarse_classes: the names of their superclasses, if there are such.
    """
    hashes = [shard.sha256 for shards in written.values() for shard in shards]
    digest = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    manifest = Manifest(
        tool=data_tools.__version__,
        name=name,
        kind=KIND,
        created_from={"digest": f"sha256:{digest}", "arguments": list(arguments)},
        image=image,
        label=None,
        classes=classes,
        coarse_classes=coarse_classes,
        skipped=(),
        splits=finish_splits(folder, name, written),
    )
    write_manifest(folder, manifest)
    return manifest
