"""`data_tools captcha-to-tfrecord`: a folder of captchas and their labels to a data set folder."""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import data_tools
from data_tools import charsets, images, schema
from data_tools.errors import CONFIG, INPUT, LABEL, DataError
from data_tools.flags import CaptchaToTfrecord
from data_tools.manifest import ImageSpec, LabelSpec, Manifest
from data_tools.sources.captcha import Fault, ImageFolder, Row, read_labels
from data_tools.workers import run_tasks
from data_tools.writer import (
    WrittenShard,
    atomic_folder,
    check_inputs_stay,
    finish_split,
    split_evenly,
    write_chunk,
    write_manifest,
)

SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
UNNAMED_SHOWN = 5


def main(command: CaptchaToTfrecord) -> None:
    """Runs the command."""
    shares = parse_split(command.split)
    check_inputs_stay(command.out, [("images", command.images), ("labels", command.labels)])
    folder = ImageFolder(command.images)
    rows, faults = read_labels(command.labels, folder)
    rows = [dataclasses.replace(row, label=fold_case(row.label, command.case)) for row in rows]
    spec, rows, label_faults = check_labels(rows, command)
    faults += label_faults
    num_rows = len(rows) + len(faults)
    with atomic_folder(command.out, overwrite=command.overwrite) as incomplete:
        chunks = [
            Chunk(index, incomplete, command, spec, shares, tuple(rows[part.start : part.stop]))
            for index, part in enumerate(split_evenly(len(rows), command.shards))
        ]
        written = list(
            run_tasks(convert_chunk, chunks, workers=command.workers, title="converting")
        )
        faults += [fault for chunk in written for fault in chunk.faults]
        faults.sort(key=lambda fault: fault.number)
        refuse_faults(faults, num_rows, command)
        write_set(incomplete, command, spec, list(shares), written, faults)
    report(command, folder, rows, faults, written)


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


def split_of(sha256: bytes, shares: dict[str, float]) -> str:
    """Returns the split of an image by its hash, so that equal images are never told apart."""
    place = int.from_bytes(sha256[:8], "big") / 2**64
    for name, share in shares.items():
        place -= share
        if place < 0:
            return name
    return name


def fold_case(label: str, case: str) -> str:
    """Applies --case."""
    return {"upper": label.upper(), "lower": label.lower()}.get(case, label)


def check_labels(
    rows: Sequence[Row], command: CaptchaToTfrecord
) -> tuple[LabelSpec, list[Row], list[Fault]]:
    """Settles charset and length, and tells the rows whose labels fit from the others.

    Raises:
        DataError: LABEL when there are more characters than a byte can tell apart.
    """
    lengths = Counter(len(row.label) for row in rows)
    if command.variable_length:
        allowed = range(1, max(lengths, default=1) + 1)
    else:
        # Of equally common lengths the first one met counts.
        usual = command.length or max(lengths, key=lengths.__getitem__, default=1)
        allowed = range(usual, usual + 1)
    fitting = [row for row in rows if len(row.label) in allowed]
    charset = command.characters() or charsets.choose_charset(row.label for row in fitting)
    if len(charset) > charsets.MAX_CHARSET:
        raise DataError(
            LABEL, command.labels, f"{len(charset)} different characters, at most 256 can be told",
            fix="name the characters with --charset and pass --skip-bad",
        )  # fmt: skip
    good, faults = [], []
    for row in rows:
        reason = label_fault(row.label, allowed, charset)
        if reason:
            where = f"{command.labels}:row {row.number}"
            fix = "mend the label, or see --charset, --case, --length and --variable-length"
            faults.append(Fault(row.number, LABEL, where, f"{row.image}: {reason}", fix))
        else:
            good.append(row)
    used = [len(row.label) for row in good] or [allowed.start]
    spec = LabelSpec(charset=charset, min_length=min(used), max_length=max(used), case=command.case)
    return spec, good, faults


