"""Contact sheets: images in rows, each with its label below."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data_tools import images
from data_tools.errors import CONFIG, DataError, os_errors
from data_tools.images import Pixels
from data_tools.manifest import ImageSpec

MIN_IMAGE_WIDTH = 96
"""Smaller images are magnified by a whole number until they are about as wide, in pixels."""
MARGIN = 4
FONT_SIZE = 14
_MAGIC_BYTES = 8


def not_a_picture(path: Path) -> str:
    """Says why a file must not be replaced by a sheet: it is something else; empty if it may be."""
    if not path.is_file():
        return ""
    with os_errors(path), path.open("rb") as file:
        start = file.read(_MAGIC_BYTES)
    return "" if images.encoding_of(start) == "png" else "it exists already and is no PNG"


def draw_sheet(
    labels: Sequence[str], shown: Iterable[Pixels], image: ImageSpec, where: object
) -> Pixels:
    """Draws images in rows, each with its label below.

    Args:
        labels: of the images.
        shown: uint8 [height, width, channels] of each, taken one at a time.
        image: their size.
        where: named when the sheet would be too large.

    Returns:
        uint8 [sheet height, sheet width, 3].

    Raises:
        DataError: CONFIG when the sheet would have more than 16 million pixels.
    """
    font = ImageFont.load_default(FONT_SIZE)
    labels = [_drawable(label) for label in labels]
    scale = max(1, round(MIN_IMAGE_WIDTH / image.width))
    width, height = image.width * scale, image.height * scale
    text_width = max(math.ceil(font.getlength(label)) for label in labels)
    cell_width = max(width, text_width) + 2 * MARGIN
    cell_height = height + 2 * FONT_SIZE
    columns = min(len(labels), max(1, round(math.sqrt(len(labels) * cell_height / cell_width))))
    rows = -(-len(labels) // columns)
    size = (columns * cell_width, rows * cell_height)
    if size[0] * size[1] > images.MAX_PIXELS:
        raise DataError(
            CONFIG, where, f"the picture would have {size[0]}x{size[1]} pixels",
            fix="ask for fewer images",
        )  # fmt: skip
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for index, (pixels, label) in enumerate(zip(shown, labels, strict=True)):
        left, top = index % columns * cell_width, index // columns * cell_height
        grey = pixels.shape[2] == 1
        picture = Image.fromarray(pixels[:, :, 0] if grey else pixels).convert("RGB")
        picture = picture.resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(picture, (left + (cell_width - width) // 2, top + MARGIN))
        middle = left + (cell_width - font.getlength(label)) / 2
        draw.text((middle, top + height + MARGIN + 2), label, "black", font)
    return np.asarray(sheet)


def _drawable(label: str) -> str:
    """The label with an escape in place of characters that the default font may lack."""
    return label.encode("latin-1", "backslashreplace").decode("latin-1")
