import gzip
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_captchas import Ran, read_set, write_captchas

from data_tools import manifest, schema, tfrecord
from data_tools.errors import DataError

Tools = Callable[..., Ran]
LABELS = [f"{index * 37 % 10000:04d}" for index in range(80)]
THIRD = "captcha-train.tfrecord-00002-of-00004"


@pytest.fixture(scope="module")
def pristine(data_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("pristine")
    csv = write_captchas(base / "images", LABELS)
    ran = data_tools("captcha-to-tfrecord", base / "images", csv, base / "set", "--workers", 1)
    assert ran.rc == 0, ran.stderr
    return base / "set"


@pytest.fixture
def out(pristine: Path, tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "set"))


def edit(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes manifest.json."""
    path = out / "manifest.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def resign(out: Path, data: bytes, name: str = THIRD) -> None:
    """Writes a shard with the size and hash of the manifest, so that only its content is wrong."""
    (out / name).write_bytes(data)

    def change(fields: dict[str, Any]) -> None:
        for shard in fields["splits"]["train"]["shards"]:
            if shard["file"] == name:
                shard["bytes"] = len(data)
                shard["sha256"] = hashlib.sha256(data).hexdigest()

    edit(out, change)


def refused(data_tools: Tools, out: Path) -> str:
    """The one line of a verify that must fail with INTEGRITY."""
    ran = data_tools("verify", out)
    assert ran.rc == 4, ran
    assert "ok" not in ran.stdout.split()
    assert len(ran.stderr.splitlines()) == 1
    assert ran.error.startswith("error: INTEGRITY: ")
    return ran.error


# verify


def test_a_whole_data_set_is_ok(data_tools: Tools, pristine: Path) -> None:
    ran = data_tools("verify", pristine)
    assert (ran.rc, ran.stderr) == (0, "")
    train, test = (split.examples for split in manifest.load(pristine).splits.values())
    assert train + test == 80
    assert ran.stdout == f"{pristine}: ok: train {train}, test {test}\n"


def test_verify_changes_nothing(data_tools: Tools, out: Path, pristine: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in out.iterdir())
    assert data_tools("verify", out).rc == 0
    assert sorted((path.name, path.stat().st_mtime_ns) for path in out.iterdir()) == before


@pytest.mark.parametrize(
    "part", ["length", "checksum of the length", "data", "checksum of the data"]
)
def test_a_flipped_byte_in_shard_3_of_4_is_named_by_file_record_and_offset(
    data_tools: Tools, out: Path, part: str
) -> None:
    path = out / THIRD
    records = list(tfrecord.read_records(path))
    index = len(records) // 2
    start = records[index][0]
    inside = {
        "length": 0, "checksum of the length": 8, "data": 12 + 40,
        "checksum of the data": 12 + len(records[index][1]),
    }  # fmt: skip
    data = bytearray(path.read_bytes())
    data[start + inside[part]] ^= 0x01
    path.write_bytes(data)
    which = "length" if "length" in part else "data"
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {path}:record {index}:byte {start}: the checksum of the {which} is "
        "wrong; get the file again or convert the data set again"
    )


def test_a_deleted_shard_is_named(data_tools: Tools, out: Path) -> None:
    (out / THIRD).unlink()
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {out / THIRD}: the shard is missing; convert the data set again"
    )


@pytest.mark.parametrize("where", ["inside a record", "between records", "at the start"])
def test_a_cut_shard_is_named_though_the_cut_is_between_records(
    data_tools: Tools, out: Path, where: str
) -> None:
    path = out / THIRD
    last = list(tfrecord.read_records(path))[-1][0]
    size = {"inside a record": last + 5, "between records": last, "at the start": 0}[where]
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:size])
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {path}: {size} bytes, the manifest says {whole}; "
        "convert the data set again"
    )


def test_two_shards_that_changed_places_are_found(data_tools: Tools, out: Path) -> None:
    first, third = out / THIRD.replace("00002-", "00000-"), out / THIRD
    one, other = first.read_bytes(), third.read_bytes()
    first.write_bytes(other)
    third.write_bytes(one)
    assert THIRD.replace("00002-", "00000-") in refused(data_tools, out)


def test_a_changed_image_with_right_checksums_is_found_by_the_hash(
    data_tools: Tools, out: Path
) -> None:
    path = out / THIRD
    records = [data for _, data in tfrecord.read_records(path)]
    features = {k: v[0] for k, v in tfrecord.decode_example(records[0]).items()}
    image = bytearray(features["image"])
    image[image.index(b"\xff\xdb") + 6] ^= 1  # a value of the quantisation table
    records[0] = tfrecord.encode_example(features | {"image": bytes(image)})
    path.write_bytes(b"".join(map(tfrecord.frame, records)))
    actual = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    expected = manifest.load(out).splits["train"].shards[2].sha256[:12]
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {path}: SHA-256 {actual}..., the manifest says {expected}...; "
        "run data_tools verify to find the record, then convert the data set again"
    )


WRONG_MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a count of a shard": lambda m: m["splits"]["train"]["shards"][2].update(examples=3),
    "counts of two shards, with the same sum": lambda m: [
        m["splits"]["train"]["shards"][index].update(
            examples=m["splits"]["train"]["shards"][index]["examples"] + change
        )
        for index, change in ((1, 1), (2, -1))
    ],
    "the count of a split": lambda m: m["splits"]["train"].update(examples=7),
    "a size": lambda m: m["splits"]["train"]["shards"][2].update(bytes=7),
    "a hash": lambda m: m["splits"]["train"]["shards"][2].update(sha256="0" * 64),
    "the height": lambda m: m["image"].update(height=13),
    "the width": lambda m: m["image"].update(width=23),
    "the encoding": lambda m: m["image"].update(encoding="raw"),
    "the charset": lambda m: m["label"].update(charset="012345678"),
    "the length": lambda m: m["label"].update(min_length=5, max_length=5),
    "a shard left out": lambda m: m["splits"]["train"]["shards"].pop(),
    "a shard twice": lambda m: m["splits"]["train"]["shards"].append(
        m["splits"]["train"]["shards"][0]
    ),
    "shards in another order": lambda m: m["splits"]["train"]["shards"].reverse(),
}


@pytest.mark.parametrize("name", WRONG_MANIFESTS)
def test_a_manifest_that_does_not_fit_the_shards_is_found(
    data_tools: Tools, out: Path, name: str
) -> None:
    edit(out, WRONG_MANIFESTS[name])
    assert str(out) in refused(data_tools, out)


def write_offsets(out: Path, offsets: object, *, allow_pickle: bool = False) -> None:
    np.save(out / "offsets-train.npy", np.asarray(offsets), allow_pickle=allow_pickle)


def true_offsets(out: Path) -> np.ndarray:
    return np.load(out / "offsets-train.npy", allow_pickle=False)


class Trap:
    """Unpickling this makes a file, as hostile offsets could."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


DAMAGED_OFFSETS: dict[str, Callable[[Path], object]] = {
    "missing": lambda out: (out / "offsets-train.npy").unlink(),
    "empty": lambda out: (out / "offsets-train.npy").write_bytes(b""),
    "cut": lambda out: (out / "offsets-train.npy").write_bytes(
        (out / "offsets-train.npy").read_bytes()[:-8]
    ),
    "no .npy": lambda out: (out / "offsets-train.npy").write_bytes(b"hello"),
    "one off": lambda out: write_offsets(out, true_offsets(out) + 1),
    "one changed": lambda out: write_offsets(
        out, np.where(np.arange(len(true_offsets(out))) == 3, 5, true_offsets(out))
    ),
    "one fewer": lambda out: write_offsets(out, true_offsets(out)[:-1]),
    "one more": lambda out: write_offsets(out, [*true_offsets(out), 10**9]),
    "in another order": lambda out: write_offsets(out, true_offsets(out)[::-1]),
    "floats": lambda out: write_offsets(out, true_offsets(out).astype(float)),
    "two-dimensional": lambda out: write_offsets(out, true_offsets(out)[:, None]),
    "negative": lambda out: write_offsets(out, -true_offsets(out)),
    "no elements": lambda out: write_offsets(out, np.zeros(0, np.int64)),
}


@pytest.mark.parametrize("name", DAMAGED_OFFSETS)
def test_damaged_offsets_are_integrity_that_names_their_file(
    data_tools: Tools, out: Path, name: str
) -> None:
    DAMAGED_OFFSETS[name](out)
    line = refused(data_tools, out)
    assert line.startswith(f"error: INTEGRITY: {out / 'offsets-train.npy'}: ")
    assert line.endswith("; convert the data set again")
    assert "pickle" not in line  # NumPy's advice to load the file unsafely


def test_pickled_offsets_are_refused_and_not_run(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    offsets = np.empty(1, object)
    offsets[0] = Trap(tmp_path / "ran")
    write_offsets(out, offsets, allow_pickle=True)
    refused(data_tools, out)
    assert not (tmp_path / "ran").exists()


def test_a_record_with_base64_text_as_image_is_named_by_its_index(
    data_tools: Tools, out: Path
) -> None:
    records = [data for _, data in tfrecord.read_records(out / THIRD)]
    image = b"/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsL"
    records[1] = schema.captcha_record(image, "0123", "0123456789")
    resign(out, b"".join(map(tfrecord.frame, records)))
    start = len(tfrecord.frame(records[0]))
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {out / THIRD}:record 1:byte {start}: not a record of this data set: "
        "the content is neither JPEG nor PNG; convert the data set again"
    )


def test_a_shard_compressed_by_gzip_is_one_clear_line(data_tools: Tools, out: Path) -> None:
    resign(out, gzip.compress((out / THIRD).read_bytes()))
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {out / THIRD}:record 0:byte 0: the file is compressed by gzip, not a "
        "plain TFRecord; get the file again or convert the data set again"
    )


