"""`data_tools preview`: some images of a data set with their labels, as one picture."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from data_tools import images, schema, tfrecord
from data_tools import manifest as manifests
from data_tools.console import print_result
from data_tools.durable import write_atomically
from data_tools.errors import CONFIG, INTEGRITY, DataError, os_errors
from data_tools.flags import Preview
from data_tools.manifest import Manifest, Split

Pixels = images.Pixels

MIN_IMAGE_WIDTH = 96
"""Smaller images are magnified by a whole number until they are about as wide, in pixels."""
MARGIN = 4
FONT_SIZE = 14
_MAGIC_BYTES = 8


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
    picture = images.encode_png(draw_sheet(labels, shown, manifest))
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
    reason = ""
    if path.resolve().is_relative_to(command.folder.resolve()):
        reason = "it would lie in the data set"
    elif path.is_file():
        with os_errors(path), path.open("rb") as file:
            start = file.read(_MAGIC_BYTES)
        if images.encoding_of(start) != "png":
            reason = "it exists already and is no PNG"
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


def draw_sheet(labels: Sequence[str], shown: Iterable[Pixels], manifest: Manifest) -> Pixels:
    """Draws images in rows, each with its label below.

    Args:
        labels: of the images.
        shown: uint8 [height, width, channels] of each, taken one at a time.
        manifest: of their data set.

    Returns:
        uint8 [sheet height, sheet width, 3].

    Raises:
        DataError: CONFIG when the sheet would have more than 16 million pixels.
    """
    font = ImageFont.load_default(FONT_SIZE)
    labels = [_drawable(label) for label in labels]
    scale = max(1, round(MIN_IMAGE_WIDTH / manifest.image.width))
    width, height = manifest.image.width * scale, manifest.image.height * scale
    text_width = max(math.ceil(font.getlength(label)) for label in labels)
    cell_width = max(width, text_width) + 2 * MARGIN
    cell_height = height + 2 * FONT_SIZE
    columns = min(len(labels), max(1, round(math.sqrt(len(labels) * cell_height / cell_width))))
    rows = -(-len(labels) // columns)
    size = (columns * cell_width, rows * cell_height)
    if size[0] * size[1] > images.MAX_PIXELS:
        raise DataError(
            CONFIG, "--count", f"the picture would have {size[0]}x{size[1]} pixels",
            fix="ask for fewer images",
        )  # fmt: skip
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for index, (pixels, label) in enumerate(zip(shown, labels, strict=True)):
        left, top = index % columns * cell_width, index // columns * cell_height
        grey = pixels.shape[2] == 1
        image = Image.fromarray(pixels[:, :, 0] if grey else pixels).convert("RGB")
        image = image.resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(image, (left + (cell_width - width) // 2, top + MARGIN))
        middle = left + (cell_width - font.getlength(label)) / 2
        draw.text((middle, top + height + MARGIN + 2), label, "black", font)
    return np.asarray(sheet)


def _drawable(label: str) -> str:
    """The label with an escape in place of characters that the default font may lack."""
    return label.encode("latin-1", "backslashreplace").decode("latin-1")
