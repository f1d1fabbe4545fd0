"""`data_tools make-captcha`: draws captchas with their labels, to learn and to measure with."""

import io
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from data_tools.durable import write_synced
from data_tools.flags import MakeCaptcha
from data_tools.workers import run_tasks
from data_tools.writer import atomic_folder

T = TypeVar("T")

DRAWN_SIZE = (240, 60)
"""The library's letters, noise and curve are made for this size; smaller, nobody can read them."""
SIZE = (80, 20)
JPEG_QUALITY = 95
IMAGES_A_TASK = 50


def main(command: MakeCaptcha) -> None:
    """Runs the command."""
    starts = range(0, command.count, IMAGES_A_TASK)
    with atomic_folder(command.out) as folder:
        tasks = [
            DrawTask(folder, start, min(start + IMAGES_A_TASK, command.count), command)
            for start in starts
        ]
        drawn = run_tasks(draw_images, tasks, workers=command.workers, title="drawing")
        labels = [label for some in drawn for label in some]
        lines = "".join(f"{index},{label}\n" for index, label in enumerate(labels))
        write_synced(folder / "labels.csv", lines.encode())
    print(f"{command.out}: {command.count} captchas of {SIZE[0]}x{SIZE[1]}, labels in labels.csv")


@dataclass(frozen=True, slots=True)
class DrawTask:
    """Images [start, stop) to draw into a folder."""

    folder: Path
    start: int
    stop: int
    command: MakeCaptcha


def draw_images(task: DrawTask) -> list[str]:
    """Draws and writes the images of a task and returns their labels."""
    labels = []
    for index in range(task.start, task.stop):
        label, jpeg = draw_captcha(index, seed=task.command.seed, length=task.command.length)
        write_synced(task.folder / f"{index}.jpg", jpeg)
        labels.append(label)
    return labels


def draw_captcha(index: int, *, seed: int, length: int) -> tuple[str, bytes]:
    """Returns the label and the JPEG of one image, 80x20 RGB."""
    from captcha import image as library
    from PIL import Image

    rng = random.Random(f"{seed}/{index}")
    # The library draws from the module `secrets`, which can't be seeded.
    library.secrets = SeededSecrets(rng)  # type: ignore[attr-defined, assignment]
    label = "".join(rng.choices(string.ascii_uppercase, k=length))
    drawn = library.ImageCaptcha(*DRAWN_SIZE).generate_image(label)
    buffer = io.BytesIO()
    drawn.resize(SIZE, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=JPEG_QUALITY)
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
