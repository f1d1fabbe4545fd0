import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_captchas import Ran, read_set, write_captchas

from data_tools import info, manifest, schema, tfrecord, verify, writer
from data_tools.errors import INTEGRITY, DataError

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


def refused(data_tools: Tools, out: Path, *flags: str) -> str:
    """The one line of a verify that must fail with INTEGRITY."""
    ran = data_tools("verify", out, *flags)
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
    assert str(out) in refused(data_tools, out, "--deep")


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
    assert refused(data_tools, out, "--deep") == (
        f"error: INTEGRITY: {out / THIRD}:record 1:byte {start}: not a record of this data set: "
        "the content is neither JPEG nor PNG; convert the data set again"
    )


def test_a_shard_compressed_by_gzip_is_one_clear_line(data_tools: Tools, out: Path) -> None:
    resign(out, gzip.compress((out / THIRD).read_bytes()))
    assert refused(data_tools, out) == (
        f"error: INTEGRITY: {out / THIRD}: compressed by gzip, the shards of a data set are not; "
        "convert the data set again"
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


@pytest.mark.parametrize(
    ("command", "reason"), [("verify", "no such file or folder"), ("info", "no such folder")]
)
def test_a_folder_that_is_not_there_is_named(
    data_tools: Tools, tmp_path: Path, command: str, reason: str
) -> None:
    ran = data_tools(command, tmp_path / "absent")
    assert ran.rc == 3
    assert ran.stderr == f"error: INPUT: {tmp_path / 'absent'}: {reason}; check the path\n"


def test_a_raw_set_and_a_set_of_several_lengths_are_ok(data_tools: Tools, tmp_path: Path) -> None:
    csv = write_captchas(tmp_path / "images", ["AB", "ABC", "ABCD"])
    ran = data_tools(
        "captcha-to-tfrecord", tmp_path / "images", csv, tmp_path / "set", "--variable-length",
        "--image-encoding", "raw", "--workers", 1,
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    assert data_tools("verify", tmp_path / "set", "--deep").rc == 0


def test_the_trainers_checks_find_what_verify_finds(out: Path) -> None:
    data = bytearray((out / THIRD).read_bytes())
    data[-1] ^= 1
    (out / THIRD).write_bytes(data)
    split = manifest.load(out).splits["train"]
    manifest.check_sizes(out, split)
    with pytest.raises(DataError):
        manifest.check_hash(out, split.shards[2])


# verify, without --deep and of files


def test_only_deep_parses_and_decodes_the_records(data_tools: Tools, out: Path) -> None:
    edit(out, WRONG_MANIFESTS["the height"])
    (out / "features.json").write_bytes(schema.tfds_files(manifest.load(out))["features.json"])
    assert data_tools("verify", out).rc == 0
    first = out / THIRD.replace("00002-", "00000-")
    assert refused(data_tools, out, "--deep") == (
        f"error: INTEGRITY: {first}:record 0:byte 0: not a record of this data set: "
        "an image of 24x12, expected 24x13; convert the data set again"
    )


def test_verify_json_tells_the_counts(data_tools: Tools, pristine: Path) -> None:
    ran = data_tools("verify", pristine, "--json", "--deep")
    assert (ran.rc, ran.stderr) == (0, "")
    splits = {name: split.examples for name, split in manifest.load(pristine).splits.items()}
    assert json.loads(ran.stdout) == {"ok": True, "deep": True, "sets": {str(pristine): splits}}


def test_several_sets_are_verified_in_one_call(
    data_tools: Tools, pristine: Path, out: Path
) -> None:
    ran = data_tools("verify", pristine, out)
    assert (ran.rc, ran.stderr) == (0, "")
    counts = {name: split.examples for name, split in manifest.load(out).splits.items()}
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    assert ran.stdout == f"{pristine}: ok: {listed}\n{out}: ok: {listed}\n"
    (out / THIRD).unlink()
    ran = data_tools("verify", pristine, out)
    assert (ran.rc, ran.stdout) == (4, "")
    assert ran.stderr.startswith(f"error: INTEGRITY: {out / THIRD}: ")


def foreign(path: Path, records: list[bytes], compress: Callable[[bytes], bytes] = bytes) -> Path:
    """A TFRecord file that belongs to no data set."""
    path.write_bytes(compress(b"".join(map(tfrecord.frame, records))))
    return path


EXAMPLES = [tfrecord.encode_example({"a": b"one"}), tfrecord.encode_example({"b": [1, 2]})]


def test_files_of_any_origin_are_counted(data_tools: Tools, tmp_path: Path) -> None:
    plain = foreign(tmp_path / "plain", EXAMPLES)
    packed = foreign(tmp_path / "packed", EXAMPLES * 2, gzip.compress)
    ran = data_tools("verify", plain, packed, "--deep")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{plain}: ok: 2 records\n{packed}: ok: 4 records, gzip\n"
    ran = data_tools("verify", plain, packed, "--json")
    assert json.loads(ran.stdout) == {
        "ok": True,
        "deep": False,
        "files": {
            str(plain): {"records": 2, "compression": None},
            str(packed): {"records": 4, "compression": "gzip"},
        },
    }


def test_a_record_that_is_no_example_is_found_by_deep(data_tools: Tools, tmp_path: Path) -> None:
    path = foreign(tmp_path / "file", [EXAMPLES[0], b"hello"])
    assert data_tools("verify", path).rc == 0
    start = len(EXAMPLES[0]) + 16
    assert refused(data_tools, path, "--deep") == (
        f"error: INTEGRITY: {path}:record 1:byte {start}: not a tf.train.Example: "
        "unknown wire type 4; get the file again"
    )


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_file_without_records_is_refused(
    data_tools: Tools, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = foreign(tmp_path / "file", [], compress)
    assert refused(data_tools, path) == (
        f"error: INTEGRITY: {path}: no records; get the file again"
    )


def test_the_first_damaged_of_several_files_is_named(data_tools: Tools, tmp_path: Path) -> None:
    whole, cut = foreign(tmp_path / "whole", EXAMPLES), foreign(tmp_path / "cut", EXAMPLES)
    cut.write_bytes(cut.read_bytes()[:-1])
    start = len(EXAMPLES[0]) + 16
    assert refused(data_tools, whole, str(cut)) == (
        f"error: INTEGRITY: {cut}:record 1:byte {start}: the file ends inside the record; "
        "get the file again or convert the data set again"
    )


def test_paths_that_can_not_be_verified_are_one_line(
    data_tools: Tools, tmp_path: Path, pristine: Path
) -> None:
    path, pipe = foreign(tmp_path / "file", EXAMPLES), tmp_path / "pipe"
    os.mkfifo(pipe)
    for paths, rc, message in (
        ([path, pristine], 2, f"CONFIG: {pristine}: a folder beside files; "
         "pass folders only, or files only"),
        ([pipe], 3, f"INPUT: {pipe}: not a file; check the path"),
        ([path, tmp_path / "no"], 3, f"INPUT: {tmp_path / 'no'}: no such file or folder; "
         "check the path"),
    ):  # fmt: skip
        ran = data_tools("verify", *paths)
        assert (ran.rc, ran.stdout, ran.stderr) == (rc, "", f"error: {message}\n")


def test_a_shard_cut_between_records_is_found_by_the_manifest_beside_it(
    data_tools: Tools, out: Path
) -> None:
    path = out / THIRD
    assert data_tools("verify", path, "--deep").rc == 0
    last, whole = list(tfrecord.read_records(path))[-1][0], path.stat().st_size
    path.write_bytes(path.read_bytes()[:last])
    assert refused(data_tools, path) == (
        f"error: INTEGRITY: {path}: {last} bytes, the manifest says {whole}; "
        "convert the data set again"
    )


def test_another_programs_manifest_beside_a_file_is_none_of_ours(
    data_tools: Tools, tmp_path: Path
) -> None:
    path = foreign(tmp_path / "file", EXAMPLES)
    (tmp_path / "manifest.json").write_text('{"format": "other/1"}')
    assert data_tools("verify", path).rc == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of three raw images of 2x1, in one shard."""
    folder = tmp_path_factory.mktemp("tiny") / "set"
    folder.mkdir()
    shard = writer.ShardWriter(folder / "chunk")
    for number in range(3):
        shard.write(schema.class_record(bytes(range(number, number + 6)), number))
    image = manifest.ImageSpec(height=1, width=2, channels=3, encoding="raw")
    made = manifest.Manifest(
        tool="0", name="tiny", kind="classes", created_from={}, image=image, label=None,
        classes=("a", "b", "c"), skipped=(),
        splits={"train": writer.finish_split(folder, "tiny", "train", [shard.close()])},
    )  # fmt: skip
    writer.write_manifest(folder, made)
    return folder


def test_every_cut_and_every_flipped_bit_of_a_shard_is_found(
    data_tools: Tools, tiny: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(tiny, tmp_path / "set"))
    assert data_tools("verify", out).rc == 0
    path = out / "tiny-train.tfrecord-00000-of-00001"
    whole = path.read_bytes()
    damaged = [whole[:cut] for cut in range(len(whole))]
    for position, bit in itertools.product(range(len(whole)), range(8)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        damaged.append(bytes(flipped))
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            verify.verify_folder(out, deep=False)
        assert caught.value.kind is INTEGRITY
        assert caught.value.where.startswith(str(path))


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_every_cut_inside_a_record_of_a_foreign_file_is_found(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = foreign(tmp_path / "file", EXAMPLES, compress)
    whole, first = path.read_bytes(), len(EXAMPLES[0]) + 16
    passed = []
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        try:
            passed.append((cut, verify.verify_file(path, deep=True)["records"]))
        except DataError as error:
            assert error.kind is INTEGRITY
    # What is left there is a whole file of one record: nothing but its count can tell.
    assert passed == ([(first, 1)] if compress is bytes else [])


@given(data=st.binary(max_size=80), deep=st.booleans())
def test_any_bytes_are_verified_or_refused_in_one_line(
    data_tools: Tools, tmp_path_factory: pytest.TempPathFactory, data: bytes, deep: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    for content in (data, tfrecord.frame(data), gzip.compress(tfrecord.frame(data))):
        path.write_bytes(content)
        ran = data_tools("verify", path, *(["--deep"] if deep else []))
        assert ran.rc in (0, 4)
        assert len(ran.stderr.splitlines()) == (ran.rc == 4)
        assert ran.rc == 4 or content != data


def test_the_files_of_other_programs_are_whole(data_tools: Tools, test_data: Path) -> None:
    files = sorted((test_data / "tfrecords").rglob("*.tfrecord*"))
    files = [path for path in files if path.is_file()]
    assert len(files) == 3
    ran = data_tools("verify", *files, "--deep")
    assert (ran.rc, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 3


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
        "  duplicates: none",
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
        "duplicates": {"examples": 0, "images": 0, "images_in_several_splits": 0},
        "conflicts": {"images": 0, "first": []},
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


def test_info_tells_images_that_are_there_twice_and_their_conflicting_labels(
    data_tools: Tools, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    csv = write_captchas(folder, ["AB", "CD", "EF", "AB", "XY", "XY"])
    shutil.copy(folder / "0.jpg", folder / "3.jpg")
    shutil.copy(folder / "1.jpg", folder / "4.jpg")
    shutil.copy(folder / "1.jpg", folder / "5.jpg")
    out = tmp_path / "set"
    assert data_tools("captcha-to-tfrecord", folder, csv, out, "--split", "train=1").rc == 0
    told = json.loads(data_tools("info", out, "--json").stdout)
    assert told["duplicates"] == {"examples": 3, "images": 2, "images_in_several_splits": 0}
    assert told["conflicts"] == {
        "images": 1,
        "first": [
            [
                {"split": "train", "record": 1, "label": "CD"},
                {"split": "train", "record": 4, "label": "XY"},
            ]
        ],
    }
    assert data_tools("info", out).stdout.splitlines()[-3:] == [
        "  duplicates: 3 examples repeat one of 2 images, of which 0 are in several splits",
        "  conflicting labels: 1 images have several:",
        "    train record 1 'CD', train record 4 'XY'",
    ]


def test_info_lists_ten_conflicts_and_counts_all(data_tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    csv = write_captchas(folder, [f"{index:02d}" for index in range(24)])
    for index in range(12):
        shutil.copy(folder / f"{index}.jpg", folder / f"{index + 12}.jpg")
    out = tmp_path / "set"
    assert data_tools("captcha-to-tfrecord", folder, csv, out, "--split", "train=1").rc == 0
    conflicts = json.loads(data_tools("info", out, "--json").stdout)["conflicts"]
    assert conflicts["images"] == 12
    assert [labels[0]["record"] for labels in conflicts["first"]] == list(range(10))
    lines = data_tools("info", out).stdout.splitlines()
    assert lines[-11] == "  conflicting labels: 12 images have several, the first 10:"
    assert lines[-1] == "    train record 9 '09', train record 21 '21'"


def test_an_image_in_two_splits_is_told(tiny: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "set"))
    whole = manifest.load(folder)
    both = dataclasses.replace(whole, splits={**whole.splits, "test": whole.splits["train"]})
    facts = info.collect(folder, both)
    assert facts["duplicates"] == {"examples": 3, "images": 3, "images_in_several_splits": 3}
    assert facts["conflicts"] == {"images": 0, "first": []}


def test_info_finds_the_images_that_a_real_set_labels_in_two_ways(
    captcha_sets: Path, data_tools: Tools, tmp_path: Path
) -> None:
    out = tmp_path / "set"
    ran = data_tools(
        "captcha-to-tfrecord", captcha_sets / "swust/20191218", "-", out,
        "--label-from-name", "([0-9a-z]{4})_.*", "--split", "train=1",
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    told = json.loads(data_tools("info", out, "--json").stdout)
    assert told["duplicates"] == {"examples": 5, "images": 5, "images_in_several_splits": 0}
    labels = [[of["label"] for of in found] for found in told["conflicts"]["first"]]
    assert sorted(labels) == [
        ["3ej2", "3ejz"], ["k0t2", "m0t2"], ["li0l", "lj0l"], ["lkie", "lkif"], ["uft1", "ufti"],
    ]  # fmt: skip
