"""The flags of each subcommand of `data_tools`: what each means, its default, what is refused.

They stand apart from the commands, so that `--help` needn't import NumPy and Pillow.
"""

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from data_tools import charsets
from data_tools.set_names import SET_NAME

SHAPE = re.compile(r"[1-9]\d{0,4}x[1-9]\d{0,4}x[13]")
FRAME = re.compile(r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}")
LENGTHS = re.compile(r"[1-9][0-9]{0,2}(-[1-9][0-9]{0,2})?")
ROW_NAMES = re.compile(r"[^{}]*\{(:0[1-9])?\}[^{}]*")
DEFAULT_SPLIT = "train=0.9,test=0.1"
_NOT_GIVEN = "\0"
"""Can't come from a command line."""


def check_positive(**flags: int | None) -> None:
    """Raises ValueError naming the first flag that is given and below 1."""
    for name, value in flags.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1")


def frame_of(text: str) -> tuple[int, int]:
    """Returns width and height, of a text that FRAME fits."""
    width, _, height = text.partition("x")
    return int(width), int(height)


def default_workers() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def named_charset(flag: str | None) -> str | None:
    """Returns the characters that --charset asks for, by name or by themselves.

    Raises:
        ValueError: it is no set of characters that labels can have.
    """
    if flag is None:
        return None
    characters = charsets.CHARSETS.get(flag, flag)
    if not 0 < len(characters) <= charsets.MAX_CHARSET:
        raise ValueError(f"--charset has {len(characters)} characters; 1 to 256 can be told")
    if not characters.isprintable():
        raise ValueError(f"--charset is {flag!r}; not all of it can be printed")
    if len(set(characters)) < len(characters):
        raise ValueError(f"--charset is {flag!r}; it names a character twice")
    return characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    """Downloads CIFAR's binary archive, checks it and unpacks it: OUT/data_batch_1.bin, ..."""

    name: tyro.conf.Positional[Literal["cifar10", "cifar100"]]
    """Which data set."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    url: str | None = None
    """A mirror of the same archive, by HTTPS."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MakeCaptcha:
    """Draws captchas: OUT/0.jpg, OUT/1.jpg, ... and OUT/labels.csv with lines like `0,NZPP`."""

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder to make."""
    count: int = 6000
    """Number of images."""
    seed: int = 0
    """Image i depends on this and i alone."""
    length: Annotated[str, tyro.conf.arg(metavar="N or N-M")] = "4"
    """Characters an image, or the fewest and the most."""
    charset: str = "upper"
    """What they are drawn from: digits, upper, lower, upper-digits, lower-digits, letters, alnum,
    or the characters themselves."""
    size: Annotated[str, tyro.conf.arg(metavar="WxH")] = "80x20"
    """Width and height of the images."""
    font: tuple[Path, ...] = ()
    """TrueType or OpenType files, one of which is chosen for each character; the font of the
    captcha library if not given."""
    dots: int = 30
    """Dots of noise an image, 0 for none."""
    curves: int = 1
    """Curves of noise an image, 0 for none."""
    workers: int = default_workers()
    """Processes; the files don't depend on it. Under mpirun the ranks take their place; several
    hosts need OUT on a file system that they share."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        check_positive(count=self.count, workers=self.workers)
        for flag, value in (("seed", self.seed), ("dots", self.dots), ("curves", self.curves)):
            if value < 0:
                raise ValueError(f"--{flag} is {value}; it must not be negative")
        if not LENGTHS.fullmatch(self.length) or not self.lengths():
            raise ValueError(f"--length is {self.length!r}; write it like 4, or 4-6 for 4 to 6")
        if not FRAME.fullmatch(self.size):
            raise ValueError(f"--size is {self.size!r}; write width and height like 80x20")
        if " " in self.characters():
            raise ValueError("--charset has a space; it can't be seen in an image")

    def lengths(self) -> range:
        """The lengths that labels can have."""
        shortest, _, longest = self.length.partition("-")
        return range(int(shortest), int(longest or shortest) + 1)

    def characters(self) -> str:
        """The characters of --charset."""
        characters = named_charset(self.charset)
        assert characters is not None
        return characters

    def frame(self) -> tuple[int, int]:
        """Width and height of --size."""
        return frame_of(self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoringFlags:
    """How encoded images are stored."""

    image_encoding: Literal["original", "raw"] = "original"
    """Keep the files' own bytes, or store the pixels, uint8 HWC."""
    transcode: bool = False
    """Take BMP, GIF (its first frame) and WEBP too, stored as PNG."""
    resize: Annotated[str | None, tyro.conf.arg(metavar="WxH")] = None
    """Scale every image to this width and height by Lanczos's filter, and store it as PNG."""
    pad: Annotated[str | None, tyro.conf.arg(metavar="WxH")] = None
    """Put every image in the middle of a white one of this width and height, stored as PNG."""

    def __post_init__(self) -> None:
        for flag, text in (("--resize", self.resize), ("--pad", self.pad)):
            if text is not None and not FRAME.fullmatch(text):
                raise ValueError(f"{flag} is {text!r}; write width and height like 80x20")
        if self.resize is not None and self.pad is not None:
            raise ValueError("--resize and --pad are both given; give one")

    def frame(self) -> tuple[int, int] | None:
        """Width and height of --resize or --pad, None without."""
        text = self.resize or self.pad
        return frame_of(text) if text is not None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFlags(StoringFlags):
    """What all conversions of image files share."""

    split: Annotated[
        str, tyro.conf.arg(help_behavior_hint=f"(default: {DEFAULT_SPLIT})")
    ] = _NOT_GIVEN  # fmt: skip
    """Splits and their shares. Equal images come into the same split, by their hash."""
    split_folders: Annotated[str | None, tyro.conf.arg(metavar="FOLDER=SPLIT,...")] = None
    """Sub-folders and the splits that their images come into, like `train=train,val=validation`,
    in place of --split."""
    separator: str = ","
    r"""Stands between the image and the label in the CSV, one character, or `\t` for a tab."""
    header: Literal["guess", "yes", "no"] = "guess"
    """Whether row 1 of the CSV is a header; guessed from its last cell: label, text, class, ..."""
    shards: int = 4
    """Files a split, at most."""
    skip_bad: bool = False
    """Leave out rows with a fault and list them in the manifest, rather than refuse them all."""
    name: str
    """First part of the shards' names."""
    overwrite: bool = False
    """Replace OUT if it exists, once the new one is whole."""
    workers: int = default_workers()
    """Processes, at most one a shard; the files don't depend on it. Under mpirun the ranks take
    their place; several hosts need all files on a file system that they share."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        check_positive(shards=self.shards, workers=self.workers)
        if not SET_NAME.fullmatch(self.name):
            raise ValueError(f"--name is {self.name!r}; it may hold letters, digits, ., - and _")
        StoringFlags.__post_init__(self)
        if self.split_folders is not None and self.split != _NOT_GIVEN:
            raise ValueError("--split and --split-folders are both given; give one")
        if self.split == _NOT_GIVEN:
            object.__setattr__(self, "split", DEFAULT_SPLIT)
        if len(self.delimiter()) != 1 or self.delimiter() in '"\r\n':
            raise ValueError(f"--separator is {self.separator!r}; it must be one character")
        if not self.separator.strip().isprintable():  # the manifest holds it
            raise ValueError(f"--separator is {self.separator!r}; not all of it can be printed")

    def delimiter(self) -> str:
        """What --separator stands for."""
        return "\t" if self.separator == r"\t" else self.separator


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptchaToTfrecord(ImageFlags):
    """Converts a folder of captcha images and their labels to sharded TFRecords."""

    images: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """Folder of JPEG and PNG files, or of sub-folders with such."""
    labels: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LABELS")]
    """CSV with a row `image,label` for each: `0,NZPP`, `0.jpg,NZPP` or `train/0.jpg,NZPP`, with a
    header or without; `-` where the labels are in the file names."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Data set folder to make."""
    row_names: str | None = None
    """LABELS has a label alone in each row: the name of the image of row i, like `{}.jpg`, or
    `{:05}.jpg` for 00007.jpg."""
    first_row: Literal[0, 1] = 0
    """With --row-names: i of the first row."""
    label_from_name: str | None = None
    """With LABELS `-`: a regular expression, looked for in each file name. The label is its group
    `label`, else its first group, else all that it matches."""
    charset: str | None = None
    """digits, upper, lower, upper-digits, lower-digits, letters, alnum, or the characters
    themselves; the smallest named one that holds all labels if not given."""
    case: Literal["keep", "upper", "lower"] = "keep"
    """Fold the labels to upper or lower case."""
    length: int | None = None
    """Characters that each label must have; that of most labels if not given."""
    variable_length: bool = False
    """Allow labels of any length."""
    zero_pad: bool = False
    """Fill labels, all of digits, with zeros on the left to --length or the length of most: a
    spreadsheet has dropped them."""
    name: str = "captcha"
    """First part of the shards' names."""

    def __post_init__(self) -> None:
        ImageFlags.__post_init__(self)  # super() doesn't work in a class with slots
        self._check_labels()
        self._check_charset()

    def _check_labels(self) -> None:
        from_names, has_file = self.label_from_name is not None, self.labels != Path("-")
        if from_names and has_file:
            raise ValueError("--label-from-name takes no file of labels; write - for LABELS")
        if not from_names and not has_file:
            raise ValueError("LABELS is -; say with --label-from-name where the labels are")
        of_file = (self.row_names, self.separator, self.header) != (None, ",", "guess")
        if from_names and of_file:
            raise ValueError("--label-from-name and flags of a file of labels are given; give one")
        if self.first_row and self.row_names is None:
            raise ValueError("--first-row needs --row-names")
        if self.row_names is not None and not ROW_NAMES.fullmatch(self.row_names):
            raise ValueError(f"--row-names is {self.row_names!r}; write it like {{}}.jpg")
        for flag, text in (
            ("--row-names", self.row_names), ("--label-from-name", self.label_from_name),
        ):  # fmt: skip
            if text is not None and not text.isprintable():  # the manifest holds it
                raise ValueError(f"{flag} is {text!r}; not all of it can be printed")
        try:
            self.pattern()
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"--label-from-name is {self.label_from_name!r}: {error}") from error

    def _check_charset(self) -> None:
        check_positive(length=self.length)
        if self.length is not None and self.variable_length:
            raise ValueError("--length and --variable-length are both given; give one")
        if self.zero_pad and self.variable_length:
            raise ValueError("--zero-pad and --variable-length are both given; give one")
        named_charset(self.charset)

    def pattern(self) -> re.Pattern[str] | None:
        """The expression of --label-from-name."""
        if self.label_from_name is None:
            return None
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of [[
            return re.compile(self.label_from_name)

    def characters(self) -> str | None:
        """The charset that was asked for, by name or by its characters."""
        return named_charset(self.charset)


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderToTfrecord(ImageFlags):
    """Converts images of classes, a folder for each class, to sharded TFRecords to train on."""

    src: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder of class folders: SRC/cat/1.png, SRC/dog/old/7.jpg; with --split-folders those lie in
    the folders of the splits, SRC/train/cat/1.png. Every file in them is taken for an image,
    whatever its name, but for hidden ones and Thumbs.db."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Data set folder to make."""
    labels: Path | None = None
    """CSV with a row `image,class` for each image that lies in SRC, in place of class folders."""
    image_encoding: Literal["original", "raw"] = "raw"
    """Store the pixels, uint8 HWC, which training reads fastest, or keep the files' own bytes."""
    name: str = "images"
    """First part of the shards' names."""

    def __post_init__(self) -> None:
        if self.split_folders is not None and self.labels is not None:
            raise ValueError("--labels and --split-folders are both given; give one")
        ImageFlags.__post_init__(self)


_LAST = Path("\0")
"""OUT when tyro gives all paths to SRC, as it does where flags follow them."""


def _part_src_and_out(command: "CifarToTfrecord | Reshard") -> None:
    """Takes OUT from the end of SRC if need be; ValueError when one of them is missing."""
    if command.out == _LAST:
        *src, out = command.src or [_LAST]
        object.__setattr__(command, "src", tuple(src))
        object.__setattr__(command, "out", out)
    if not command.src:
        raise ValueError("SRC and OUT are both needed")


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
    """Threads, at most one a shard; the files don't depend on it. Under mpirun the ranks take their
    place; several hosts need all files on a file system that they share."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        check_positive(shards=self.shards, workers=self.workers)
        if self.validation < 0:
            raise ValueError(f"--validation is {self.validation}; it must not be negative")
        _part_src_and_out(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SvhnToTfrecord:
    """Converts the cropped digits of SVHN (format 2) to sharded TFRecords."""

    src: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
    """Folder that holds train_32x32.mat, test_32x32.mat and extra_32x32.mat, or some of them; each
    becomes a split."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Data set folder to make."""
    shards: int = 4
    """Files a split, at most."""
    overwrite: bool = False
    """Replace OUT if it exists, once the new one is whole."""
    workers: int = default_workers()
    """Threads, at most one a shard; the files don't depend on it. Under mpirun rank 0 does it."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        check_positive(shards=self.shards, workers=self.workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verify:
    """Checks data sets' counts, sizes, hashes, checksums and offsets, or any TFRecord files."""

    paths: Annotated[
        tuple[Path, ...], tyro.conf.Positional,
        tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(required)"),
    ]  # fmt: skip
    """Data set folders, or TFRecord files, plain or compressed by GZIP or ZLIB."""
    deep: bool = False
    """Parse each record and, of a data set, decode its image and label too."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("PATH is needed: data set folders, or TFRecord files")


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """Shows what is in a data set: counts of classes and characters, duplicates, conflicts."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Data set folder."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Draws images of a data set with their labels below them, as one picture."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Data set folder."""
    image: Path
    """Picture to write, a file whose name ends in .png."""
    count: int = 64
    """Number of images, at most."""
    split: str | None = None
    """Which split; the first one if not given."""
    seed: int = 0
    """Which images are chosen; they are shown in the order of the records."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        check_positive(count=self.count)
        if self.seed < 0:
            raise ValueError(f"--seed is {self.seed}; it must not be negative")
        if self.image.suffix.lower() != ".png":
            raise ValueError(f"--image is {str(self.image)!r}; its name must end in .png")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reshard(StoringFlags):
    """Writes the records of a data set to other shards, or makes a data set of TFRecord files."""

    src: Annotated[
        tuple[Path, ...], tyro.conf.Positional,
        tyro.conf.arg(metavar="SRC [SRC ...]", help_behavior_hint="(required)"),
    ]  # fmt: skip
    """Data set folder, whose records keep their order and splits; or files of tf.train.Examples
    with --charset and --shape, or with --image-key and --label-key."""
    out: Annotated[
        Path, tyro.conf.Positional,
        tyro.conf.arg(metavar="OUT", help_behavior_hint="(required)"),
    ] = _LAST  # fmt: skip
    """Data set folder to make."""
    shards: int = 4
    """Files a split, at most."""
    charset: str | None = None
    """Of files in the course's layout, whose labels are one uint8 a character: its place in these
    characters, or in a named charset: digits, upper, lower, upper-digits, lower-digits, letters,
    alnum."""
    shape: str | None = None
    """HEIGHTxWIDTHxCHANNELS, such as 20x80x3, of files whose images are raw uint8."""
    image_key: str | None = None
    """The feature that holds the image: JPEG or PNG, or raw with --shape."""
    label_key: str | None = None
    """The feature that holds the label: an int64, the number of a class, or a UTF-8 text."""
    classes: Path | None = None
    """File with the names of the classes, a line each from that of class 0 on; text labels are then
    such names, and not captchas."""
    skip_bad: bool = False
    """Of files: leave out records with a fault and list them in the manifest, rather than refuse
    them all. Each image is decoded twice."""
    split: str | None = None
    """Of files, the splits and their shares, by the hash of the image: train=0.9,test=0.1 if not
    given. A data set keeps its own."""
    split_files: Annotated[str | None, tyro.conf.arg(metavar="NAME=SPLIT,...")] = None
    """Names of files, with * and ?, and the splits that their examples come into, like
    `*train*=train,*test*=test`, in place of --split."""
    name: str | None = None
    """First part of the shards' names; as it was, or `captcha` or `classes`, if not given."""
    overwrite: bool = False
    """Replace OUT if it exists, once the new one is whole."""
    json: bool = False
    """Print JSON."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        StoringFlags.__post_init__(self)
        check_positive(shards=self.shards)
        if self.name is not None and not SET_NAME.fullmatch(self.name):
            raise ValueError(f"--name is {self.name!r}; it may hold letters, digits, ., - and _")
        for flag, text in (
            ("--image-key", self.image_key), ("--label-key", self.label_key),
            ("--split-files", self.split_files),
        ):  # fmt: skip
            if text is not None and not text.isprintable():  # the manifest holds it
                raise ValueError(f"{flag} is {text!r}; not all of it can be printed")
            if text == "":
                raise ValueError(f"{flag} is empty")
        if self.classes is not None and self.charset is not None:
            raise ValueError("--classes and --charset are both given; give one")
        if self.split is not None and self.split_files is not None:
            raise ValueError("--split and --split-files are both given; give one")
        named_charset(self.charset)
        if self.shape is not None and not SHAPE.fullmatch(self.shape):
            raise ValueError(f"--shape is {self.shape!r}; write it like 20x80x3, of grey 20x80x1")
        _part_src_and_out(self)
