"""The flags of each subcommand of `data_tools`: what each means, its default, what is refused.

They stand apart from the commands, so that `--help` needn't import NumPy and Pillow.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from data_tools import charsets

SET_NAME = re.compile(r"\w[\w.-]*")


def default_workers() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """Downloads CIFAR's binary archive, checks it and unpacks it: OUT/data_batch_1.bin, ..."""

    name: tyro.conf.Positional[Literal["cifar10", "cifar100"]]
    """Which data set."""
    out: tyro.conf.Positional[Path]
    """Folder to make."""
    url: str | None = None
    """A mirror of the same archive, by HTTPS."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeCaptcha:
    """Draws captchas: OUT/0.jpg, OUT/1.jpg, ... and OUT/labels.csv with lines like `0,NZPP`."""

    out: tyro.conf.Positional[Path]
    """Folder to make."""
    count: int = 6000
    """Number of images."""
    seed: int = 0
    """Image i depends on this and i alone."""
    length: int = 4
    """Letters an image, A to Z."""
    workers: int = default_workers()
    """Processes; the files don't depend on it."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("--count", self.count), ("--length", self.length), ("--workers", self.workers)
        ):  # fmt: skip
            if value < 1:
                raise ValueError(f"{flag} is {value}; it must be at least 1")
        if self.seed < 0:
            raise ValueError(f"--seed is {self.seed}; it must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptchaToTfrecord:
    """Converts a folder of captcha images and the CSV of their labels to sharded TFRecords."""

    images: tyro.conf.Positional[Path]
    """Folder of JPEG and PNG files."""
    labels: tyro.conf.Positional[Path]
    """CSV with a row `image,label` for each: `0,NZPP` or `0.jpg,NZPP`."""
    out: tyro.conf.Positional[Path]
    """Data set folder to make."""
    split: str = "train=0.9,test=0.1"
    """Splits and their shares. Equal images come into the same split, by the hash of the file."""
    shards: int = 4
    """Files a split, at most."""
    charset: str | None = None
    """digits, upper, lower, upper-digits, lower-digits, letters, alnum, or the characters
    themselves; the smallest named one that holds all labels if not given."""
    case: Literal["keep", "upper", "lower"] = "keep"
    """Fold the labels to upper or lower case."""
    length: int | None = None
    """Characters that each label must have; that of most labels if not given."""
    variable_length: bool = False
    """Allow labels of any length."""
    image_encoding: Literal["original", "raw"] = "original"
    """Keep the files' own bytes, or store the pixels, uint8 HWC."""
    skip_bad: bool = False
    """Leave out rows with a fault and list them in the manifest, rather than refuse them all."""
    name: str = "captcha"
    """First part of the shards' names."""
    overwrite: bool = False
    """Replace OUT if it exists, once the new one is whole."""
    workers: int = default_workers()
    """Processes, at most one a shard; the files don't depend on it."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("--shards", self.shards), ("--workers", self.workers), ("--length", self.length)
        ):  # fmt: skip
            if value is not None and value < 1:
                raise ValueError(f"{flag} is {value}; it must be at least 1")
        if self.length is not None and self.variable_length:
            raise ValueError("--length and --variable-length are both given; give one")
        if not SET_NAME.fullmatch(self.name):
            raise ValueError(f"--name is {self.name!r}; it may hold letters, digits, ., - and _")
        characters = self.characters()
        if characters is not None and not 0 < len(characters) <= charsets.MAX_CHARSET:
            raise ValueError(f"--charset has {len(characters)} characters; 1 to 256 can be told")
        if characters is not None and not characters.isprintable():
            raise ValueError(f"--charset is {self.charset!r}; not all of it can be printed")
        if characters is not None and len(set(characters)) < len(characters):
            raise ValueError(f"--charset is {self.charset!r}; it names a character twice")

    def characters(self) -> str | None:
        """The charset that was asked for, by name or by its characters."""
        return None if self.charset is None else charsets.CHARSETS.get(self.charset, self.charset)


_LAST = Path("\0")
"""OUT when tyro gives all paths to SRC, as it does where flags follow them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CifarToTfrecord:
    """Converts the binary files of CIFAR-10 or CIFAR-100 to sharded TFRecords."""

    src: Annotated[
        tuple[Path, ...], tyro.conf.Positional,
        tyro.conf.arg(metavar="SRC [SRC ...]", help_behavior_hint="(required)"),
    ]  # fmt: skip
    """The folder that holds data_batch_*.bin and test_batch.bin (of CIFAR-100 train.bin and
    test.bin), or such files; a name that begins with `test` is of the test split."""
    out: Annotated[
        Path, tyro.conf.Positional,
        tyro.conf.arg(metavar="OUT", help_behavior_hint="(required)"),
    ] = _LAST  # fmt: skip
    """Data set folder to make."""
    dataset: Literal["cifar10", "cifar100"] | None = None
    """The files' layout; told by their names and sizes if not given."""
    validation: int = 0
    """Make the last of the training images, so many, a split `validation`."""
    shards: int = 4
    """Files a split, at most."""
    overwrite: bool = False
    """Replace OUT if it exists, once the new one is whole."""
    workers: int = default_workers()
    """Threads, at most one a shard; the files don't depend on it."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        for flag, value in (("--shards", self.shards), ("--workers", self.workers)):
            if value < 1:
                raise ValueError(f"{flag} is {value}; it must be at least 1")
        if self.validation < 0:
            raise ValueError(f"--validation is {self.validation}; it must not be negative")
        if self.out == _LAST:
            *src, out = self.src or [_LAST]
            object.__setattr__(self, "src", tuple(src))
            object.__setattr__(self, "out", out)
        if not self.src:
            raise ValueError("SRC and OUT are both needed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify:
    """Checks counts, sizes, hashes, every record's checksums and content, and the offsets."""

    folder: tyro.conf.Positional[Path]
    """Data set folder."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """Shows the splits of a data set, its images and how often each class or character occurs."""

    folder: tyro.conf.Positional[Path]
    """Data set folder."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""
