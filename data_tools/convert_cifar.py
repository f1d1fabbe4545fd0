"""`data_tools cifar-to-tfrecord`: the binary files of CIFAR-10 or -100 to a data set folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_tools import manifest as manifests
from data_tools import ranks
from data_tools.console import print_result
from data_tools.convert_arrays import (
    Examples,
    by_split,
    cut,
    finish_set,
    write_shard,
    write_splits,
)
from data_tools.errors import CONFIG, DataError
from data_tools.flags import CifarToTfrecord
from data_tools.manifest import ImageSpec
from data_tools.sources import cifar
from data_tools.sources.batch import Batch
from data_tools.sources.cifar import Layout
from data_tools.workers import run_tasks
from data_tools.writer import WrittenShard, atomic_folder, check_given_once, check_inputs_stay

TRAIN, VALIDATION, TEST = "train", "validation", "test"


def main(command: CifarToTfrecord) -> None:
    """Runs the command."""
    check_inputs_stay(command.out, [("source", path) for path in command.src])
    check_given_once(command.src)
    layout, files = cifar.find_files(command.src, command.dataset)
    names = cifar.read_class_names(files[0].parent, layout)
    splits = read_splits(files, layout, command.validation)
    with atomic_folder(command.out, overwrite=command.overwrite) as incomplete:
        if ranks.leader():
            written = write_on_ranks(incomplete, splits, files, layout, command.shards)
        else:
            written = write_splits(
                incomplete, splits, shards=command.shards, workers=command.workers
            )
        manifest = finish_set(
            incomplete, written,
            name=layout.name,
            image=ImageSpec(
                height=cifar.SIZE, width=cifar.SIZE, channels=cifar.CHANNELS, encoding="raw"
            ),
            arguments=[f"--validation={command.validation}", f"--shards={command.shards}"],
            classes=names[-1],
            coarse_classes=names[0] if len(names) > 1 else None,
        )  # fmt: skip
    print_result(
        [f"{command.out}: {manifests.describe(manifest, f'images of {layout.title}')}"],
        manifests.facts(command.out, manifest), as_json=command.json,
    )  # fmt: skip


def is_test(path: Path) -> bool:
    """Tells whether a file is of the test split, by its name."""
    return path.name.startswith(cifar.TEST_PREFIX)


def read_splits(files: Sequence[Path], layout: Layout, validation: int) -> dict[str, Examples]:
    """Reads the files, by split: train, validation and test, those that have any example.

    Raises:
        DataError: INPUT when a file is damaged, CONFIG when validation takes all training images.
    """
    batches: dict[str, list[Batch]] = {TRAIN: [], TEST: []}
    for path in files:
        batches[TEST if is_test(path) else TRAIN].append(cifar.read_batch(path, layout))
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


@dataclass(frozen=True, slots=True)
class Part:
    """What another rank needs to know of a shard: it opens the files itself.

    Attributes:
        path: of the shard.
        files: of its split.
        layout: the name of their layout.
        rows: which of their examples.
    """

    path: Path
    files: tuple[Path, ...]
    layout: str
    rows: range


def write_on_ranks(
    folder: Path, splits: Mapping[str, Examples], files: Sequence[Path], layout: Layout, shards: int
) -> dict[str, list[WrittenShard]]:
    """Writes the shards of all splits, as `write_splits` does, on the ranks."""
    tasks = cut(folder, splits, shards)
    parts = [
        Part(path, tuple(file for file in files if is_test(file) == (split == TEST)),
             layout.name, examples.rows)
        for split, path, examples in tasks
    ]  # fmt: skip
    return by_split(tasks, run_tasks(write_part, parts, workers=1, title="converting"))


def write_part(part: Part) -> WrittenShard:
    """Writes the shard of a part."""
    layout = next(layout for layout in cifar.LAYOUTS if layout.name == part.layout)
    files = tuple(cifar.read_batch(path, layout) for path in part.files)
    return write_shard(part.path, Examples(files, part.rows))
