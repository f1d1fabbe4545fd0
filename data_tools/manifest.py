"""The manifest of a data set folder: what the shards hold, and the sizes and hashes to trust.

TensorFlow's reader takes a shard cut inside a record header for a shorter one, so the counts, sizes
and SHA-256 written here are what tells a whole data set from a damaged one.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import CONFIG, INPUT, INTEGRITY, DataError, from_os_error, os_errors
from data_tools.set_names import SET_NAME, SPLIT_NAME

FORMAT = "hvd-train/1"
FILE_NAME = "manifest.json"
ENCODINGS = ("raw", "jpeg", "png", "mixed")
CASES = ("keep", "upper", "lower")
KINDS = {"captcha": (True, False), "classes": (False, True)}
"""Whether a set of that kind has labels of characters, and classes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSpec:
    """Every image of the set decodes to uint8 [height, width, channels].

    `encoding` is how a record holds it: "raw" (the HWC bytes), "jpeg", "png", or "mixed" (each
    image JPEG or PNG, told apart by its first bytes).
    """

    height: int
    width: int
    channels: int
    encoding: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelSpec:
    """Labels are strings over `charset`; label value i stands for charset[i].

    `case` is what conversion did to the letters: "keep", "upper" or "lower".
    """

    charset: str
    min_length: int
    max_length: int
    case: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One TFRecord file: its name, number of records, size in bytes and SHA-256."""

    file: str
    examples: int
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The shards of a split in order.

    `offsets` names a .npy file, int64 [examples + 1]: record i of the split is the framed bytes
    offsets[i] to offsets[i + 1] of its shards read one after the other.
    """

    examples: int
    offsets: str
    shards: tuple[Shard, ...]

    @property
    def bytes(self) -> int:
        """The size of all shards together, in bytes."""
        return sum(shard.bytes for shard in self.shards)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The whole of manifest.json.

    `created_from` has the flags that decide what the set holds, and a digest: SHA-256 over images
    and labels in order, of CIFAR and SVHN over the SHA-256 of the shards.

    A set of captchas has `label`, a set of classes has their names in `classes`, and in
    `coarse_classes` those of the superclasses, if it has such.
    """

    tool: str
    name: str
    kind: str
    created_from: dict[str, Any]
    image: ImageSpec
    label: LabelSpec | None
    classes: tuple[str, ...] | None
    skipped: tuple[str, ...]
    splits: dict[str, Split]
    coarse_classes: tuple[str, ...] | None = None

    def split(self, name: str, folder: Path) -> Split:
        """Returns a split, or says which there are."""
        if name not in self.splits:
            there = ", ".join(self.splits)
            raise DataError(CONFIG, folder, f"no split {name!r}", fix=f"the splits are {there}")
        return self.splits[name]


def dump(manifest: Manifest) -> bytes:
    """The bytes of manifest.json; the same for equal manifests."""
    fields = {"format": FORMAT, **dataclasses.asdict(manifest)}
    if manifest.coarse_classes is None:
        del fields["coarse_classes"]
    return (json.dumps(fields, indent=1, ensure_ascii=False) + "\n").encode()


def load(folder: Path) -> Manifest:
    """Reads and checks manifest.json.

    Raises:
        DataError: INPUT when there is none, INTEGRITY when it isn't one of ours or is damaged.
    """
    path = folder / FILE_NAME
    if not folder.exists():
        raise DataError(INPUT, folder, "no such folder", fix="check the path")
    if not path.is_file():
        raise DataError(
            INPUT, folder, f"no {FILE_NAME}, so this is not a finished data set",
            fix="convert it again with data_tools",
        )  # fmt: skip
    with os_errors(path):
        data = path.read_bytes()
    try:
        return parse(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            INTEGRITY, path, f"not a manifest of format {FORMAT} ({error})",
            fix="convert the data set again",
        ) from error  # fmt: skip


def parse(data: bytes) -> Manifest:
    """The manifest in the bytes of a manifest.json; ValueError, KeyError or TypeError if broken."""
    fields = json.loads(data)
    if fields.pop("format", None) != FORMAT:
        raise ValueError(f"format is not {FORMAT}")
    fields["image"] = ImageSpec(**fields["image"])
    fields["label"] = LabelSpec(**fields["label"]) if fields["label"] else None
    for names in ("classes", "coarse_classes", "skipped"):
        if fields.get(names) is not None:
            if not isinstance(fields[names], list):
                raise TypeError(f"{names} is not a list")
            fields[names] = tuple(fields[names])
    fields["splits"] = {name: _parse_split(split) for name, split in fields["splits"].items()}
    manifest = Manifest(**fields)
    _check_names(manifest)
    _check_types(manifest)
    return manifest


def _parse_split(fields: dict[str, Any]) -> Split:
    shards = tuple(Shard(**shard) for shard in fields["shards"])
    split = Split(**{**fields, "shards": shards})
    for name in (split.offsets, *(shard.file for shard in shards)):
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not the name of a file in the folder")
    if split.examples != sum(shard.examples for shard in shards):
        raise ValueError(f"{split.examples} examples are not the sum of the shards'")
    return split


def _check_names(manifest: Manifest) -> None:
    """Raises ValueError where files named by the set and its splits would lie in another folder."""
    if not manifest.splits:
        raise ValueError("no splits")
    if not SET_NAME.fullmatch(manifest.name):
        raise ValueError(f"{manifest.name!r} is not the name of a data set")
    for name in manifest.splits:
        if not SPLIT_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a split")


def _check_types(manifest: Manifest) -> None:
    """Raises TypeError or ValueError unless every number is a whole one >= 0, every text a text."""
    image, label, origin = manifest.image, manifest.label, manifest.created_from
    if not (isinstance(origin, dict) and isinstance(origin.get("arguments", []), list)):
        raise TypeError("created_from is not a digest and arguments")
    numbers = [image.height, image.width, image.channels]
    texts = [manifest.tool, manifest.name, manifest.kind, image.encoding]
    texts += [*(manifest.classes or ()), *(manifest.coarse_classes or ()), *manifest.skipped]
    texts += [origin.get("digest", ""), *origin.get("arguments", [])]
    if label is not None:
        numbers += [label.min_length, label.max_length]
        texts += [label.charset, label.case]
    for split in manifest.splits.values():
        numbers += [split.examples, *(n for s in split.shards for n in (s.examples, s.bytes))]
        texts += [text for shard in split.shards for text in (shard.file, shard.sha256)]
    if image.encoding not in ENCODINGS:
        raise ValueError(f"unknown encoding {image.encoding!r}")
    if label is not None and label.case not in CASES:
        raise ValueError(f"unknown case {label.case!r}")
    if (label is not None, manifest.classes is not None) != KINDS.get(manifest.kind):
        raise ValueError(f"kind {manifest.kind!r} doesn't suit the labels")
    if not all(size for size in numbers[:3]):
        raise ValueError("an image without pixels")
    for number in numbers:
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a whole number of at least 0")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a text")


def facts(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Returns what a command that has made a data set tells of it, in plain values."""
    return {
        "folder": str(folder),
        "name": manifest.name,
        "kind": manifest.kind,
        "splits": {name: split.examples for name, split in manifest.splits.items()},
        "skipped": len(manifest.skipped),
    }