def label_fault(label: str, allowed: range, charset: str) -> str:
    """Says why a label doesn't fit; empty if it does."""
    if not label.isprintable():
        return f"label {label!r} has a character that can't be printed"
    if len(label) not in allowed:
        return f"label {label!r} has {len(label)} characters in place of {allowed.start}"
    outside = "".join(sorted(set(label) - set(charset)))
    return f"label {label!r} has {outside!r}, which is not of {charset!r}" if outside else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that one task converts, a shard of each split."""

    index: int
    folder: Path
    command: CaptchaToTfrecord
    spec: LabelSpec
    shares: dict[str, float]
    rows: tuple[Row, ...]


@dataclass(slots=True)
class ConvertedChunk:
    """What a task wrote and met.

    Attributes:
        shards: the written shard of each split that got any record.
        faults: of images.
        sizes: how many images have each width and height.
        first_of: the first image of each size.
        encodings: "jpeg" and "png", as far as met.
        digest: SHA-256 over the images and labels, in order.
    """

    shards: dict[str, WrittenShard] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_of: dict[tuple[int, int], str] = field(default_factory=dict)
    encodings: set[str] = field(default_factory=set)
    digest: Any = field(default_factory=hashlib.sha256)


def convert_chunk(chunk: Chunk) -> ConvertedChunk:
    """Reads, checks and writes the images of a chunk, each decoded once."""
    done = ConvertedChunk()
    done.shards = write_chunk(chunk.folder, chunk.index, _records(chunk, done))
    done.digest = done.digest.digest()
    return done


def _records(chunk: Chunk, done: ConvertedChunk) -> Iterator[tuple[str, bytes]]:
    """Yields split and record of each good image, and notes in `done` what it meets."""
    for row in chunk.rows:
        path = chunk.command.images / row.image
        try:
            data = images.read(path)
            kept, encoding, pixels = images.stored(data, str(path))
        except DataError as error:
            done.faults.append(Fault(row.number, error.kind, error.where, error.reason, error.fix))
            continue
        if chunk.command.image_encoding == "raw":
            kept, encoding = pixels.tobytes(), "raw"
        sha256 = hashlib.sha256(data).digest()
        done.digest.update(sha256 + row.label.encode() + b"\n")
        size = (pixels.shape[1], pixels.shape[0])
        done.sizes[size] += 1
        done.first_of.setdefault(size, row.image)
        done.encodings.add(encoding)
        record = schema.captcha_record(kept, row.label, chunk.spec.charset)
        yield split_of(sha256, chunk.shares), record


def refuse_faults(faults: Sequence[Fault], num_rows: int, command: CaptchaToTfrecord) -> None:
    """Raises the one fault, or an error that counts and lists them, unless bad rows are skipped."""
    if not faults or command.skip_bad:
        return
    if len(faults) == 1:
        raise faults[0].error()
    raise DataError(
        faults[0].kind, command.labels, f"{len(faults)} of {num_rows} rows can't be used",
        fix="mend them, or pass --skip-bad to leave them out",
        faults=[fault.line() for fault in faults],
    )  # fmt: skip


def write_set(
    folder: Path,
    command: CaptchaToTfrecord,
    label: LabelSpec,
    splits: Sequence[str],
    written: Sequence[ConvertedChunk],
    faults: Sequence[Fault],
) -> None:
    """Names the shards and writes offsets, TFDS's files and the manifest."""
    width, height = the_one_size(written, command, faults)
    encodings = set().union(*(chunk.encodings for chunk in written))
    digest = hashlib.sha256(b"".join(chunk.digest for chunk in written)).hexdigest()
    manifest = Manifest(
        tool=data_tools.__version__,
        name=command.name,
        kind="captcha",
        created_from={"digest": f"sha256:{digest}", "arguments": arguments(command)},
        image=ImageSpec(
            height=height, width=width, channels=3,
            encoding=encodings.pop() if len(encodings) == 1 else "mixed",
        ),
        label=label,
        classes=None,
        skipped=tuple(f"row {fault.number}: {fault.reason}" for fault in faults),
        splits={
            split: finish_split(
                folder, command.name, split,
                [chunk.shards[split] for chunk in written if split in chunk.shards],
            )
            for split in splits
        },
    )  # fmt: skip
    write_manifest(folder, manifest)


def the_one_size(
    written: Sequence[ConvertedChunk], command: CaptchaToTfrecord, faults: Sequence[Fault]
) -> tuple[int, int]:
    """Returns width and height of all images; INPUT without images or with a table of sizes."""
    sizes = sum((chunk.sizes for chunk in written), Counter[tuple[int, int]]())
    if not sizes:
        raise DataError(
            INPUT, command.images, "no examples", fix="mend the rows listed above",
            faults=[fault.line() for fault in faults],
        )  # fmt: skip
    if len(sizes) > 1:
        first_of = {
            size: name for chunk in reversed(written) for size, name in chunk.first_of.items()
        }
        table = [
            f"{count} of {w}x{h}, first {first_of[w, h]}" for (w, h), count in sizes.most_common()
        ]
        raise DataError(
            INPUT, command.images, f"images of {len(sizes)} sizes, a data set has one",
            fix="convert each size to a data set of its own", faults=table,
        )  # fmt: skip
    return next(iter(sizes))


def arguments(command: CaptchaToTfrecord) -> list[str]:
    """The flags that decide what the data set holds: not where it lies or how fast it was made."""
    decisive = ("split", "shards", "charset", "case", "length", "variable_length",
                "image_encoding", "skip_bad")  # fmt: skip
    return [f"--{name.replace('_', '-')}={getattr(command, name)}" for name in decisive]


def report(
    command: CaptchaToTfrecord,
    folder: ImageFolder,
    rows: Sequence[Row],
    faults: Sequence[Fault],
    written: Sequence[ConvertedChunk],
) -> None:
    """Says what was made and what was left out."""
    counts: Counter[str] = Counter()
    for chunk in written:
        counts.update({split: len(shard.lengths) for split, shard in chunk.shards.items()})
    splits = ", ".join(f"{split} {count}" for split, count in counts.items())
    print(f"{command.out}: {counts.total()} captchas: {splits}")
    if command.case != "keep":
        print(f"labels were folded to {command.case} case")
    if faults:
        print(f"skipped {len(faults)} rows, listed in the manifest")
    unnamed = sorted(set(folder.names) - {row.image for row in rows})
    if unnamed and not faults:
        shown = ", ".join(unnamed[:UNNAMED_SHOWN]) + (" ..." if unnamed[UNNAMED_SHOWN:] else "")
        print(f"{len(unnamed)} images have no row and were left out: {shown}")
