"""`data_tools reshard`: other shards for a data set, or a data set of other programs' TFRecords."""

import dataclasses
import hashlib
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

import data_tools
from data_tools import charsets, schema, tfrecord
from data_tools import manifest as manifests
from data_tools.console import Advance, print_result, progress
from data_tools.convert_images import (
    ConvertedChunk,
    fitted,
    parse_split,
    printable,
    refuse_faults,
    split_of,
    the_one_size,
)
from data_tools.errors import CONFIG, INPUT, INTEGRITY, LABEL, DataError, Fault
from data_tools.flags import DEFAULT_SPLIT, Reshard, named_charset
from data_tools.manifest import ImageSpec, LabelSpec, Manifest, Split
from data_tools.set_names import SPLIT_NAME
from data_tools.sources.class_names import read_names
from data_tools.sources.examples import Example, Layout, read_examples
from data_tools.writer import (
    ShardWriter,
    WrittenShard,
    atomic_folder,
    check_given_once,
    check_inputs_stay,
    finish_splits,
    split_evenly,
    write_manifest,
)

CAPTCHA, CLASSES = "captcha", "classes"
STORING_FLAGS = ("image_encoding", "transcode", "resize", "pad")
"""What only makes sense for JPEG, PNG and the like."""
FILE_FLAGS = (
    "charset", "shape", "image_key", "label_key", "split", "split_files", *STORING_FLAGS,
    "classes", "skip_bad",
)  # fmt: skip
"""What only makes sense for files."""


def main(command: Reshard) -> None:
    """Runs the command."""
    check_inputs_stay(command.out, [("source", path) for path in command.src])
    for path in command.src:
        if not path.exists():
            raise DataError(INPUT, path, "no such file or folder", fix="check the path")
        if not (path.is_file() or path.is_dir()):  # a pipe can't be read twice
            raise DataError(INPUT, path, "neither a file nor a folder", fix="check the path")
    check_given_once(command.src)
    folder = next((path for path in command.src if not path.is_file()), None)
    if folder is not None and len(command.src) > 1:
        raise DataError(
            CONFIG, folder, "a folder beside other sources", fix="pass one folder, or files only"
        )
    make = make_set if folder is None else cut_again
    with atomic_folder(command.out, overwrite=command.overwrite) as incomplete:
        manifest, splits = make(incomplete, command)
        write_manifest(incomplete, manifest)
    made = manifests.describe(manifest, f"examples ({manifest.kind})", splits)
    lines = [f"{command.out}: {made}"]
    if command.skip_bad and manifest.skipped:
        lines.append(f"skipped {len(manifest.skipped)} records, listed in the manifest")
    print_result(lines, manifests.facts(command.out, manifest), as_json=command.json)


def refuse_flags(command: Reshard, names: Sequence[str], reason: str) -> None:
    """Raises CONFIG with the first of the flags that is given."""
    defaults = {field.name: field.default for field in dataclasses.fields(command)}
    for name in names:
        if getattr(command, name) != defaults[name]:
            raise DataError(CONFIG, f"--{name.replace('_', '-')}", reason, fix="leave it out")


def write_evenly(
    folder: Path, split: str, count: int, records: Iterator[bytes], shards: int
) -> list[WrittenShard]:
    """Writes `count` records to at most so many shards of nearly one size, in order."""
    written = []
    for index, part in enumerate(split_evenly(count, shards)):
        with ShardWriter(folder / f"{split}.chunk-{index:05d}") as writer:
            for record in itertools.islice(records, len(part)):
                writer.write(record)
            written.append(writer.close())
    return written


# A data set


Made = tuple[Manifest, Sequence[str]]
"""The manifest of what was written, and the splits that were to be made."""


