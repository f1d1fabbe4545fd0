"""`data_tools verify`: checks every byte of a data set folder against its manifest."""

from pathlib import Path

import numpy as np

from data_tools import manifest as manifests
from data_tools import schema, tfrecord
from data_tools.errors import INTEGRITY, DataError, os_errors
from data_tools.flags import Verify
from data_tools.manifest import Manifest, Shard, Split


def main(command: Verify) -> None:
    """Runs the command."""
    manifest = manifests.load(command.folder)
    for split in manifest.splits.values():
        verify_split(command.folder, manifest, split)
    for file, data in schema.tfds_files(manifest).items():
        _verify_file(command.folder / file, data)
    counts = ", ".join(f"{name} {split.examples}" for name, split in manifest.splits.items())
    print(f"{command.folder}: ok: {counts}")


def verify_split(folder: Path, manifest: Manifest, split: Split) -> None:
    """Raises INTEGRITY with file, record and byte for the first thing that is wrong."""
    manifests.check_sizes(folder, split)
    offsets = [0]
    for shard in split.shards:
        base = offsets[-1]
        offsets += [base + stop for stop in _verify_shard(folder / shard.file, manifest, shard)]
        manifests.check_hash(folder, shard)
    _verify_offsets(folder / split.offsets, np.array(offsets, np.int64))


def _verify_shard(path: Path, manifest: Manifest, shard: Shard) -> list[int]:
    """Checks each record of a shard and returns where each ends, in bytes."""
    stops = []
    for index, (offset, record) in enumerate(tfrecord.read_records(path)):
        schema.decode_record(record, manifest, f"{path}:record {index}:byte {offset}")
        stops.append(offset + tfrecord.HEADER_BYTES + len(record) + tfrecord.FOOTER_BYTES)
    if len(stops) != shard.examples:
        raise DataError(
            INTEGRITY, path, f"{len(stops)} records, the manifest says {shard.examples}",
            fix="convert the data set again",
        )  # fmt: skip
    return stops


def _verify_offsets(path: Path, expected: np.ndarray) -> None:
    actual = manifests.load_offsets(path)
    if actual.dtype != np.int64 or not np.array_equal(actual, expected):
        raise DataError(
            INTEGRITY, path, "not the places of the records", fix="convert the data set again"
        )


def _verify_file(path: Path, expected: bytes) -> None:
    """Checks a file whose content follows from the manifest."""
    with os_errors(path):
        actual = path.read_bytes() if path.exists() else b""
    if actual != expected:
        raise DataError(
            INTEGRITY, path, "not what the manifest says", fix="convert the data set again"
        )