def test_a_folder_without_manifest_is_no_finished_data_set(data_tools: Tools, out: Path) -> None:
    (out / "manifest.json").unlink()
    for command in ("verify", "info"):
        ran = data_tools(command, out)
        assert ran.rc == 3
        assert ran.stderr == (
            f"error: INPUT: {out}: no manifest.json, so this is not a finished data set; "
            "convert it again with data_tools\n"
        )


@pytest.mark.parametrize("command", ["verify", "info"])
def test_a_folder_that_is_not_there_is_named(
    data_tools: Tools, tmp_path: Path, command: str
) -> None:
    ran = data_tools(command, tmp_path / "absent")
    assert ran.rc == 3
    assert ran.stderr == (f"error: INPUT: {tmp_path / 'absent'}: no such folder; check the path\n")


def test_a_raw_set_and_a_set_of_several_lengths_are_ok(data_tools: Tools, tmp_path: Path) -> None:
    csv = write_captchas(tmp_path / "images", ["AB", "ABC", "ABCD"])
    ran = data_tools(
        "captcha-to-tfrecord", tmp_path / "images", csv, tmp_path / "set", "--variable-length",
        "--image-encoding", "raw", "--workers", 1,
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    assert data_tools("verify", tmp_path / "set").rc == 0


def test_the_trainers_checks_find_what_verify_finds(out: Path) -> None:
    data = bytearray((out / THIRD).read_bytes())
    data[-1] ^= 1
    (out / THIRD).write_bytes(data)
    split = manifest.load(out).splits["train"]
    manifest.check_sizes(out, split)
    with pytest.raises(DataError):
        manifest.check_hash(out, split.shards[2])


# info


COUNTS = [dict(sorted(Counter(label[place] for label in LABELS).items())) for place in range(4)]


def test_info_prints_counts_size_charset_and_lengths(data_tools: Tools, pristine: Path) -> None:
    ran = data_tools("info", pristine)
    assert (ran.rc, ran.stderr) == (0, "")
    splits = manifest.load(pristine).splits
    assert ran.stdout.splitlines() == [
        "captcha (captcha): images 24x12x3, jpeg",
        *(
            f"  {name}: {split.examples} examples, {len(split.shards)} shards, {split.bytes} bytes"
            for name, split in splits.items()
        ),
        "  labels: 4 of 10: 0123456789",
        *(
            f"  position {place}: " + " ".join(f"{c}:{n}" for c, n in counts.items())
            for place, counts in enumerate(COUNTS)
        ),
    ]


def test_info_json_counts_every_character_at_every_position(
    data_tools: Tools, pristine: Path
) -> None:
    ran = data_tools("info", pristine, "--json")
    assert (ran.rc, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {
        "name": "captcha",
        "kind": "captcha",
        "image": {"width": 24, "height": 12, "channels": 3, "encoding": "jpeg"},
        "splits": {
            name: {"examples": split.examples, "shards": len(split.shards), "bytes": split.bytes}
            for name, split in manifest.load(pristine).splits.items()
        },
        "charset": "0123456789",
        "lengths": [4, 4],
        "classes": {},
        "skipped": 0,
        "positions": COUNTS,
    }


def test_info_of_several_lengths_counts_the_positions_that_there_are(
    data_tools: Tools, tmp_path: Path
) -> None:
    csv = write_captchas(tmp_path / "images", ["AB", "ABC"])
    data_tools(
        "captcha-to-tfrecord", tmp_path / "images", csv, tmp_path / "set", "--variable-length",
        "--split", "train=1", "--workers", 1,
    )  # fmt: skip
    told = json.loads(data_tools("info", tmp_path / "set", "--json").stdout)
    assert told["lengths"] == [2, 3]
    assert told["positions"] == [{"A": 2}, {"B": 2}, {"C": 1}]
    assert "labels: 2 to 3 of 26" in data_tools("info", tmp_path / "set").stdout


def test_info_says_how_many_rows_were_skipped(data_tools: Tools, tmp_path: Path) -> None:
    csv = write_captchas(tmp_path / "images", ["AB", "CD"])
    (tmp_path / "images/1.jpg").write_bytes(b"hello")
    data_tools(
        "captcha-to-tfrecord", tmp_path / "images", csv, tmp_path / "set", "--skip-bad",
        "--workers", 1,
    )  # fmt: skip
    assert (
        "  skipped: 1 rows, listed in the manifest\n" in data_tools("info", tmp_path / "set").stdout
    )
    assert json.loads(data_tools("info", tmp_path / "set", "--json").stdout)["skipped"] == 1


def test_info_of_a_damaged_shard_is_integrity(data_tools: Tools, out: Path) -> None:
    (out / THIRD).write_bytes((out / THIRD).read_bytes()[:-1])
    ran = data_tools("info", out)
    assert ran.rc == 4
    assert len(ran.stderr.splitlines()) == 1


def test_the_pristine_set_holds_what_was_written(pristine: Path) -> None:
    rows = [row["text"].decode() for rows in read_set(pristine).values() for row in rows]
    assert sorted(rows) == sorted(LABELS)