def cut_again(folder: Path, command: Reshard) -> Made:
    """Writes the records of a data set to `folder`, in their order and splits.

    Raises:
        DataError: CONFIG when a flag of files is given; INTEGRITY when the set is damaged.
    """
    refuse_flags(command, FILE_FLAGS, "it is for TFRecord files; a data set keeps what it holds")
    (source,) = command.src
    manifest = manifests.load(source)
    set_name = command.name or manifest.name
    written = {}
    with progress("writing", sum(split.bytes for split in manifest.splits.values())) as advance:
        for name, split in manifest.splits.items():
            manifests.check_sizes(source, split)
            records = _records_of(source, split, advance)
            written[name] = write_evenly(folder, name, split.examples, records, command.shards)
            for _ in records:  # none is left, or the last shard has more than the manifest says
                pass
    arguments = [
        f"--shards={command.shards}" if given.startswith("--shards=") else given
        for given in manifest.created_from.get("arguments", [])
    ]
    made = dataclasses.replace(
        manifest, tool=data_tools.__version__, name=set_name,
        splits=finish_splits(folder, set_name, written),
        created_from={**manifest.created_from, "arguments": arguments},
    )  # fmt: skip
    return made, list(manifest.splits)


def _records_of(folder: Path, split: Split, advance: Advance) -> Iterator[bytes]:
    """The records of a split in order, each shard checked first."""
    for shard in split.shards:
        manifests.check_hash(folder, shard)
        count = 0
        for _, record in tfrecord.read_records(folder / shard.file, advance):
            count += 1
            yield record
        if count != shard.examples:
            raise DataError(
                INTEGRITY, folder / shard.file,
                f"{count} records, the manifest says {shard.examples}",
                fix="convert the data set again",
            )  # fmt: skip


# Files


def make_set(folder: Path, command: Reshard) -> Made:
    """Writes the examples of TFRecord files to `folder`.

    Raises:
        DataError: CONFIG when the flags don't say what the records hold; INPUT or LABEL when some
            don't hold that, with all of them listed; INTEGRITY when a file is damaged.
    """
    layout = layout_of(command)
    splits, choose_split = splits_of(command)
    survey = Survey.of(_examples(layout, command), splits, choose_split, command)
    label, classes = settle_labels(survey, layout, command)
    name = command.name or (CLASSES if classes else CAPTCHA)
    met = ConvertedChunk()
    with progress("writing", len(splits) * _bytes_of(command)) as advance:
        written = {
            split: write_evenly(
                folder, split, survey.counts[split],
                _encoded(command, layout, survey, number, label, met, advance), command.shards,
            )
            for number, split in enumerate(splits)
        }  # fmt: skip
    refuse([*survey.faults, *met.faults], len(survey.splits), command)
    width, height = the_one_size([met], command.src[0], [])
    channels = layout.shape[2] if layout.shape else 3
    made = Manifest(
        tool=data_tools.__version__,
        name=name,
        kind=CLASSES if classes else CAPTCHA,
        created_from={"digest": f"sha256:{survey.digest}", "arguments": arguments(command)},
        image=ImageSpec(
            height=height, width=width, channels=channels,
            encoding=met.encodings.pop() if len(met.encodings) == 1 else "mixed",
        ),
        label=label,
        classes=classes,
        skipped=tuple(
            printable(f"{PurePath(fault.where).name}: {fault.reason}") for fault in survey.faults
        ),
        splits=finish_splits(folder, name, written),
    )  # fmt: skip
    return made, splits


def splits_of(command: Reshard) -> tuple[list[str], Callable[[Path, bytes], str]]:
    """Returns the names of the splits, and what tells an example's by its file and image's hash.

    Raises:
        DataError: CONFIG when --split or --split-files makes no sense.
    """
    if command.split_files is None:
        shares = parse_split(command.split or DEFAULT_SPLIT)
        return list(shares), lambda _, sha256: split_of(sha256, shares)
    parts = [part.rpartition("=") for part in command.split_files.split(",")]
    if not all(pattern and SPLIT_NAME.fullmatch(split) for pattern, _, split in parts):
        raise DataError(
            CONFIG, "--split-files", f"{command.split_files!r} is not a list of names and splits",
            fix="write it like 'train*=train,test*=test'",
        )  # fmt: skip
    split_of_file, unused = {}, [pattern for pattern, _, _ in parts]
    for path in command.src:
        fitting = [(name, split) for name, _, split in parts if fnmatchcase(path.name, name)]
        if len({split for _, split in fitting}) != 1:
            reason = f"{path.name} fits {'several splits' if fitting else 'no name'}"
            raise DataError(CONFIG, "--split-files", reason, fix="give each file one split")
        split_of_file[path] = fitting[0][1]
        unused = [name for name in unused if name not in dict(fitting)]
    if unused:
        raise DataError(
            CONFIG, "--split-files", f"no file is named {unused[0]}", fix="check the names"
        )
    return list(dict.fromkeys(split for _, _, split in parts)), lambda path, _: split_of_file[path]


