"""From rows of image and label to the shards of splits: what all folders of image files share.

Each image is read, checked and decoded once. What a label is and how it becomes a record is the
command's own.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

import data_tools
from data_tools import images
from data_tools.errors import CONFIG, INPUT, DataError, Fault, Kind
from data_tools.flags import ImageFlags, StoringFlags
from data_tools.manifest import ImageSpec, LabelSpec, Manifest
from data_tools.ranks import Ranks
from data_tools.set_names import SPLIT_NAME
from data_tools.sources.rows import Rows
from data_tools.workers import run_tasks
from data_tools.writer import WrittenShard, finish_splits, split_evenly, write_chunk, write_manifest

ARGUMENTS = ("shards", "image_encoding", "transcode", "resize", "pad", "skip_bad")
"""The fields of ImageFlags, but for the split and the CSV, that decide what a data set holds."""


def parse_split(text: str) -> dict[str, float]:
    """Reads `train=0.9,test=0.1`.

    Returns:
        Each split's share, in the order given.

    Raises:
        DataError: CONFIG unless names are plain and differ, and the shares are positive and sum
            up to 1.
    """
    parts = [part.partition("=") for part in text.split(",")]
    try:
        shares = {name: float(share) for name, _, share in parts}
    except ValueError:
        shares = {}
    sound = (
        len(shares) == len(parts)
        and all(SPLIT_NAME.fullmatch(name) for name in shares)
        and all(share > 0 for share in shares.values())
        and abs(sum(shares.values()) - 1) < 1e-6
    )
    if not sound:
        raise DataError(
            CONFIG, "--split", f"{text!r} is not a list of splits whose shares sum up to 1",
            fix="write it like train=0.8,validation=0.1,test=0.1",
        )  # fmt: skip
    return shares


def parse_split_folders(text: str) -> dict[PurePosixPath, str]:
    """Reads `train=train,val=validation`.

    Returns:
        The split of each sub-folder, in the order given.

    Raises:
        DataError: CONFIG unless folders are inside of the source and differ, and the names of
            splits are plain.
    """
    parts = [part.rpartition("=") for part in text.split(",")]
    splits = {PurePosixPath(folder): split for folder, _, split in parts}
    sound = (
        text.isprintable()  # the manifest holds it
        and len(splits) == len(parts)
        and all(SPLIT_NAME.fullmatch(split) for split in splits.values())
        and all(path.parts and ".." not in path.parts and not path.is_absolute() for path in splits)
    )
    if not sound:
        raise DataError(
            CONFIG, "--split-folders", f"{text!r} is not a list of sub-folders and their splits",
            fix="write it like train=train,val=validation",
        )  # fmt: skip
    return splits


def split_of(sha256: bytes, shares: Mapping[str, float]) -> str:
    """Returns the split of an image by its hash, so that equal images are never told apart."""
    place = int.from_bytes(sha256[:8], "big") / 2**64
    for name, share in shares.items():
        place -= share
        if place < 0:
            return name
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Rows that one task converts, a shard of each split.

    Attributes:
        index: its number among all chunks.
        folder: where the shards go.
        source: the folder that the rows' images lie in.
        rows: in order.
        shares: of the splits that they are spread over.
        record: (image, label) to a record; a module's function, since it goes to other processes.
        flags: how images are stored.
    """

    index: int
    folder: Path
    source: Path
    rows: Rows
    shares: dict[str, float]
    record: Callable[[bytes, str], bytes]
    flags: ImageFlags


