"""`data_tools reshard`: other shards for a data set, and data sets of other programs' files."""

import gzip
import hashlib
import itertools
import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_captchas import Ran, draw, files_of, read_set, write_captchas

from data_tools import images, manifest, schema, tfrecord
from data_tools.manifest import ImageSpec, LabelSpec

Tools = Callable[..., Ran]
KEYS = ("--image-key", "image", "--label-key", "label")
COURSE = ("--charset", "upper", "--shape", "12x24x3")
FIX = "; see --image-key, --label-key, --charset and --shape"


def pixels(seed: int) -> np.ndarray:
    return np.asarray(draw(seed))


def png(seed: int) -> bytes:
    return images.encode_png(pixels(seed))


def write(path: Path, records: list[dict[str, bytes | int]]) -> Path:
    path.write_bytes(b"".join(tfrecord.frame(tfrecord.encode_example(of)) for of in records))
    return path


def start_of(records: list[dict[str, bytes | int]], index: int) -> int:
    return sum(len(tfrecord.encode_example(of)) + 16 for of in records[:index])


CLASSES = [{"image": png(index), "label": index % 3, "id": b"x"} for index in range(40)]
TEXTS = [{"image": png(index), "label": f"{index:04d}".encode()} for index in range(40)]
COURSE_RECORDS = [
    {"image": pixels(index).tobytes(), "label": bytes([index, 3, 25, 0])} for index in range(20)
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "set"


@pytest.fixture(scope="module")
def own(data_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of captchas."""
    base = tmp_path_factory.mktemp("own")
    csv = write_captchas(base / "images", [f"{index * 37 % 10000:04d}" for index in range(50)])
    ran = data_tools("captcha-to-tfrecord", base / "images", csv, base / "set", "--name", "mine")
    assert ran.rc == 0, ran.stderr
    return base / "set"


def made(data_tools: Tools, *args: object) -> None:
    ran = data_tools("reshard", *args)
    assert (ran.rc, ran.stderr) == (0, "")


def refused(data_tools: Tools, out: Path, *args: object) -> Ran:
    """A command that leaves nothing."""
    ran = data_tools("reshard", *args)
    assert ran.rc != 0
    assert ran.stdout == ""
    assert not out.exists()
    assert not out.with_name(out.name + ".incomplete").exists()
    return ran


# A data set


@pytest.mark.parametrize("shards", [1, 3, 7, 100])
def test_only_the_borders_of_the_shards_change(
    data_tools: Tools, own: Path, out: Path, shards: int
) -> None:
    ran = data_tools("reshard", own, out, "--shards", shards)
    old, new = manifest.load(own), manifest.load(out)
    train, test = (split.examples for split in old.splits.values())
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 50 examples (captcha): train {train}, test {test}\n"
    assert data_tools("verify", out, "--deep").rc == 0
    assert read_set(out) == read_set(own)
    for name, split in new.splits.items():
        assert len(split.shards) == min(shards, old.splits[name].examples)
        sizes = [shard.examples for shard in split.shards]
        assert max(sizes) - min(sizes) <= 1
    assert (new.image, new.label, new.name) == (old.image, old.label, "mine")
    assert new.created_from["digest"] == old.created_from["digest"]
    assert f"--shards={shards}" in new.created_from["arguments"]


def test_resharding_there_and_back_gives_equal_bytes(
    data_tools: Tools, own: Path, tmp_path: Path
) -> None:
    for name, source, shards in (("a", own, 4), ("b", tmp_path / "a", 9), ("c", tmp_path / "b", 4)):
        made(data_tools, source, tmp_path / name, "--shards", shards)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "c")


def test_a_set_of_classes_keeps_their_names(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    made(data_tools, write(tmp_path / "file", CLASSES), tmp_path / "one", *KEYS)
    made(data_tools, tmp_path / "one", out, "--shards", 2, "--name", "other")
    assert read_set(out) == read_set(tmp_path / "one")
    assert manifest.load(out).classes == ("0", "1", "2")
    assert manifest.load(out).name == "other"
    assert (out / "other-train.tfrecord-00001-of-00002").exists()


def test_a_damaged_set_is_integrity_and_nothing_is_written(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path
) -> None:
    source = Path(shutil.copytree(own, tmp_path / "source"))
    path = source / manifest.load(source).splits["train"].shards[1].file
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    ran = refused(data_tools, out, source, out)
    assert ran.rc == 4
    assert ran.error.startswith(f"error: INTEGRITY: {path}: SHA-256 ")
    path.write_bytes(data[:-1])
    ran = refused(data_tools, out, source, out)
    assert ran.stderr == (
        f"error: INTEGRITY: {path}: {len(data) - 1} bytes, the manifest says {len(data)}; "
        "convert the data set again\n"
    )


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("change", [1, -1])
def test_a_count_that_is_wrong_in_the_manifest_is_integrity(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path, which: int, change: int
) -> None:
    source = Path(shutil.copytree(own, tmp_path / "source"))
    fields = json.loads((source / "manifest.json").read_text())
    shard = fields["splits"]["train"]["shards"][which]
    shard["examples"] += change
    fields["splits"]["train"]["examples"] += change
    (source / "manifest.json").write_text(json.dumps(fields))
    ran = refused(data_tools, out, source, out)
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {source / shard['file']}: {shard['examples'] - change} records, the "
        f"manifest says {shard['examples']}; convert the data set again\n",
    )


@pytest.mark.parametrize(
    "flags",
    [("--charset", "upper"), ("--shape", "2x2x3"), ("--image-key", "a"), ("--label-key", "a"),
     ("--split", "train=1"), ("--split-files", "a=b"), ("--resize", "4x4"), ("--pad", "9x9"),
     ("--image-encoding", "raw"), ("--transcode",)],
    ids=lambda flags: flags[0],
)  # fmt: skip
def test_a_flag_of_files_is_refused_with_a_data_set(
    data_tools: Tools, own: Path, out: Path, flags: tuple[str, ...]
) -> None:
    ran = refused(data_tools, out, own, out, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {flags[0]}: it is for TFRecord files; a data set keeps what it "
        "holds; leave it out\n",
    )


def test_a_set_is_never_replaced_by_itself_or_unasked(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path
) -> None:
    source = Path(shutil.copytree(own, tmp_path / "source"))
    before = files_of(source)
    ran = data_tools("reshard", source, source, "--overwrite")
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: {source}: it holds the source; choose another folder\n"
    )  # fmt: skip
    assert files_of(source) == before
    made(data_tools, source, out)
    ran = data_tools("reshard", source, out, "--shards", 1)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {out}: it exists already; choose another folder or pass --overwrite\n",
    )
    made(data_tools, source, out, "--shards", 1, "--overwrite")
    assert len(manifest.load(out).splits["train"].shards) == 1


# The course's layout


def test_the_courses_layout_becomes_a_set_of_captchas(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    made(data_tools, write(tmp_path / "file", COURSE_RECORDS), out, *COURSE, "--split", "train=1")
    whole = manifest.load(out)
    assert whole.image == ImageSpec(height=12, width=24, channels=3, encoding="raw")
    charset = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert whole.label == LabelSpec(charset=charset, min_length=4, max_length=4, case="keep")
    assert data_tools("verify", out, "--deep").rc == 0
    for ours, theirs in zip(read_set(out)["train"], COURSE_RECORDS, strict=True):
        assert (ours["image"], ours["label"]) == (theirs["image"], theirs["label"])
        assert ours["text"].decode() == "".join(charset[value] for value in theirs["label"])


def test_grey_raw_images_keep_one_channel(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    records = [{"image": bytes(range(index, index + 24)), "label": b"\0\1"} for index in range(9)]
    file = write(tmp_path / "file", records)
    made(data_tools, file, out, "--charset", "01", "--shape", "4x6x1")
    assert manifest.load(out).image == ImageSpec(height=4, width=6, channels=1, encoding="raw")
    assert data_tools("verify", out, "--deep").rc == 0
    ran = data_tools("preview", out, "--image", tmp_path / "preview.png")
    assert (ran.rc, ran.stderr) == (0, "")


WRONG_COURSE = {
    "an image of another size": (
        {"image": b"abc", "label": b"\0"}, 3,
        "INPUT", "an image of 3 bytes, --shape 12x24x3 has 864",
    ),
    "a label outside the charset": (
        {"image": bytes(864), "label": b"\0\32"}, 3,
        "LABEL", "label value 26 is outside the charset of 26",
    ),
    "an empty label": ({"image": bytes(864), "label": b""}, 3, "LABEL", "the label is empty"),
    "an int64 as label": (
        {"image": bytes(864), "label": 3}, 3,
        "LABEL", "the label is an int64, with --charset it is one uint8 a character",
    ),
    "no label": (
        {"image": bytes(864), "labels": b"\0"}, 3,
        "INPUT", "no single bytes or int64 feature 'label'; the features are: image (bytes), "
        "labels (bytes)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_COURSE)
def test_a_record_that_does_not_fit_the_layout_is_named_by_file_record_and_byte(
    data_tools: Tools, tmp_path: Path, out: Path, name: str
) -> None:
    record, rc, kind, reason = WRONG_COURSE[name]
    records = [*COURSE_RECORDS[:2], record]
    file = write(tmp_path / "file", records)
    ran = refused(data_tools, out, file, out, *COURSE)
    where = f"{file}:record 2:byte {start_of(records, 2)}"
    assert (ran.rc, ran.stderr) == (rc, f"error: {kind}: {where}: {reason}{FIX}\n")


def test_the_courses_own_file_gives_the_labels_of_its_csv(
    data_tools: Tools, test_data: Path, out: Path
) -> None:
    course = test_data / "tfrecords/course_captcha"
    made(
        data_tools, course / "tfrecords/cifar.tfrecords", out,
        "--charset", "upper", "--shape", "20x80x3", "--split", "train=1",
    )  # fmt: skip
    assert data_tools("verify", out, "--deep").rc == 0
    rows = [line.split(",")[-1] for line in (course / "labels.csv").read_text().split()]
    assert [row["text"].decode() for row in read_set(out)["train"]] == rows


# Examples of other programs


def test_int64_labels_become_classes(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    ran = data_tools("reshard", write(tmp_path / "file", CLASSES), out, *KEYS)
    whole = manifest.load(out)
    assert (whole.kind, whole.classes, whole.label) == ("classes", ("0", "1", "2"), None)
    assert whole.image == ImageSpec(height=12, width=24, channels=3, encoding="png")
    counts = ", ".join(f"{name} {split.examples}" for name, split in whole.splits.items())
    assert ran.stdout == f"{out}: 40 examples (classes): {counts}\n"
    assert data_tools("verify", out, "--deep").rc == 0
    rows = [(row["image"], row["label"]) for rows in read_set(out).values() for row in rows]
    assert sorted(rows) == sorted((of["image"], of["label"]) for of in CLASSES)


def test_text_labels_become_captchas_with_the_smallest_charset(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    made(data_tools, write(tmp_path / "file", TEXTS), out, *KEYS)
    whole = manifest.load(out)
    assert whole.label == LabelSpec(
        charset="0123456789", min_length=4, max_length=4, case="keep"
    )  # fmt: skip
    assert data_tools("verify", out, "--deep").rc == 0
    rows = {row["image"]: row["text"] for rows in read_set(out).values() for row in rows}
    assert rows == {of["image"]: of["label"] for of in TEXTS}


def test_splits_are_those_of_captcha_to_tfrecord(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    labels = {f"{index}.png": f"{index:04d}" for index in range(40)}
    csv = write_captchas(tmp_path / "images", labels)
    for index in range(40):
        (tmp_path / f"images/{index}.png").write_bytes(png(index))
    split = ("--split", "train=0.6,validation=0.2,test=0.2")
    data_tools("captcha-to-tfrecord", tmp_path / "images", csv, tmp_path / "other", *split)
    made(data_tools, write(tmp_path / "file", TEXTS), out, *KEYS, *split)
    assert read_set(out) == read_set(tmp_path / "other")
    assert list(manifest.load(out).splits) == ["train", "validation", "test"]


def test_several_files_and_compressed_ones_are_one_set(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    made(data_tools, write(tmp_path / "all", CLASSES), tmp_path / "one", *KEYS)
    parts = [write(tmp_path / "a", CLASSES[:9]), write(tmp_path / "b", CLASSES[9:30]),
             write(tmp_path / "c", CLASSES[30:])]  # fmt: skip
    parts[1].write_bytes(gzip.compress(parts[1].read_bytes()))
    parts[2].write_bytes(zlib.compress(parts[2].read_bytes()))
    made(data_tools, *parts, out, *KEYS)
    assert files_of(out) == files_of(tmp_path / "one")


def test_raw_images_with_text_labels_need_the_shape(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    records = [{"pixels": pixels(index).tobytes(), "text": b"AB"} for index in range(9)]
    file = write(tmp_path / "file", records)
    keys = ("--image-key", "pixels", "--label-key", "text")
    made(data_tools, file, out, *keys, "--shape", "12x24x3")
    assert manifest.load(out).image.encoding == "raw"
    assert data_tools("verify", out, "--deep").rc == 0


def test_images_that_decoders_disagree_on_become_png(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    path = tmp_path / "alpha.png"
    picture = draw(1).convert("RGBA")
    picture.putalpha(128)
    picture.save(path)
    jpeg = images.encode_jpeg(pixels(2))
    records = [{"image": path.read_bytes(), "label": 0}, {"image": jpeg, "label": 1}]
    made(data_tools, write(tmp_path / "file", records), out, *KEYS, "--split", "train=1")
    assert manifest.load(out).image.encoding == "mixed"
    first, second = read_set(out)["train"]
    assert second["image"] == jpeg
    expected = images.decode(path.read_bytes(), "alpha.png")
    np.testing.assert_array_equal(images.decode(first["image"], "first"), expected)


def test_images_of_several_sizes_are_refused_with_a_table(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    big = images.encode_png(np.zeros((5, 7, 3), np.uint8))
    records = [*CLASSES[:4], {"image": big, "label": 1}]
    file = write(tmp_path / "file", records)
    ran = refused(data_tools, out, file, out, *KEYS, "--split", "train=1")
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"4 of 24x12, first {file}:record 0:byte 0",
        f"1 of 7x5, first {file}:record 4:byte {start_of(records, 4)}",
        f"error: INPUT: {file}: images of 2 sizes, a data set has one; "
        "pass --resize 24x12 or --pad 24x12, or convert each size to its own data set",
    ]
    for flag in ("--resize", "--pad"):
        made(data_tools, file, out, *KEYS, flag, "24x12", "--overwrite")
        assert data_tools("verify", out, "--deep").rc == 0


def test_other_formats_need_a_flag(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    draw(1).save(tmp_path / "0.bmp")
    record = {"image": (tmp_path / "0.bmp").read_bytes(), "label": 1}
    file = write(tmp_path / "file", [record])
    ran = refused(data_tools, out, file, out, *KEYS)
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {file}:record 0:byte 0: BMP is neither JPEG nor PNG; "
        "pass --transcode to store it as PNG\n",
    )
    made(data_tools, file, out, *KEYS, "--transcode", "--image-encoding", "raw")
    (row,) = itertools.chain.from_iterable(read_set(out).values())
    assert row["image"] == pixels(1).tobytes()


@pytest.mark.parametrize("flags", [("--resize", "4x4"), ("--image-encoding", "raw")])
def test_raw_images_stay_as_they_are(
    data_tools: Tools, tmp_path: Path, out: Path, flags: tuple[str, str]
) -> None:
    file = write(tmp_path / "file", COURSE_RECORDS)
    ran = refused(data_tools, out, file, out, *COURSE, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {flags[0]}: it is for JPEG and PNG, not for raw images; leave it out\n",
    )


def test_files_keep_their_splits(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    parts = {"my-train-0": CLASSES[:9], "my-test": CLASSES[9:12], "my-train-1": CLASSES[12:]}
    files = [write(tmp_path / name, records) for name, records in parts.items()]
    names = ("--split-files", "*-train-?=train,my-test=test")
    made(data_tools, *files, out, *KEYS, *names, "--shards", 2)
    assert list(manifest.load(out).splits) == ["train", "test"]
    found = {name: [row["image"] for row in rows] for name, rows in read_set(out).items()}
    assert found == {
        "train": [of["image"] for of in CLASSES[:9] + CLASSES[12:]],
        "test": [of["image"] for of in CLASSES[9:12]],
    }
    assert data_tools("verify", out, "--deep").rc == 0


WRONG_SPLIT_FILES = {
    "train": "'train' is not a list of names and splits; write it like 'train*=train,test*=test'",
    "a=train": "file fits no name; give each file one split",
    "file=train,f*=test": "file fits several splits; give each file one split",
    "file=train,other=test": "no file is named other; check the names",
    "file=tr/ain": "'file=tr/ain' is not a list of names and splits; "
    "write it like 'train*=train,test*=test'",
}


@pytest.mark.parametrize("text", WRONG_SPLIT_FILES)
def test_split_files_that_do_not_fit_the_files_are_config(
    data_tools: Tools, tmp_path: Path, out: Path, text: str
) -> None:
    file = write(tmp_path / "file", CLASSES)
    ran = refused(data_tools, out, file, out, *KEYS, "--split-files", text)
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: --split-files: {WRONG_SPLIT_FILES[text]}\n"
    )  # fmt: skip


def test_a_split_without_examples_is_input(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    files = [write(tmp_path / "train", CLASSES), write(tmp_path / "test", [])]
    ran = refused(data_tools, out, *files, out, *KEYS, "--split-files", "train=train,test=test")
    assert (ran.rc, ran.stderr) == (
        3, "error: INPUT: 2 files: no examples for the split 'test'; see --split-files\n"
    )  # fmt: skip


def test_all_faults_are_told_in_the_order_of_the_records(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    records = [
        {"image": b"hello", "label": 1}, CLASSES[0], {"image": png(1), "label": -1},
        {"image": png(2)[:-9], "label": 2}, {"image": png(1), "label": 65536},
    ]  # fmt: skip
    file = write(tmp_path / "file", records)
    ran = refused(data_tools, out, file, out, *KEYS)
    at = [f"{file}:record {index}:byte {start_of(records, index)}: " for index in range(5)]
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        at[0] + "the content is neither JPEG nor PNG",
        at[2] + "class -1 is outside 0 to 65535",
        at[3] + "the PNG is cut short",
        at[4] + "class 65536 is outside 0 to 65535",
        f"error: INPUT: {file}: 4 of 5 records can't be used; replace the file",
    ]


WRONG_LABELS = {
    "texts and classes": (
        [{"image": png(0), "label": 1}, {"image": png(1), "label": b"A"}],
        "LABEL: {}: some labels are texts and some are numbers of classes; "
        "convert each kind by itself",
    ),
    "too many characters": (
        [{"image": png(0), "label": "".join(map(chr, range(0x4E00, 0x4F01))).encode()}],
        "LABEL: {}: 257 different characters, at most 256 can be told; "
        "check that --label-key names the label",
    ),
    "no UTF-8": (
        [{"image": png(0), "label": b"\xff"}],
        "LABEL: {}:record 0:byte 0: 'utf-8' codec can't decode byte 0xff in position 0: "
        "invalid start byte" + FIX,
    ),
    "a line break": (
        [{"image": png(0), "label": b"A\nB"}],
        "LABEL: {}:record 0:byte 0: label 'A\\nB' has characters that can't be printed" + FIX,
    ),
}


@pytest.mark.parametrize("name", WRONG_LABELS)
def test_labels_that_make_no_set_are_one_line(
    data_tools: Tools, tmp_path: Path, out: Path, name: str
) -> None:
    records, message = WRONG_LABELS[name]
    file = write(tmp_path / "file", records)
    ran = refused(data_tools, out, file, out, *KEYS)
    assert (ran.rc, ran.stderr) == (3, f"error: {message.format(file)}\n")


def test_a_wrong_key_names_the_features_and_reads_no_more_than_it_must(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    record = {"image": png(0), "label": 1, "scores": [1, 2], "none": []}
    file = write(tmp_path / "file", [record] * 1500)
    ran = refused(data_tools, out, file, out, "--image-key", "img", "--label-key", "label")
    lines = ran.stderr.splitlines()
    assert (ran.rc, len(lines)) == (3, 52)
    assert lines[0] == (
        f"{file}:record 0:byte 0: no single bytes feature 'img'; the features are: "
        "image (bytes), label (int64), none (empty), scores (2 x int64)"
    )
    assert lines[-2:] == [
        "... 1000 faults, 50 shown",
        f"error: INPUT: {file}: at least 1000 records can't be used{FIX}",
    ]
    ran = refused(data_tools, out, write(file, [{"a": b"raw", "b": 1}] * 1500), out,
                  "--image-key", "a", "--label-key", "b", "--split", "train=1")  # fmt: skip
    lines = ran.stderr.splitlines()
    assert (ran.rc, len(lines)) == (3, 52)
    assert lines[0] == f"{file}:record 0:byte 0: the content is neither JPEG nor PNG"
    assert lines[-1] == (
        f"error: INPUT: {file}: at least 1000 records can't be used; replace the file"
    )


def test_a_record_that_is_no_example_and_a_damaged_file_are_named(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(tfrecord.frame(b"hello"))
    ran = refused(data_tools, out, file, out, *KEYS)
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {file}:record 0:byte 0: not a tf.train.Example: unknown wire type 4{FIX}\n",
    )
    write(file, CLASSES)
    file.write_bytes(file.read_bytes()[:-1])
    ran = refused(data_tools, out, file, out, *KEYS)
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {file}:record 39:byte {start_of(CLASSES, 39)}: the file ends inside "
        "the record; get the file again or convert the data set again\n",
    )


def test_a_file_without_records_is_no_examples(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    file = write(tmp_path / "file", [])
    ran = refused(data_tools, out, file, out, *KEYS)
    assert (ran.rc, ran.stderr) == (3, f"error: INPUT: {file}: no examples; check the files\n")


UNCLEAR = [
    (), ("--shape", "2x2x3"), ("--charset", "upper"), ("--image-key", "image"),
    ("--label-key", "label"), (*KEYS, "--charset", "upper"),
    ("--image-key", "image", *COURSE), ("--label-key", "label", "--shape", "2x2x3"),
]  # fmt: skip


@pytest.mark.parametrize("flags", UNCLEAR, ids=" ".join)
def test_flags_that_do_not_say_what_files_hold_are_config(
    data_tools: Tools, tmp_path: Path, out: Path, flags: tuple[str, ...]
) -> None:
    file = write(tmp_path / "file", CLASSES)
    ran = refused(data_tools, out, file, out, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        "error: CONFIG: command line: the flags don't say what the TFRecord files hold; pass "
        "--charset and --shape, for the course's layout, or --image-key and --label-key\n",
    )


REFUSED_FLAGS = {
    ("--shards", "0"): "--shards is 0; it must be at least 1",
    ("--name", "a/b"): "--name is 'a/b'; it may hold letters, digits, ., - and _",
    ("--shape", "20x80"): "--shape is '20x80'; write it like 20x80x3, of grey 20x80x1",
    ("--shape", "0x80x3"): "--shape is '0x80x3'; write it like 20x80x3, of grey 20x80x1",
    ("--charset", "AA"): "--charset is 'AA'; it names a character twice",
    ("--image-key", "a\udcff"): "--image-key is 'a\\udcff'; not all of it can be printed",
    ("--resize", "4"): "--resize is '4'; write width and height like 80x20",
    ("--split", "a=1", "--split-files", "a=b"): "--split and --split-files are both given; "
    "give one",
}


@pytest.mark.parametrize("flags", REFUSED_FLAGS, ids=" ".join)
def test_a_flag_that_makes_no_sense_is_config(
    data_tools: Tools, tmp_path: Path, out: Path, flags: tuple[str, ...]
) -> None:
    ran = refused(data_tools, out, tmp_path / "file", out, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: command line: {REFUSED_FLAGS[flags]}; see data_tools reshard --help\n",
    )


def test_sources_that_are_not_there_or_mixed_are_named(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path
) -> None:
    file = write(tmp_path / "file", CLASSES)
    for sources, rc, message in (
        ([tmp_path / "no"], 3, f"INPUT: {tmp_path / 'no'}: no such file or folder; check the path"),
        ([file, tmp_path / "." / "file"], 2,
         f"CONFIG: {file}: it is given twice; pass each file once"),
        ([file, own], 2, f"CONFIG: {own}: a folder beside other sources; "
         "pass one folder, or files only"),
        ([], 2, "CONFIG: command line: SRC and OUT are both needed; "
         "see data_tools reshard --help"),
    ):  # fmt: skip
        ran = refused(data_tools, out, *sources, out, *KEYS)
        assert (ran.rc, ran.stderr) == (rc, f"error: {message}\n")


def test_tensorflow_extendeds_cifar_keeps_its_pixels_and_labels(
    tf: ModuleType, tfds: ModuleType, data_tools: Tools, test_data: Path, out: Path
) -> None:
    files = sorted((test_data / "tfrecords/tfx_cifar10").glob("*.tfrecord"))
    made(data_tools, *files, out, *KEYS)
    assert data_tools("verify", out, "--deep").rc == 0
    theirs = {}
    for raw in tf.data.TFRecordDataset(list(map(str, files))):
        of = tf.train.Example.FromString(raw.numpy()).features.feature
        image = tf.io.decode_image(of["image"].bytes_list.value[0], channels=3).numpy()
        theirs[hashlib.sha256(image.tobytes()).digest()] = of["label"].int64_list.value[0]
    builder = tfds.builder_from_directory(str(out))
    ours = {
        hashlib.sha256(row["image"].tobytes()).digest(): row["label"]
        for name in builder.info.splits
        for row in builder.as_dataset(split=name).as_numpy_iterator()
    }
    assert ours == theirs
    assert len(ours) > 200


def test_the_manifest_names_the_flags_and_no_path(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    made(data_tools, write(tmp_path / "file", TEXTS), out, *KEYS, "--shards", 2)
    text = (out / "manifest.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["created_from"]["arguments"] == [
        "--charset=None", "--shape=None", "--image-key=image", "--label-key=label", "--split=None",
        "--split-files=None", "--image-encoding=original", "--transcode=False", "--resize=None",
        "--pad=None", "--shards=2",
    ]  # fmt: skip


def read_by_both(tfds: ModuleType, out: Path) -> Iterator[tuple[dict[str, Any], Any, bytes]]:
    """What TensorFlow Datasets reads of each record, what we do, and the stored image."""
    whole = manifest.load(out)
    config = tfds.ReadConfig(interleave_cycle_length=1)  # the order of the shards
    builder = tfds.builder_from_directory(str(out))
    for name, split in whole.splits.items():
        theirs = builder.as_dataset(split=name, read_config=config).as_numpy_iterator()
        records = itertools.chain.from_iterable(
            tfrecord.read_records(out / shard.file) for shard in split.shards
        )
        for their, (_, record) in zip(theirs, records, strict=True):
            ours = schema.decode_record(record, whole, "here")
            yield their, ours, schema.image_and_text(record, whole, "here")[0]


def distance(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other).max())


@pytest.mark.parametrize("encoding", ["png", "raw"])
def test_tensorflow_datasets_reads_the_pixels_and_labels_that_we_do(
    tfds: ModuleType, data_tools: Tools, tmp_path: Path, out: Path, encoding: str
) -> None:
    image = {"png": png, "raw": lambda seed: pixels(seed).tobytes()}[encoding]
    records = [{"image": image(seed), "label": seed % 3} for seed in range(40)]
    flags = ("--shape", "12x24x3") if encoding == "raw" else ()
    made(data_tools, write(tmp_path / "file", records), out, *KEYS, *flags)
    assert manifest.load(out).image.encoding == encoding
    for their, (image, label), _ in read_by_both(tfds, out):
        np.testing.assert_array_equal(their["image"], image)
        assert their["label"] == label[0]


def test_tensorflow_reads_our_pixels_of_a_jpeg_by_its_accurate_transform(
    tf: ModuleType, tfds: ModuleType, data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    records = [{"image": images.encode_jpeg(pixels(seed)), "label": seed} for seed in range(12)]
    made(data_tools, write(tmp_path / "file", records), out, *KEYS)
    for their, (image, label), data in read_by_both(tfds, out):
        accurate = tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy()
        np.testing.assert_array_equal(accurate, image)
        # TensorFlow Datasets takes the fast one, which is the further off the purer the colors.
        assert distance(their["image"], image) <= 16
        assert their["label"] == label[0]


def test_tensorflow_datasets_reads_real_jpegs_within_4_levels(
    tfds: ModuleType, data_tools: Tools, test_data: Path, out: Path
) -> None:
    course = test_data / "tfrecords/course_captcha"
    ran = data_tools("captcha-to-tfrecord", course / "captchas", course / "labels.csv", out)
    assert ran.rc == 0
    assert manifest.load(out).image.encoding == "jpeg"
    for their, (image, label), _ in read_by_both(tfds, out):
        assert distance(their["image"], image) <= 4
        np.testing.assert_array_equal(their["label"], label)


PICTURES = st.sampled_from([png(0), png(1), images.encode_jpeg(pixels(0)), png(0)[:-20], b"", b"x"])
VALUES = PICTURES | st.binary(max_size=20) | st.text(max_size=5).map(str.encode)
INTS = st.integers(-2, 5) | st.integers(-(2**63), 2**63 - 1)
ANY_RECORDS = st.lists(
    st.builds(
        tfrecord.encode_example,
        st.fixed_dictionaries(
            {"image": VALUES}, optional={"label": VALUES | INTS | st.lists(INTS), "x": INTS}
        ),
    )
    | st.binary(max_size=30),
    max_size=4,
)


@given(records=ANY_RECORDS, course=st.booleans())
def test_any_records_become_a_sound_set_or_are_refused_in_words(
    data_tools: Tools, tmp_path_factory: pytest.TempPathFactory, records: list[bytes], course: bool
) -> None:
    base = tmp_path_factory.mktemp("any")
    (base / "file").write_bytes(b"".join(map(tfrecord.frame, records)))
    flags = ("--charset", "01", "--shape", "1x1x1") if course else KEYS
    ran = data_tools("reshard", base / "file", base / "set", *flags)
    if ran.rc:
        assert (ran.rc, ran.stdout) == (3, "")
        assert re.match("error: (INPUT|LABEL): ", ran.error)
        assert [path.name for path in base.iterdir()] == ["file"]
    else:
        assert data_tools("verify", base / "set", "--deep").rc == 0
    shutil.rmtree(base)