def layout_of(command: Reshard) -> Layout:
    """What the records of the files hold, as the flags say; CONFIG when they don't or say two."""
    keys, shape = {command.image_key is None, command.label_key is None}, command.shape
    course = keys == {True} and command.charset and shape
    if not course and (keys != {False} or command.charset):
        raise DataError(
            CONFIG, "command line", "the flags don't say what the TFRecord files hold",
            fix="pass --charset and --shape, for the course's layout, or --image-key and "
            "--label-key",
        )  # fmt: skip
    if shape:
        refuse_flags(command, STORING_FLAGS, "it is for JPEG and PNG, not for raw images")
    height, width, channels = map(int, shape.split("x")) if shape else (0, 0, 0)
    return Layout(
        image_key=command.image_key or "image",
        label_key=command.label_key or "label",
        shape=(height, width, channels) if shape else None,
        charset=named_charset(command.charset),
        classes=read_names(command.classes) if command.classes is not None else None,
    )


NO_SPLIT = -1
MAX_FAULTS = 1000
"""After so many, as a wrong flag gives, the files are read no further."""


@dataclass(slots=True)
class Survey:
    """What a first pass over the files finds, before labels can be written.

    Attributes:
        splits: of each record the number of its split, NO_SPLIT where it has a fault.
        counts: of the good records of each split.
        faults: of records.
        characters: in all labels that are text.
        lengths: how many of these labels are so long.
        classes: the numbers of classes that occur.
        digest: SHA-256 over images and labels, in order.
    """

    splits: "array[int]" = field(default_factory=lambda: array("i"))
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    characters: set[str] = field(default_factory=set)
    lengths: Counter[int] = field(default_factory=Counter)
    classes: set[int] = field(default_factory=set)
    digest: str = ""

    @classmethod
    def of(
        cls, examples: Iterable[Example | Fault], names: Sequence[str],
        choose_split: Callable[[Path, bytes], str], command: Reshard,
    ) -> "Survey":  # fmt: skip
        """Goes over all examples; `choose_split` gives one of `names` by file and image's hash."""
        survey, digest = cls(), hashlib.sha256()
        for example in examples:
            if isinstance(example, Fault):
                survey.faults.append(example)
                survey.splits.append(NO_SPLIT)
                if survey.has_too_many_faults(command):
                    break
                continue
            sha256 = hashlib.sha256(example.image).digest()
            split = choose_split(example.file, sha256)
            survey.splits.append(names.index(split))
            survey.counts[split] += 1
            digest.update(sha256 + str(example.label).encode() + b"\n")
            if isinstance(example.label, int):
                survey.classes.add(example.label)
            else:
                survey.characters.update(example.label)
                survey.lengths[len(example.label)] += 1
        survey.digest = digest.hexdigest()
        return survey

    def has_too_many_faults(self, command: Reshard) -> bool:
        """Tells whether it's no use to read on."""
        return len(self.faults) >= MAX_FAULTS and not command.skip_bad


