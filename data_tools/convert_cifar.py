"""`data_tools cifar-to-tfrecord`: the binary files of CIFAR-10 or -100 to a data set folder."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import data_tools
from data_tools import schema, tfrecord
from data_tools.errors import CONFIG, DataError
from data_tools.flags import CifarToTfrecord
from data_tools.manifest import ImageSpec, Manifest
from data_tools.sources import cifar
from data_tools.sources.cifar import Batch, Layout
from data_tools.writer import (
    ShardWriter,
    WrittenShard,
    atomic_folder,
    check_inputs_stay,
    finish_split,
    split_evenly,
    write_manifest,
)

TRAIN, VALIDATION, TEST = "train", "validation", "test"
KIND = "classes"
BLOCK = 512
"""Examples encoded at a time: they fit into a cache, and memory is used again and again."""


def main(command: CifarToTfrecord) -> None:
    """Runs the command."""
    check_inputs_stay(command.out, [("source", path) for path in command.src])
    layout, files = cifar.find_files(command.src, command.dataset)
    names = cifar.read_class_names(files[0].parent, layout)
    splits = read_splits(files, layout, command.validation)
    with atomic_folder(command.out, overwrite=command.overwrite) as incomplete:
        written = write_splits(incomplete, splits, command)
        write_manifest(incomplete, finish(incomplete, written, layout, names, command))
    counts = ", ".join(f"{name} {len(split)}" for name, split in splits.items())
    total = sum(map(len, splits.values()))
    print(f"{command.out}: {total} images of {layout.title}: {counts}")


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
            start += len(file.images)


def read_splits(files: Sequence[Path], layout: Layout, validation: int) -> dict[str, Examples]:
    """Reads the files, by split: train, validation and test, those that have any example.

    Raises:
        DataError: INPUT when a file is damaged, CONFIG when validation takes all training images.
    """
    batches: dict[str, list[Batch]] = {TRAIN: [], TEST: []}
    for path in files:
        split = TEST if path.name.startswith(cifar.TEST_PREFIX) else TRAIN
        batches[split].append(cifar.read_batch(path, layout))
    counts = {split: sum(len(b.images) for b in read) for split, read in batches.items()}
    if validation and validation >= counts[TRAIN]:
        raise DataError(
            CONFIG, "--validation", f"{validation} of {counts[TRAIN]} training images",
            fix="leave some to train on",
        )  # fmt: skip
    cut = counts[TRAIN] - validation
    splits = {
        TRAIN: Examples(tuple(batches[TRAIN]), range(cut)),
        VALIDATION: Examples(tuple(batches[TRAIN]), range(cut, counts[TRAIN])),
        TEST: Examples(tuple(batches[TEST]), range(counts[TEST])),
    }
    return {name: examples for name, examples in splits.items() if len(examples)}


def write_splits(
    folder: Path, splits: Mapping[str, Examples], command: CifarToTfrecord
) -> dict[str, list[WrittenShard]]:
    """Writes the shards of all splits, several at a time, under temporary names."""
    tasks = [
        (split, folder / f"{split}.chunk-{index:05d}", examples.part(rows))
        for split, examples in splits.items()
        for index, rows in enumerate(split_evenly(len(examples), command.shards))
    ]
    # Threads, not processes: checksums, hashes and writes let go of Python's lock.
    with ThreadPoolExecutor(command.workers) as pool:
        shards = list(pool.map(lambda task: write_shard(*task[1:]), tasks))
    written: dict[str, list[WrittenShard]] = {split: [] for split in splits}
    for (split, _, _), shard in zip(tasks, shards, strict=True):
        written[split].append(shard)
    return written


def write_shard(path: Path, examples: Examples) -> WrittenShard:
    """Writes the examples of one shard."""
    writer = ShardWriter(path)
    for batch in examples.blocks():
        rows = schema.encode_rows(batch.images, batch.labels, batch.coarse_labels)
        writer.write_rows(tfrecord.frame_rows(rows))
    return writer.close()


def finish(
    folder: Path,
    written: Mapping[str, Sequence[WrittenShard]],
    layout: Layout,
    class_names: Sequence[tuple[str, ...]],
    command: CifarToTfrecord,
) -> Manifest:
    """Gives the shards their final names and returns the manifest."""
    hashes = [shard.sha256 for shards in written.values() for shard in shards]
    digest = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return Manifest(
        tool=data_tools.__version__,
        name=layout.name,
        kind=KIND,
        created_from={
            "digest": f"sha256:{digest}",
            "arguments": [f"--validation={command.validation}", f"--shards={command.shards}"],
        },
        image=ImageSpec(
            height=cifar.SIZE, width=cifar.SIZE, channels=cifar.CHANNELS, encoding="raw"
        ),
        label=None,
        classes=class_names[-1],
        coarse_classes=class_names[0] if len(class_names) > 1 else None,
        skipped=(),
        splits={
            split: finish_split(folder, layout.name, split, shards)
            for split, shards in written.items()
        },
    )
