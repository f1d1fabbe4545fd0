"""`data_tools folder-to-tfrecord`: a folder of images for each class to a data set folder."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from data_tools import manifest as manifests
from data_tools import schema
from data_tools.console import print_result
from data_tools.convert_images import (
    ARGUMENTS,
    convert_rows,
    describe_skipped,
    parse_split,
    parse_split_folders,
    printable,
    refuse_faults,
    the_one_size,
    write_set,
)
from data_tools.errors import CONFIG, INPUT, LABEL, DataError, Fault
from data_tools.flags import FolderToTfrecord
from data_tools.ranks import ALONE, Ranks
from data_tools.sources.captcha import read_labels
from data_tools.sources.folder import ClassFolders, name_fault
from data_tools.sources.image_folder import ImageFolder, composed
from data_tools.sources.rows import Row, Rows
from data_tools.writer import atomic_folder, check_inputs_stay

KIND = "classes"
TRAIN = "train"
SPLIT_LIKE = frozenset({
    "train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval",
})  # fmt: skip
"""Where all folders have such names and folders in them, they hold splits, not classes."""
MAX_CLASSES = 1 << 16  # a label is read as uint16
SHOWN = 5

Part = tuple[dict[str, float], Rows]


@dataclass(slots=True)
class Images:
    """What a source holds.

    Attributes:
        parts: images with their classes, and the shares of the splits that they are spread over.
        faults: of rows and folders, without those of the images themselves.
        notes: what is left out or strange, and no fault: a line each.
    """

    parts: list[Part]
    faults: list[Fault]
    notes: list[str] = field(default_factory=list)

    def count(self) -> int:
        """How many images there are."""
        return sum(len(rows) for _, rows in self.parts)

    def labels(self) -> set[str]:
        """The names of their classes."""
        return set().union(*(rows.labels() for _, rows in self.parts))


def main(command: FolderToTfrecord, ranks: Ranks = ALONE) -> None:
    """Runs the command."""
    sources = [("source", command.src), *([("labels", command.labels)] if command.labels else [])]
    check_inputs_stay(command.out, sources)
    found = read_images(command)
    classes = class_names(found.labels(), command.src)
    numbers = {name: number for number, name in enumerate(classes)}
    record = functools.partial(class_record, numbers=numbers)
    splits = list(dict.fromkeys(split for shares, _ in found.parts for split in shares))
    with atomic_folder(command.out, overwrite=command.overwrite, rank=ranks.rank) as incomplete:
        written = convert_rows(incomplete, command.src, found.parts, record, command, ranks)
        if ranks.rank:
            return
        faults = found.faults + [fault for chunk in written for fault in chunk.faults]
        faults.sort(key=lambda fault: fault.number)
        where = command.labels or command.src
        among = f"{found.count() + len(found.faults)} {'rows' if command.labels else 'entries'}"
        refuse_faults(faults, where, among, skip_bad=command.skip_bad)
        size = the_one_size(written, command.src, faults)
        manifest = write_set(
            incomplete, written, size, command,
            kind=KIND, splits=splits, classes=classes,
            arguments=(*decisive(command), *ARGUMENTS),
            skipped=[skipped(fault, command) for fault in faults],
        )  # fmt: skip
    notes = found.notes
    if faults:
        notes = [describe_skipped(faults, "rows" if command.labels else "entries"), *notes]
    made = manifests.describe(manifest, f"images of {len(classes)} classes", splits)
    print_result(
        [f"{command.out}: {made}", *notes],
        {**manifests.facts(command.out, manifest), "notes": notes}, as_json=command.json,
    )  # fmt: skip


def decisive(command: FolderToTfrecord) -> tuple[str, ...]:
    """The fields that tell the splits and the CSV."""
    if command.labels is not None:
        return "split", "separator", "header"
    return ("split_folders" if command.split_folders else "split",)


def class_record(image: bytes, label: str, numbers: Mapping[str, int]) -> bytes:
    """Returns the record of an image with the name of its class."""
    return schema.class_record(image, numbers[label])


def class_names(labels: Iterable[str], source: Path) -> tuple[str, ...]:
    """Returns the names of all classes, sorted as text; INPUT if there are too many."""
    names = tuple(sorted(set(labels)))
    if len(names) > MAX_CLASSES:
        reason = f"{len(names)} classes, at most {MAX_CLASSES} can be told"
        raise DataError(INPUT, source, reason, fix="check that it has a folder for each class")
    return names


def read_images(command: FolderToTfrecord) -> Images:
    """Finds the images, their classes and their splits, in the form that the flags name.

    Raises:
        DataError: INPUT or CONFIG when the source isn't of that form.
    """
    if command.labels is not None:
        return read_labelled(command, command.labels)
    folders = ClassFolders(command.src)
    if command.split_folders is not None:
        found = read_split_folders(folders, command.src, parse_split_folders(command.split_folders))
    else:
        shares = parse_split(command.split)
        rows = folders.read()
        refuse_splits(rows, command.src)
        found = Images([(shares, rows)], folders.faults)
    if not found.count() and not found.faults:
        raise DataError(
            INPUT, command.src, "no class folders in it",
            fix="put the images of each class into a folder of its name, or see --labels",
        )  # fmt: skip
    found.notes += listed("files lie in no class folder and were left out", folders.stray)
    found.notes += listed(
        "links to files lead out of the source and were followed", folders.outside
    )
    return found


def read_labelled(command: FolderToTfrecord, labels: Path) -> Images:
    """Reads a CSV of files and classes."""
    shares = parse_split(command.split)
    folder = ImageFolder(command.src)
    rows, faults, notes = read_labels(
        labels, folder, separator=command.delimiter(), header=command.header
    )
    good = Rows()
    for row in rows:
        name = composed(row.label)
        if reason := name_fault(name):
            where = f"{labels}:row {row.number}"
            faults.append(Fault(row.number, LABEL, where, reason, "mend the name"))
        else:
            good.append(row.number, row.image, name)
    unnamed = [] if faults else folder.unclaimed()
    notes += listed("images have no row and were left out", unnamed)
    return Images([(shares, good)], faults, notes)


def read_split_folders(
    folders: ClassFolders, source: Path, split_of: Mapping[PurePosixPath, str]
) -> Images:
    """Reads folders that hold a split each; several may be of one split."""
    rows_of = {folder: folders.read(folder) for folder in split_of}
    splits = list(dict.fromkeys(split_of.values()))
    first = TRAIN if TRAIN in splits else splits[0]
    by_split = {split: Rows() for split in splits}
    known = set().union(
        *(rows.labels() for folder, rows in rows_of.items() if split_of[folder] == first)
    )
    faults, notes = list(folders.faults), []
    for folder, rows in rows_of.items():
        unknown: dict[str, Row] = {}
        for row in rows:
            if row.label in known:
                by_split[split_of[folder]].append(*row)
            else:
                unknown.setdefault(row.label, row)
        for row in unknown.values():
            own = PurePosixPath(row.image).relative_to(folder).parts[0]
            faults.append(Fault(
                row.number, INPUT, str(source / folder / own),
                f"a class that split {first} doesn't have", "add it there or remove the folder",
            ))  # fmt: skip
    for split, rows in by_split.items():
        lacking = sorted(known.difference(rows.labels()))
        notes += listed(f"classes have no images in split {split}", lacking)
    return Images([({split: 1.0}, rows) for split, rows in by_split.items()], faults, notes)


def refuse_splits(rows: Rows, source: Path) -> None:
    """Raises CONFIG where folders of splits would be taken for classes."""
    names = sorted(set(rows.labels()))
    split_like = names and all(name.lower() in SPLIT_LIKE for name in names)
    if split_like and all(image.count("/") > 1 for image in rows.images()):
        raise DataError(
            CONFIG, source, f"the folders {', '.join(names)} look like splits, not classes",
            fix="pass --split-folders " + ",".join(f"{name}={name.lower()}" for name in names),
        )  # fmt: skip


def skipped(fault: Fault, command: FolderToTfrecord) -> str:
    """How the manifest names what was left out, the same wherever the source lies."""
    if command.labels is not None:
        return f"row {fault.number}: {fault.reason}"
    return printable(f"{Path(fault.where).relative_to(command.src)}: {fault.reason}")


def listed(what: str, names: Sequence[str]) -> list[str]:
    """One line that counts and shows names; none if there are none."""
    shown = ", ".join(names[:SHOWN]) + (" ..." if names[SHOWN:] else "")
    return [f"{len(names)} {what}: {shown}"] if names else []
