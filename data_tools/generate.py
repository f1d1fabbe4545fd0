"""`data_tools make-captcha`: draws captchas with their labels, to learn and to measure with."""

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from data_tools.console import print_result
from data_tools.durable import write_synced
from data_tools.errors import CONFIG, DataError
from data_tools.flags import MakeCaptcha
from data_tools.ranks import ALONE, Ranks
from data_tools.workers import run_tasks
from data_tools.writer import atomic_folder

if TYPE_CHECKING:
    from captcha.image import ImageCaptcha
    from PIL.ImageFont import FreeTypeFont

T = TypeVar("T")

DRAWN_HEIGHT = 60
"""The library's letters, noise and curve are made for this height; smaller, nobody can read them.
So images are drawn so high, and then scaled to their size."""
MAX_PIXELS = 16_000_000
JPEG_QUALITY = 95
IMAGES_A_TASK = 50
_NO_CHARACTER = "\U0010ffff"
"""No font has it: what is drawn in its place is what is drawn for all that a font lacks."""


def main(command: MakeCaptcha, ranks: Ranks = ALONE) -> None:
    """Runs the command."""
    check_size(command)
    check_fonts(command)
    starts = range(0, command.count, IMAGES_A_TASK)
    with atomic_folder(command.out, rank=ranks.rank) as folder:
        tasks = [
            DrawTask(folder, start, min(start + IMAGES_A_TASK, command.count), command)
            for start in starts
        ]
        workers = command.workers if ranks.size == 1 else 1
        drawn = ranks.share(
            tasks, lambda own: run_tasks(draw_images, own, workers=workers, title="drawing"),
            plan=len(tasks), to_json=lambda labels: labels, from_json=lambda labels: labels,
        )  # fmt: skip
        if ranks.rank:
            return
        labels = [label for some in drawn for label in some]
        rows = io.StringIO(newline="")
        csv.writer(rows, lineterminator="\n").writerows(enumerate(labels))
        write_synced(folder / "labels.csv", rows.getvalue().encode())
    print_result(
        [f"{command.out}: {command.count} captchas of {command.size}, labels in labels.csv"],
        {"folder": str(command.out), "labels": "labels.csv", "images": command.count},
        as_json=command.json,
    )


def drawn_size(command: MakeCaptcha) -> tuple[int, int]:
    """Width and height in which images are drawn."""
    width, height = command.frame()
    return max(1, round(width * DRAWN_HEIGHT / height)), DRAWN_HEIGHT


def check_size(command: MakeCaptcha) -> None:
    """Raises CONFIG when an image has more pixels than a conversion takes, or would be drawn so."""
    for width, height in (command.frame(), drawn_size(command)):
        if width * height > MAX_PIXELS:
            reason = f"{command.size} is too large to draw"
            raise DataError(CONFIG, "--size", reason, fix="choose a smaller one")


def check_fonts(command: MakeCaptcha) -> None:
    """Raises CONFIG when a font can't be read or lacks a character, which would be drawn wrong."""
    for file in command.font or (None,):
        try:
            font = image_captcha(command, [str(file)] if file else None).truefonts[0]
        except OSError as error:
            raise DataError(
                CONFIG, "--font", file, error.strerror or str(error),
                fix="pass a TrueType or OpenType file",
            ) from error  # fmt: skip
        lacking = "".join(c for c in command.characters() if not _can_draw(font, c))
        if lacking:
            reason = f"the font {file or 'of the captcha library'} can't draw {lacking!r}"
            fix = "leave them out, or pass a --font that can"
            raise DataError(CONFIG, "--charset", reason, fix=fix)


def _can_draw(font: "FreeTypeFont", character: str) -> bool:
    mask, missing = font.getmask(character), font.getmask(_NO_CHARACTER)
    return mask.getbbox() is not None and bytes(mask) != bytes(missing)


def image_captcha(command: MakeCaptcha, fonts: list[str] | None) -> "ImageCaptcha":
    """The library's drawer, of fonts by their files, or its own font."""
    from captcha import image as library

    return library.ImageCaptcha(*drawn_size(command), fonts=fonts)


@dataclass(frozen=True, slots=True)
class DrawTask:
    """Images [start, stop) to draw into a folder."""

    folder: Path
    start: int
    stop: int
    command: MakeCaptcha


def draw_images(task: DrawTask) -> list[str]:
    """Draws and writes the images of a task and returns their labels."""
    drawer = image_captcha(task.command, list(map(str, task.command.font)))
    labels = []
    for index in range(task.start, task.stop):
        label, jpeg = draw_captcha(index, drawer, task.command)
        write_synced(task.folder / f"{index}.jpg", jpeg)
        labels.append(label)
    return labels


def draw_captcha(index: int, drawer: "ImageCaptcha", command: MakeCaptcha) -> tuple[str, bytes]:
    """Returns the label and the JPEG of one image, RGB; a function of index, seed and flags.

    It draws as ImageCaptcha.generate_image does, which has no say in the noise.
    """
    from captcha import image as library
    from PIL import Image, ImageFilter

    rng = random.Random(f"{command.seed}/{index}")
    # The library draws from the module `secrets`, which can't be seeded.
    secrets = SeededSecrets(rng)
    library.secrets = secrets  # type: ignore[attr-defined, assignment]
    lengths = command.lengths()
    length = rng.choice(lengths) if len(lengths) > 1 else lengths[0]
    label = "".join(rng.choices(command.characters(), k=length))
    paper = library.random_color(238, 255)
    ink = library.random_color(10, 200, secrets.randbelow(36) + 220)
    drawn = drawer.create_captcha_image(label, ink, paper)
    drawer.create_noise_dots(drawn, ink, number=command.dots)
    for _ in range(command.curves):
        drawer.create_noise_curve(drawn, ink)
    buffer = io.BytesIO()
    scaled = drawn.filter(ImageFilter.SMOOTH).resize(command.frame(), Image.Resampling.LANCZOS)
    scaled.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return label, buffer.getvalue()


class SeededSecrets:
    """The three functions of `secrets` that the captcha library calls, repeatable."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.randbits = rng.getrandbits

    def randbelow(self, bound: int) -> int:
        """A whole number from 0 to bound - 1."""
        return int(self._rng.random() * bound)

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.randbelow(len(items))]
