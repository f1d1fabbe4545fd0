"""Small files in the binary layouts of CIFAR-10 and CIFAR-100, written byte by byte."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

CLASSES10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
COARSE100 = tuple(f"coarse{number}" for number in range(20))
FINE100 = tuple(f"fine_{number}" for number in range(100))


def picture(number: int) -> np.ndarray:
    """The pixels of image `number`, uint8 [32, 32, 3]."""
    return np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)


def record(labels: Sequence[int], image: np.ndarray) -> bytes:
    """A record: the label bytes, then all of red, all of green, all of blue, row by row."""
    return bytes(labels) + b"".join(image[:, :, channel].tobytes() for channel in range(3))


def binary(labels: Sequence[Sequence[int]], *, first: int = 0) -> bytes:
    """A file of records whose image i is picture(first + i)."""
    return b"".join(record(own, picture(number)) for number, own in enumerate(labels, start=first))


def write_cifar10(folder: Path, files: dict[str, Sequence[int]], *, names: bool = True) -> Path:
    """Writes files of CIFAR-10 by name, in this order, with pictures numbered through."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for name, labels in files.items():
        (folder / name).write_bytes(binary([(label,) for label in labels], first=first))
        first += len(labels)
    if names:
        (folder / "batches.meta.txt").write_text("\n".join(CLASSES10) + "\n\n")
    return folder


def write_cifar100(
    folder: Path, files: dict[str, Sequence[tuple[int, int]]], *, names: bool = True
) -> Path:
    """Writes files of CIFAR-100 by name, of (coarse, fine) labels."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for name, labels in files.items():
        (folder / name).write_bytes(binary(labels, first=first))
        first += len(labels)
    if names:
        (folder / "coarse_label_names.txt").write_text("\n".join(COARSE100) + "\n")
        (folder / "fine_label_names.txt").write_text("\n".join(FINE100) + "\n")
    return folder
