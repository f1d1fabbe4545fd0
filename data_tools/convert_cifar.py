"""`data_tools cifar-to-tfrecord`: the binary files of CIFAR-10 or -100 to a data set folder."""

from collections.abc import Sequence
from pathlib import Path

from data_tools import manifest as manifests
from data_tools.console import print_result
from data_tools.convert_arrays import Examples, finish_set, write_splits
from data_tools.errors import CONFIG, DataError
from data_tools.flags import CifarToTfrecord
from data_tools.manifest import ImageSpec
from data_tools.ranks import ALONE, Ranks
from data_tools.sources import cifar
from data_tools.sources.batch import Batch
from data_tools.sources.cifar import Layout
from data_tools.writer import atomic_folder, check_given_once, check_inputs_stay

TRAIN, VALIDATION, TEST = "train", "validation", "test"


def main(command: CifarToTfrecord, ranks: Ranks = ALONE) -> None:
    """Runs the command."""
    check_given_once(command.src)
    layout, files = cifar.find_files(command.src, command.dataset)
    check_inputs_stay(command.out, [("source", path) for path in files])
    names = cifar.read_class_names(files[0].parent, layout)
    splits = read_splits(files, layout, command.validation)
    with atomic_folder(command.out, overwrite=command.overwrite, rank=ranks.rank) as incomplete:
        written = write_splits(
            incomplete, splits, shards=command.shards, workers=command.workers, ranks=ranks
        )
        if ranks.rank:
            return
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
        [f"{command.out}: {manifests.describe(manifest, f'images of {layout.title}', splits)}"],
        manifests.facts(command.out, manifest), as_json=command.json,
    )  # fmt: skip


def read_splits(files: Sequence[Path], layout: Layout, validation: int) -> dict[str, Examples]:
    """Reads the files, by split: train, validation if asked for, and test.

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
    training = tuple(batches[TRAIN])
    held_out = {VALIDATION: Examples(training, range(cut, counts[TRAIN]))} if validation else {}
    return {
        TRAIN: Examples(training, range(cut)),
        **held_out,
        TEST: Examples(tuple(batches[TEST]), range(counts[TEST])),
    }