def describe(manifest: Manifest, what: str, splits: Iterable[str]) -> str:
    """Returns, say, "60 captchas: train 60, test 0 (left out)".

    Args:
        manifest: of the data set.
        what: the examples are.
        splits: that were asked for; those without any example aren't in the manifest.
    """
    counts = {name: split.examples for name, split in manifest.splits.items()}
    listed = ", ".join(
        f"{name} {counts[name]}" if name in counts else f"{name} 0 (left out)" for name in splits
    )
    return f"{sum(counts.values())} {what}: {listed}"


def digest(folder: Path) -> str:
    """SHA-256 of manifest.json, which stands for the whole data set."""
    return hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()


def check_sizes(folder: Path, split: Split) -> None:
    """Checks that each shard is there and has its size; costs one stat a shard.

    Raises:
        DataError: INTEGRITY with the first shard that is missing, cut or grown.
    """
    for shard in split.shards:
        check_size(folder, shard)


def check_size(folder: Path, shard: Shard) -> None:
    """Checks that one shard is there and has its size, as `check_sizes` does."""
    path = folder / shard.file
    if not path.is_file():
        raise DataError(INTEGRITY, path, "the shard is missing", fix="convert the data set again")
    size = path.stat().st_size
    if size != shard.bytes:
        raise DataError(
            INTEGRITY, path, f"{size} bytes, the manifest says {shard.bytes}",
            fix="convert the data set again",
        )  # fmt: skip


def load_offsets(path: Path) -> np.ndarray:
    """Reads the offsets of a split, int64 [examples + 1]; never unpickles.

    Raises:
        DataError: INTEGRITY when it isn't a whole .npy file of that kind; INPUT when it may not be
            read.
    """
    try:
        # Mapped first, so that a header that lies about the length takes no memory.
        offsets = np.array(np.lib.format.open_memmap(path, mode="r"))
        if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets):
            raise ValueError("not a row of int64")
    except PermissionError as error:
        raise from_os_error(error, path) from error
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            INTEGRITY, path, "not the offsets of a split",
            fix="convert the data set again",
        ) from error  # fmt: skip
    return offsets


def check_hash(folder: Path, shard: Shard) -> None:
    """Reads a shard and compares its SHA-256.

    Raises:
        DataError: INTEGRITY when it differs.
    """
    path = folder / shard.file
    with os_errors(path), path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != shard.sha256:
        raise DataError(
            INTEGRITY, path, f"SHA-256 {actual[:12]}..., the manifest says {shard.sha256[:12]}...",
            fix="run data_tools verify to find the record, then convert the data set again",
        )  # fmt: skip
