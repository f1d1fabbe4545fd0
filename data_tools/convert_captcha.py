"""`data_tools captcha-to-tfrecord`: a folder of captchas and their labels to a data set folder."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_tools import charsets, schema
from data_tools import manifest as manifests
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
from data_tools.flags import CaptchaToTfrecord
from data_tools.manifest import LabelSpec
from data_tools.ranks import ALONE, Ranks
from data_tools.sources.captcha import labels_from_names, read_labels
from data_tools.sources.image_folder import ImageFolder
from data_tools.sources.rows import Row, Rows
from data_tools.writer import atomic_folder, check_inputs_stay

KIND = "captcha"
DECISIVE = (
    "separator", "header", "row_names", "first_row", "label_from_name", "charset", "case", "length",
    "variable_length", "zero_pad", *ARGUMENTS,
)  # fmt: skip
UNNAMED_SHOWN = 5
LABEL_FIX = "mend the label, or see --charset, --case, --length and --variable-length"
ZEROS_FIX = "if a spreadsheet dropped leading zeros, pass --zero-pad"


def main(command: CaptchaToTfrecord, ranks: Ranks = ALONE) -> None:
    """Runs the command."""
    shares = parse_split(command.split)
    labels = [("labels", command.labels)] if command.label_from_name is None else []
    check_inputs_stay(command.out, [("images", command.images), *labels])
    folder = ImageFolder(command.images)
    split_of = find_split_folders(command.split_folders, folder)
    origin, rows, faults, notes = read_rows(command, folder, split_of)
    if command.case != "keep":
        rows = Rows.of(
            row._replace(label=charsets.fold_case(row.label, command.case)) for row in rows
        )
    spec, rows, label_faults = check_labels(rows, origin, command)
    faults += label_faults
    among = f"{len(rows) + len(faults)} {origin.what}"
    parts = group(rows, split_of) if split_of else [(shares, rows)]
    splits = [split for spread, _ in parts for split in spread]
    record = functools.partial(schema.captcha_record, charset=spec.charset)
    with atomic_folder(command.out, overwrite=command.overwrite, rank=ranks.rank) as incomplete:
        written = convert_rows(incomplete, command.images, parts, record, command, ranks)
        if ranks.rank:
            return
        faults += [fault for chunk in written for fault in chunk.faults]
        faults.sort(key=lambda fault: fault.number)
        refuse_faults(faults, origin.path, among, skip_bad=command.skip_bad)
        size = the_one_size(written, command.images, faults)
        manifest = write_set(
            incomplete, written, size, command,
            kind=KIND, splits=splits, label=spec,
            arguments=("split_folders" if split_of else "split", *DECISIVE),
            skipped=[f"{origin.title(fault.number)}: {fault.reason}" for fault in faults],
        )  # fmt: skip
    notes += describe_rest(command, folder, origin, faults)
    made = manifests.describe(manifest, "captchas", dict.fromkeys(splits))
    print_result(
        [f"{command.out}: {made}", *notes],
        {**manifests.facts(command.out, manifest), "notes": notes}, as_json=command.json,
    )  # fmt: skip


SplitOf = Mapping[PurePosixPath, str]
"""The split of each folder that --split-folders names; empty without the flag."""


def find_split_folders(text: str | None, images: ImageFolder) -> SplitOf:
    """Finds the folders of --split-folders, whatever the Unicode form of their names.

    Raises:
        DataError: CONFIG when one isn't there; as `parse_split_folders`.
    """
    split_of = {}
    for name, split in parse_split_folders(text).items() if text is not None else ():
        folder = images.find_folder(name)
        if folder is None:
            reason = f"no folder {str(name)!r} in {images.folder}"
            raise DataError(CONFIG, "--split-folders", reason, fix="name sub-folders of IMAGES")
        split_of[folder] = split
    return split_of


def find_split(image: str, split_of: SplitOf) -> str | None:
    """Returns the split of the innermost folder that has one."""
    parents = PurePosixPath(image).parents
    return next((split_of[folder] for folder in parents if folder in split_of), None)


def group(rows: Rows, split_of: SplitOf) -> list[tuple[dict[str, float], Rows]]:
    """Parts the rows by the split of their folder; each part is wholly of one split."""
    parts = {split: Rows() for split in split_of.values()}
    for row in rows:
        parts[find_split(row.image, split_of) or ""].append(*row)
    return [({split: 1.0}, part) for split, part in parts.items()]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the labels come from, as messages tell it.

    Attributes:
        path: the CSV, or the folder whose file names hold the labels.
        names: the images of that folder in order, by the numbers of the rows from 1.
    """

    path: Path
    names: Sequence[str] | None = None

    @property
    def what(self) -> str:
        """What is counted."""
        return "rows" if self.names is None else "images"

    def title(self, number: int) -> str:
        """Names a row in the manifest, whatever bytes are in a file name."""
        return printable(f"row {number}" if self.names is None else self.names[number - 1])

    def label_fault(self, row: Row, reason: str, fix: str) -> Fault:
        """The fault of a row whose label is wrong."""
        if self.names is not None:
            return Fault(row.number, LABEL, str(self.path / row.image), reason, fix)
        where = f"{self.path}:row {row.number}"
        return Fault(row.number, LABEL, where, f"{row.image}: {reason}", fix)


