"""`data_tools verify`: checks every byte of data set folders, or of any TFRecord files."""

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_tools import manifest as manifests
from data_tools import schema, tfrecord
from data_tools.console import Advance, print_result, progress
from data_tools.errors import CONFIG, INPUT, INTEGRITY, DataError, os_errors
from data_tools.flags import Verify
from data_tools.manifest import Manifest, Shard, Split

_AGAIN = "convert the data set again"


def main(command: Verify) -> None:
    """Runs the command."""
    folders = [path for path in command.paths if path.is_dir()]
    facts: dict[str, Any]
    if not folders:
        found = verify_files(command.paths, deep=command.deep)
        facts, lines = {"files": found}, [_describe(*item) for item in found.items()]
    elif len(folders) < len(command.paths):
        raise DataError(
            CONFIG, folders[0], "a folder beside files", fix="pass folders only, or files only"
        )
    else:
        sets = {str(path): verify_folder(path, deep=command.deep) for path in folders}
        facts, lines = {"sets": sets}, [_describe_set(*item) for item in sets.items()]
    print_result(lines, {"ok": True, "deep": command.deep, **facts}, as_json=command.json)


def verify_folder(folder: Path, *, deep: bool) -> dict[str, int]:
    """Checks a data set folder against its manifest.

    Args:
        folder: the data set.
        deep: parse every record and decode its image too.

    Returns:
        The number of examples of each split.

    Raises:
        DataError: INTEGRITY with file, record and byte for the first thing that is wrong.
    """
    manifest = manifests.load(folder)
    with progress("verifying", sum(split.bytes for split in manifest.splits.values())) as advance:
        for split in manifest.splits.values():
            _verify_split(folder, manifest, split, advance, deep=deep)
    for file, data in schema.tfds_files(manifest).items():
        _verify_described(folder / file, data)
    return {name: split.examples for name, split in manifest.splits.items()}


def verify_files(paths: Sequence[Path], *, deep: bool) -> dict[str, dict[str, Any]]:
    """Returns what `verify_file` does for each path, in order."""
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    with progress("verifying", sum(sizes)) as advance:
        return {str(path): verify_file(path, advance, deep=deep) for path in paths}


def verify_file(path: Path, advance: Advance | None = None, *, deep: bool) -> dict[str, Any]:
    """Checks a TFRecord file of any origin: its framing and the checksums of all its records.

    A cut between two records leaves a shorter file that is whole in itself. So a shard in the
    folder of its data set is checked against the manifest there; of other files the count is what
    can be compared.

    Args:
        path: the file, plain or compressed by GZIP or ZLIB.
        advance: is told of the bytes that are done.
        deep: parse every record as a tf.train.Example too.

    Returns:
        The number of `records` and the `compression`, None where there is none.

    Raises:
        DataError: INPUT when there is no such file; INTEGRITY with record and byte for the first
            thing that is wrong, or when there are no records.
    """
    if not path.is_file():
        reason = "not a file" if path.exists() else "no such file or folder"
        raise DataError(INPUT, path, reason, fix="check the path")
    count = 0
    for where, record, _ in _records(path, advance):
        if deep:
            _parse(record, where)
        count += 1
    if not count:
        raise DataError(INTEGRITY, path, "no records", fix="get the file again")
    _verify_listed(path, deep=deep)
    return {"records": count, "compression": tfrecord.compression_of(path)}


def _describe(path: str, found: dict[str, Any]) -> str:
    compression = f", {found['compression']}" if found["compression"] else ""
    return f"{path}: ok: {found['records']} records{compression}"


def _describe_set(path: str, counts: dict[str, int]) -> str:
    return f"{path}: ok: " + ", ".join(f"{name} {count}" for name, count in counts.items())


def _records(path: Path, advance: Advance | None) -> Iterator[tuple[str, bytes, int]]:
    """Yields where a record is, the record, and the byte where its frame ends."""
    for index, (offset, record) in enumerate(tfrecord.read_records(path, advance)):
        stop = offset + tfrecord.HEADER_BYTES + len(record) + tfrecord.FOOTER_BYTES
        yield f"{path}:record {index}:byte {offset}", record, stop


def _parse(record: bytes, where: str) -> None:
    try:
        tfrecord.decode_example(record, ())
    except ValueError as error:
        raise DataError(
            INTEGRITY, where, f"not a tf.train.Example: {error}", fix="get the file again"
        ) from error


def _verify_listed(path: Path, *, deep: bool) -> None:
    """Checks a shard that lies beside the manifest which lists it."""
    beside = path.parent / manifests.FILE_NAME
    with os_errors(beside):
        if not beside.is_file() or manifests.FORMAT.encode() not in beside.read_bytes():
            return  # other programs have files of that name
    manifest = manifests.load(path.parent)
    for split in manifest.splits.values():
        for shard in split.shards:
            if shard.file == path.name:
                manifests.check_size(path.parent, shard)
                _verify_shard(path.parent, manifest, shard, None, deep=deep)


def _verify_split(
    folder: Path, manifest: Manifest, split: Split, advance: Advance, *, deep: bool
) -> None:
    manifests.check_sizes(folder, split)
    offsets, base = [np.zeros(1, np.int64)], 0
    for shard in split.shards:
        offsets.append(base + _verify_shard(folder, manifest, shard, advance, deep=deep))
        base += shard.bytes
    path = folder / split.offsets
    if not np.array_equal(manifests.load_offsets(path), np.concatenate(offsets)):
        raise DataError(INTEGRITY, path, "not the places of the records", fix=_AGAIN)


def _verify_shard(
    folder: Path, manifest: Manifest, shard: Shard, advance: Advance | None, *, deep: bool
) -> npt.NDArray[np.int64]:
    """Checks each record of a shard and its hash; returns where each record ends, in bytes."""
    path = folder / shard.file
    if compression := tfrecord.compression_of(path):
        reason = f"compressed by {compression}, the shards of a data set are not"
        raise DataError(INTEGRITY, path, reason, fix=_AGAIN)
    stops = array("q")
    for where, record, stop in _records(path, advance):
        if deep:
            schema.decode_record(record, manifest, where)
        stops.append(stop)
    if len(stops) != shard.examples:
        reason = f"{len(stops)} records, the manifest says {shard.examples}"
        raise DataError(INTEGRITY, path, reason, fix=_AGAIN)
    manifests.check_hash(folder, shard)
    return np.array(stops, np.int64)


def _verify_described(path: Path, expected: bytes) -> None:
    """Checks a file whose content follows from the manifest."""
    with os_errors(path):
        actual = path.read_bytes() if path.exists() else b""
    if actual != expected:
        raise DataError(INTEGRITY, path, "not what the manifest says", fix=_AGAIN)
