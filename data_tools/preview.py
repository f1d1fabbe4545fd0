"""`data_tools preview`: some images of a data set with their labels, as one picture."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_tools import images, schema, tfrecord
from data_tools import manifest as manifests
from data_tools.console import print_result
from data_tools.durable import write_atomically
from data_tools.errors import CONFIG, INTEGRITY, DataError, os_errors
from data_tools.flags import Preview
from data_tools.manifest import Split
from data_tools.sheet import draw_sheet, not_a_picture


def main(command: Preview) -> None:
    """Runs the command."""
    manifest = manifests.load(command.folder)
    name = next(iter(manifest.splits), "") if command.split is None else command.split
    split = manifest.split(name, command.folder)
    check_image(command)
    manifests.check_sizes(command.folder, split)
    offsets = read_offsets(command.folder, split)
    numbers = choose(split.examples, command.count, command.seed)
    if not numbers:
        fix = "choose another with --split"
        raise DataError(CONFIG, command.folder, f"no examples in split {name!r}", fix=fix)
    # Read twice: the labels tell how large the sheet is, then images come one at a time.
    records = functools.partial(read_numbered, command.folder, split, offsets, numbers)
    labels = [schema.image_and_text(record, manifest, where)[1] for where, record in records()]
    shown = (schema.decode_record(record, manifest, where)[0] for where, record in records())
    picture = images.encode_png(draw_sheet(labels, shown, manifest.image, "--count"))
    with os_errors(command.image):
        write_atomically(command.image, picture)
    print_result(
        [f"{command.image}: {len(labels)} of {split.examples} images of {name}"],
        {"image": str(command.image), "split": name, "records": numbers},
        as_json=command.json,
    )


def check_image(command: Preview) -> None:
    """Raises CONFIG where something that is no picture would be replaced."""
    path = command.image
    reason = not_a_picture(path)
    if path.resolve().is_relative_to(command.folder.resolve()):
        reason = "it would lie in the data set"
    if reason:
        raise DataError(CONFIG, path, reason, fix="choose another name with --image")


def choose(examples: int, count: int, seed: int) -> list[int]:
    """Returns the numbers of at most `count` examples, in order; a function of its arguments."""
    drawn = np.random.Philox(key=seed).random_raw(examples)
    return sorted(np.argsort(drawn, kind="stable")[:count].tolist())


def read_offsets(folder: Path, split: Split) -> npt.NDArray[np.int64]:
    """Returns the offsets of a split, int64 [examples + 1]; INTEGRITY unless they are so many."""
    path = folder / split.offsets
    offsets = manifests.load_offsets(path)
    if len(offsets) != split.examples + 1:
        raise DataError(
            INTEGRITY, path, f"{len(offsets) - 1} places, the manifest says {split.examples}",
            fix="convert the data set again",
        )  # fmt: skip
    return offsets


def read_numbered(
    folder: Path, split: Split, offsets: npt.NDArray[np.int64], numbers: Sequence[int]
) -> Iterator[tuple[str, bytes]]:
    """Yields where a record is, and the record, for numbers of a split's records in order.

    Raises:
        DataError: INTEGRITY when a record, or its place by the offsets, is wrong.
    """
    first_number = first_byte = 0
    for shard in split.shards:
        shard_path = folder / shard.file
        with os_errors(shard_path), shard_path.open("rb") as file:
            for number in numbers:
                if not 0 <= number - first_number < shard.examples:
                    continue
                start, stop = (int(place) - first_byte for place in offsets[number : number + 2])
                where = f"{shard_path}:record {number - first_number}:byte {start}"
                if not 0 <= start <= stop <= shard.bytes:
                    raise DataError(
                        INTEGRITY, where, "its place is outside the file",
                        fix="convert the data set again",
                    )  # fmt: skip
                file.seek(start)
                yield where, tfrecord.unframe(file.read(stop - start), 0, stop - start, where)
        first_number += shard.examples
        first_byte += shard.bytes