@dataclass(slots=True)
class ConvertedChunk:
    """What a task wrote and met.

    Attributes:
        shards: the written shard of each split that got any record.
        faults: of images.
        sizes: how many images have each width and height.
        first_of: the first image of each size.
        encodings: "jpeg" and "png", as far as met, or "raw".
        digest: SHA-256 over the images and labels, in order.
    """

    shards: dict[str, WrittenShard] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_of: dict[tuple[int, int], str] = field(default_factory=dict)
    encodings: set[str] = field(default_factory=set)
    digest: bytes = b""

    def to_json(self) -> dict[str, Any]:
        """The same as a value of JSON, for another rank."""
        return {
            "shards": {split: shard.to_json() for split, shard in self.shards.items()},
            "faults": [dataclasses.astuple(fault) for fault in self.faults],
            "sizes": [[*size, count, self.first_of[size]] for size, count in self.sizes.items()],
            "encodings": sorted(self.encodings),
            "digest": self.digest.hex(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "ConvertedChunk":
        """What `to_json` made a value of JSON of."""
        return cls(
            shards={name: WrittenShard.from_json(own) for name, own in value["shards"].items()},
            faults=[Fault(number, Kind(kind), *rest) for number, kind, *rest in value["faults"]],
            sizes=Counter({(w, h): count for w, h, count, _ in value["sizes"]}),
            first_of={(w, h): first for w, h, _, first in value["sizes"]},
            encodings=set(value["encodings"]),
            digest=bytes.fromhex(value["digest"]),
        )


def convert_rows(
    folder: Path,
    source: Path,
    parts: Sequence[tuple[dict[str, float], Rows]],
    record: Callable[[bytes, str], bytes],
    flags: ImageFlags,
    ranks: Ranks,
) -> list[ConvertedChunk]:
    """Writes the shards under temporary names, several at a time.

    Args:
        folder: where they go.
        source: the folder that the rows' images lie in.
        parts: rows, with the shares of the splits that they are spread over.
        record: as `Chunk` says.
        flags: of the command.
        ranks: which share the work.

    Returns:
        What was written, in order; nothing on ranks above 0.
    """
    check_frame(flags)
    cut = [
        (shares, part)
        for shares, rows in parts
        for part in rows.parts(split_evenly(len(rows), flags.shards))
    ]
    chunks = [
        Chunk(
            index=index, folder=folder, source=source, rows=rows, shares=shares, record=record,
            flags=flags,
        )
        for index, (shares, rows) in enumerate(cut)
    ]  # fmt: skip
    workers = flags.workers if ranks.size == 1 else 1
    return ranks.share(
        chunks, lambda own: run_tasks(convert_chunk, own, workers=workers, title="converting"),
        plan=[(chunk.shares, chunk.rows.digest()) for chunk in chunks],
        to_json=ConvertedChunk.to_json, from_json=ConvertedChunk.from_json,
    )  # fmt: skip


def check_frame(flags: ImageFlags) -> None:
    """Raises CONFIG when --resize or --pad makes images that no decoder here takes."""
    width, height = flags.frame() or (0, 0)
    if width * height > images.MAX_PIXELS:
        flag, fix = "--resize" if flags.resize else "--pad", "choose a smaller one"
        reason = f"{width}x{height} pixels, the limit is {images.MAX_PIXELS:,}"
        raise DataError(CONFIG, flag, reason, fix=fix)


def convert_chunk(chunk: Chunk) -> ConvertedChunk:
    """Reads, checks and writes the images of a chunk, each decoded once."""
    done, digest = ConvertedChunk(), hashlib.sha256()
    done.shards = write_chunk(chunk.folder, chunk.index, _records(chunk, done, digest))
    done.digest = digest.digest()
    return done


def _records(chunk: Chunk, done: ConvertedChunk, digest: Any) -> Iterator[tuple[str, bytes]]:
    """Yields split and record of each good image; notes in `done` and `digest` what it meets."""
    inside = str(chunk.source / "_")[:-1]  # joining paths takes longer than reading most images
    for row in chunk.rows:
        path = inside + row.image
        try:
            data = images.read(path)
            kept, encoding, size = fitted(data, path, chunk.flags)
        except DataError as error:
            done.faults.append(Fault(row.number, error.kind, error.where, error.reason, error.fix))
            continue
        sha256 = hashlib.sha256(data).digest()
        digest.update(sha256 + row.label.encode() + b"\n")
        done.sizes[size] += 1
        done.first_of.setdefault(size, row.image)
        done.encodings.add(encoding)
        yield split_of(sha256, chunk.shares), chunk.record(kept, row.label)


def fitted(data: bytes, where: str, flags: StoringFlags) -> tuple[bytes, str, tuple[int, int]]:
    """Returns the bytes to keep of an image file, their encoding, and their width and height."""
    kept, encoding, image = images.stored(data, where, transcode=flags.transcode)
    frame, raw = flags.frame(), flags.image_encoding == "raw"
    if frame is None and not raw:
        return kept, encoding, image.size
    pixels = np.asarray(image)
    if frame is not None:
        pixels = (
            images.resize(pixels, *frame) if flags.resize else images.pad(pixels, *frame, where)
        )
        kept, encoding = images.encode_png(pixels), "png"
    if raw:
        kept, encoding = pixels.tobytes(), "raw"
    return kept, encoding, (pixels.shape[1], pixels.shape[0])


def refuse_faults(
    faults: Sequence[Fault], where: Path | str, among: str, *, skip_bad: bool
) -> None:
    """Raises the one fault, or an error that counts and lists them, unless bad rows are skipped.

    Args:
        faults: in the order of the rows.
        where: the file or folder that they are in.
        among: how many rows there are, in words.
        skip_bad: the flag.
    """
    if not faults or skip_bad:
        return
    if len(faults) == 1:
        raise faults[0].error()
    fixes = list(dict.fromkeys(fault.fix for fault in faults))
    if len(fixes) > 1:
        flags = [fix for fix in fixes if "--" in fix]
        fixes = flags if flags == fixes else ["mend them", *flags]
    mend = "; ".join(fixes)
    raise DataError(
        faults[0].kind, where, f"{len(faults)} of {among} can't be used",
        fix=f"{mend}, or pass --skip-bad to leave them out",
        faults=[fault.line() for fault in faults],
    )  # fmt: skip


def describe_skipped(faults: Sequence[Fault], what: str) -> str:
    """Counts what was left out, by kind."""
    kinds = Counter(fault.kind.name for fault in faults)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"skipped {len(faults)} {what}, listed in the manifest: {counts}"


def printable(text: str) -> str:
    """The text with escapes for what is no Unicode, as in a file name of another encoding."""
    return text.encode(errors="backslashreplace").decode()


def the_one_size(
    written: Sequence[ConvertedChunk], source: Path, faults: Sequence[Fault]
) -> tuple[int, int]:
    """Returns width and height of all images; INPUT without images or with a table of sizes."""
    sizes = sum((chunk.sizes for chunk in written), Counter[tuple[int, int]]())
    if not sizes:
        raise DataError(
            INPUT, source, "no examples", fix="mend the rows listed above",
            faults=[fault.line() for fault in faults],
        )  # fmt: skip
    if len(sizes) > 1:
        first_of = {
            size: name for chunk in reversed(written) for size, name in chunk.first_of.items()
        }
        usual = "{}x{}".format(*sizes.most_common(1)[0][0])
        largest = f"{max(w for w, _ in sizes)}x{max(h for _, h in sizes)}"
        table = [
            f"{count} of {w}x{h}, first {first_of[w, h]}" for (w, h), count in sizes.most_common()
        ]
        raise DataError(
            INPUT, source, f"images of {len(sizes)} sizes, a data set has one",
            fix=f"pass --resize {usual} or --pad {largest}, "
            "or convert each size to its own data set",
            faults=table,
        )  # fmt: skip
    return next(iter(sizes))


def write_set(
    folder: Path,
    written: Sequence[ConvertedChunk],
    size: tuple[int, int],
    flags: ImageFlags,
    *,
    kind: str,
    arguments: Sequence[str],
    splits: Sequence[str],
    skipped: Sequence[str],
    label: LabelSpec | None = None,
    classes: tuple[str, ...] | None = None,
) -> Manifest:
    """Names the shards, writes offsets, TFDS's files and the manifest, and returns the manifest.

    Args:
        folder: where the shards are.
        written: what the tasks wrote.
        size: width and height of all images.
        flags: of the command.
        kind: of the data set.
        arguments: the fields of `flags` that decide what the data set holds: not where it lies or
            how fast it was made.
        splits: the names of the splits in order.
        skipped: what was left out, a text each.
        label: of captchas.
        classes: the names of the classes.
    """
    shards = {
        split: [chunk.shards[split] for chunk in written if split in chunk.shards]
        for split in splits
    }
    encodings = set().union(*(chunk.encodings for chunk in written))
    digest = hashlib.sha256(b"".join(chunk.digest for chunk in written)).hexdigest()
    given = [f"--{name.replace('_', '-')}={getattr(flags, name)}" for name in arguments]
    manifest = Manifest(
        tool=data_tools.__version__,
        name=flags.name,
        kind=kind,
        created_from={"digest": f"sha256:{digest}", "arguments": given},
        image=ImageSpec(
            height=size[1], width=size[0], channels=3,
            encoding=encodings.pop() if len(encodings) == 1 else "mixed",
        ),
        label=label,
        classes=classes,
        skipped=tuple(skipped),
        splits=finish_splits(folder, flags.name, shards),
    )  # fmt: skip
    write_manifest(folder, manifest)
    return manifest