def settle_labels(
    survey: Survey, layout: Layout, command: Reshard
) -> tuple[LabelSpec | None, tuple[str, ...] | None]:
    """Returns how labels are written, of texts, or else the names of the classes: their numbers.

    Raises:
        DataError: INPUT or LABEL when there are no labels, or such as don't go together.
    """
    if not survey.counts or survey.has_too_many_faults(command):
        refuse(survey.faults, len(survey.splits), dataclasses.replace(command, skip_bad=False))
        raise DataError(INPUT, _sources(command), "no examples", fix="check the files")
    if survey.classes and survey.lengths:
        reason = "some labels are texts and some are numbers of classes"
        raise DataError(LABEL, _sources(command), reason, fix="convert each kind by itself")
    if survey.classes:
        return None, layout.classes or tuple(map(str, range(max(survey.classes) + 1)))
    charset = layout.charset or charsets.choose_charset(survey.characters)
    if len(charset) > charsets.MAX_CHARSET:
        reason = f"{len(charset)} different characters, at most 256 can be told"
        fix = "check that --label-key names the label"
        raise DataError(LABEL, _sources(command), reason, fix=fix)
    shortest, longest = min(survey.lengths), max(survey.lengths)
    return LabelSpec(charset=charset, min_length=shortest, max_length=longest, case="keep"), None


def _encoded(
    command: Reshard, layout: Layout, survey: Survey, split: int, label: LabelSpec | None,
    met: ConvertedChunk, advance: Advance,
) -> Iterator[bytes]:  # fmt: skip
    """Yields our records of one split's examples, and notes in `met` what it meets."""
    examples = read_examples(command.src, layout, advance)
    for example, number in zip(examples, survey.splits, strict=False):
        if number != split or isinstance(example, Fault):
            continue
        try:
            image, encoding, size = _stored(example, layout, command)
        except DataError as error:
            met.faults.append(_fault_of(example, error))
            if len(met.faults) == MAX_FAULTS:
                return
            continue
        met.sizes[size] += 1
        met.first_of.setdefault(size, example.where)
        met.encodings.add(encoding)
        if isinstance(example.label, int):
            yield schema.class_record(image, example.label)
        elif label is not None:
            yield schema.captcha_record(image, example.label, label.charset)


def _examples(layout: Layout, command: Reshard) -> Iterator[Example | Fault]:
    """Yields what is in the files; with --skip-bad, images that can't be stored are faults too."""
    with progress("reading", _bytes_of(command)) as advance:
        for example in read_examples(command.src, layout, advance):
            if command.skip_bad and isinstance(example, Example):
                try:
                    _stored(example, layout, command)
                except DataError as error:
                    yield _fault_of(example, error)
                    continue
            yield example


def _bytes_of(command: Reshard) -> int:
    return sum(path.stat().st_size for path in command.src)


def _fault_of(example: Example, error: DataError) -> Fault:
    return Fault(example.number, error.kind, error.where, error.reason, error.fix)


def _stored(
    example: Example, layout: Layout, command: Reshard
) -> tuple[bytes, str, tuple[int, int]]:
    """The bytes to keep of an image, their encoding, and its width and height."""
    if layout.shape:
        return example.image, "raw", (layout.shape[1], layout.shape[0])
    return fitted(example.image, example.where, command)


def refuse(faults: Sequence[Fault], count: int, command: Reshard) -> None:
    """Raises what is wrong with records, of so many, unless bad ones are skipped."""
    faults = sorted(faults, key=lambda fault: fault.number)
    if len(faults) < MAX_FAULTS or command.skip_bad:
        refuse_faults(faults, _sources(command), f"{count} records", skip_bad=command.skip_bad)
        return
    raise DataError(
        faults[0].kind, _sources(command), f"at least {MAX_FAULTS} records can't be used",
        fix=faults[0].fix, faults=[fault.line() for fault in faults],
    )  # fmt: skip


def _sources(command: Reshard) -> str:
    """The file, or how many."""
    return str(command.src[0]) if len(command.src) == 1 else f"{len(command.src)} files"


def arguments(command: Reshard) -> list[str]:
    """The flags that decide what a data set made of files holds."""
    decisive = (*(name for name in FILE_FLAGS if name != "classes"), "shards")
    return [f"--{name.replace('_', '-')}={getattr(command, name)}" for name in decisive]
