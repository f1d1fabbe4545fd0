"""Small captchas for the unit tests of data_tools, and what is in a data set made of them."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from data_tools import manifest, tfrecord

DIGITS, UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LOWER = UPPER.lower()
LABEL_FIX = "mend the label, or see --charset, --case, --length and --variable-length"
SKIP_FIX = ", or pass --skip-bad to leave them out"
ROWS_FIX = f"mend them; {LABEL_FIX}{SKIP_FIX}"
CONVERT = (sys.executable, "-m", "data_tools", "captcha-to-tfrecord")
MISSING_FIX = f"add the image or take out the row{SKIP_FIX}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a command that ran in this process left."""

    rc: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The last line of standard error."""
        return self.stderr.splitlines()[-1] if self.stderr else ""


def draw(seed: int, *, width: int = 24, height: int = 12) -> Image.Image:
    """A small colored picture that differs by seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (3, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def write_captchas(
    folder: Path, rows: Mapping[str, str] | Iterable[str], *, labels: Path | None = None
) -> Path:
    """Writes images and the CSV of their labels.

    Args:
        folder: where the images go; made here.
        rows: file name to label, or only labels, for 0.jpg, 1.jpg and so on with ids in the CSV.
        labels: the CSV; labels.csv beside the folder by default.

    Returns:
        The path of the CSV.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(rows, Mapping):
        rows = {str(index): label for index, label in enumerate(rows)}
    for index, name in enumerate(rows):
        path = folder / (name if "." in name else name + ".jpg")
        draw(index).save(path, "PNG" if path.suffix.lower() == ".png" else "JPEG", quality=90)
    csv = labels or folder.parent / "labels.csv"
    csv.write_text("".join(f"{name},{label}\n" for name, label in rows.items()), newline="")
    return csv


def read_set(out: Path) -> dict[str, list[dict[str, bytes]]]:
    """The features of every record by split, in the order of the shards."""
    return {
        name: [
            {key: values[0] for key, values in tfrecord.decode_example(record).items()}
            for shard in split.shards
            for _, record in tfrecord.read_records(out / shard.file)
        ]
        for name, split in manifest.load(out).splits.items()
    }


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file of a folder, by its path in there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def texts(out: Path) -> list[str]:
    """The labels of a set, sorted."""
    return sorted(row["text"].decode() for rows in read_set(out).values() for row in rows)


def csv_gives(convert: Callable[..., Ran], folder: Path, data: bytes) -> Ran:
    (folder.parent / "labels.csv").write_bytes(data)
    return convert("--split", "train=1")


def draw_all(folder: Path, names: list[str]) -> None:
    """Draws an image for each path, each another one."""
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        draw(index).save(folder / name, "PNG")


def found(out: Path, folder: Path) -> dict[str, str]:
    """The label in the set by the path of the image, which the bytes of a PNG tell."""
    names = {
        path.read_bytes(): str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    rows = [row for rows in read_set(out).values() for row in rows]
    return {names[row["image"]]: row["text"].decode() for row in rows}


def splits(out: Path) -> dict[str, list[str]]:
    """The labels of a set by split, in the order of the records."""
    return {name: [row["text"].decode() for row in rows] for name, rows in read_set(out).items()}