def read_rows(
    command: CaptchaToTfrecord, folder: ImageFolder, split_of: SplitOf
) -> tuple[Origin, Rows, list[Fault], list[str]]:
    """Finds images and labels: usable rows, the faults of the others, and notes for the user."""
    pattern = command.pattern()
    if pattern is not None:
        folder.walk()
        names = [name for name in folder.names if not split_of or find_split(name, split_of)]
        for number, name in enumerate(names, 1):
            folder.claim(name, number)
        rows, faults = labels_from_names(command.images, names, pattern)
        return Origin(command.images, names), rows, faults, []
    rows, faults, notes = read_labels(
        command.labels, folder, separator=command.delimiter(), header=command.header,
        row_names=command.row_names, first_row=command.first_row,
    )  # fmt: skip
    if split_of:
        folder.walk()
        inside = Rows()
        for row in rows:
            if find_split(row.image, split_of) is not None:
                inside.append(*row)
                continue
            faults.append(Fault(
                row.number, INPUT, f"{command.labels}:row {row.number}",
                f"{row.image} lies in no folder of --split-folders",
                "name its folder there, or take out the row",
            ))  # fmt: skip
        rows = inside
    return Origin(command.labels), rows, faults, notes


def check_labels(
    rows: Rows, origin: Origin, command: CaptchaToTfrecord
) -> tuple[LabelSpec, Rows, list[Fault]]:
    """Settles charset and length, and tells the rows whose labels fit from the others.

    Raises:
        DataError: LABEL when there are more characters than a byte can tell apart.
    """
    lengths = Counter(map(len, rows.labels()))
    if command.variable_length:
        allowed = range(1, max(lengths, default=1) + 1)
    else:
        # Of equally common lengths the first one met counts.
        usual = command.length or max(lengths, key=lengths.__getitem__, default=1)
        allowed = range(usual, usual + 1)
    dropped = (
        len(lengths) > 1 and all(map(charsets.is_number, rows.labels())) and not command.zero_pad
    )
    if command.zero_pad:
        rows = Rows.of(row._replace(label=charsets.zero_padded(row.label, usual)) for row in rows)
    charset = command.characters() or charsets.choose_charset(
        label for label in rows.labels() if len(label) in allowed and label.isprintable()
    )
    if len(charset) > charsets.MAX_CHARSET:
        raise DataError(
            LABEL, origin.path, f"{len(charset)} different characters, at most 256 can be told",
            fix="name the characters with --charset and pass --skip-bad",
        )  # fmt: skip
    reason_of = functools.partial(charsets.label_fault, allowed=allowed, charset=charset)
    faults = [
        origin.label_fault(
            row, reason, ZEROS_FIX if dropped and len(row.label) < allowed.start else LABEL_FIX
        )
        for row, reason in zip(rows, map(reason_of, rows.labels()), strict=True)
        if reason
    ]
    if faults:
        rows = Rows.of(row for row in rows if not reason_of(row.label))
    used = set(map(len, rows.labels())) or {allowed.start}
    spec = LabelSpec(charset=charset, min_length=min(used), max_length=max(used), case=command.case)
    return spec, rows, faults


def describe_rest(
    command: CaptchaToTfrecord,
    folder: ImageFolder,
    origin: Origin,
    faults: Sequence[Fault],
) -> list[str]:
    """Says what was done to the labels and what was left out, a line each."""
    lines = []
    if command.case != "keep":
        lines.append(f"labels were folded to {command.case} case")
    if command.zero_pad:
        lines.append("labels were filled with zeros on the left")
    if faults:
        lines.append(describe_skipped(faults, origin.what))
    unnamed = [] if faults else folder.unclaimed()
    if unnamed:
        shown = ", ".join(unnamed[:UNNAMED_SHOWN]) + (" ..." if unnamed[UNNAMED_SHOWN:] else "")
        why = "have no row" if origin.names is None else "are in no folder of --split-folders"
        lines.append(f"{len(unnamed)} images {why} and were left out: {shown}")
    return lines
