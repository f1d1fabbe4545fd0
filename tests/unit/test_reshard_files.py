"""`data_tools reshard` of TFRecord files that other programs wrote."""

import gzip
import hashlib
import itertools
import json
import re
import shutil
import zlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_captchas import draw, files_of, read_set, write_captchas
from small_records import (
    CLASSES,
    COURSE,
    COURSE_RECORDS,
    FIX,
    KEYS,
    TEXTS,
    Tools,
    made,
    pixels,
    png,
    refused,
    start_of,
    write,
)

from data_tools import images, manifest, tfrecord
from data_tools.manifest import ImageSpec, LabelSpec

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


def test_a_split_without_examples_is_left_out_and_told(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    bad = {"image": b"hello", "label": 1}
    files = [write(tmp_path / "train", CLASSES), write(tmp_path / "test", [bad])]
    splits = ("--split-files", "train=train,test=test", "--skip-bad")
    ran = data_tools("reshard", *files, out, *KEYS, *splits)
    assert (ran.rc, ran.stderr) == (0, "")
    count = len(CLASSES)
    assert f"{out}: {count} examples (classes): train {count}, test 0 (left out)\n" in ran.stdout
    assert list(manifest.load(out).splits) == ["train"]


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
        f"error: INPUT: {file}: 4 of 5 records can't be used; mend them; "
        "see --image-key, --label-key, --charset and --shape, or pass --skip-bad to leave them out",
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


def test_a_file_without_records_is_integrity(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "file", [])
    for files in ((file,), (write(tmp_path / "good", CLASSES), file)):
        ran = refused(data_tools, out, *files, out, *KEYS)
        assert (ran.rc, ran.stderr) == (
            4, f"error: INTEGRITY: {file}: no records; get the file again\n"
        )  # fmt: skip


def test_an_empty_key_is_config(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "file", CLASSES)
    ran = refused(data_tools, out, file, out, "--image-key", "", "--label-key", "label")
    assert (ran.rc, ran.error) == (
        2, "error: CONFIG: command line: --image-key is empty; see data_tools reshard --help"
    )  # fmt: skip


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
        "--pad=None", "--skip-bad=False", "--shards=2",
    ]  # fmt: skip


def test_skip_bad_leaves_out_what_all_faults_would_be_told_of(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    good = [{"image": png(index), "label": index % 3} for index in range(30)]
    bad = [
        {"image": png(99)[:-9], "label": 1}, {"image": png(98), "label": -1},
        {"image": b"hello", "label": 0}, {"image": png(97), "label": b"A\nB"},
    ]  # fmt: skip
    made(data_tools, write(tmp_path / "good", good), tmp_path / "right", *KEYS)
    write(tmp_path / "file", [*bad, *good])
    ran = data_tools("reshard", tmp_path / "file", out, *KEYS, "--skip-bad", "--json")
    assert (ran.rc, ran.stderr) == (0, "")
    assert json.loads(ran.stdout) == {
        "folder": str(out), "name": "classes", "kind": "classes",
        "splits": {split: len(rows) for split, rows in read_set(out).items()}, "skipped": 4,
    }  # fmt: skip
    assert read_set(out) == read_set(tmp_path / "right")
    starts = [start_of(bad, index) for index in range(4)]
    assert list(manifest.load(out).skipped) == [
        f"file:record 0:byte {starts[0]}: the PNG is cut short",
        f"file:record 1:byte {starts[1]}: class -1 is outside 0 to 65535",
        f"file:record 2:byte {starts[2]}: the content is neither JPEG nor PNG",
        f"file:record 3:byte {starts[3]}: label 'A\\nB' has characters that can't be printed",
    ]
    assert data_tools("verify", out, "--deep").rc == 0
    ran = data_tools("reshard", tmp_path / "file", out, *KEYS, "--skip-bad", "--overwrite")
    assert ran.stdout.splitlines()[1:] == ["skipped 4 records, listed in the manifest"]


def test_skip_bad_of_nothing_good_and_of_more_faults_than_are_told_of(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    bad = [{"image": png(0)[:-9], "label": 1}] * 1200
    file = write(tmp_path / "file", bad)
    ran = refused(data_tools, out, file, out, *KEYS, "--skip-bad")
    assert (ran.rc, ran.error) == (
        3,
        f"error: INPUT: {file}: at least 1000 records can't be used; replace the file",
    )
    write(file, [*bad, {"image": png(1), "label": 0}, {"image": png(2), "label": 0}])
    made(data_tools, file, out, *KEYS, "--skip-bad", "--split", "train=1")
    assert len(manifest.load(out).skipped) == 1200
    assert len(read_set(out)["train"]) == 2


@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_classes_have_the_names_of_a_file(
    data_tools: Tools, tmp_path: Path, out: Path, kind: str
) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes("\ufeffcat\r\nhot dog\r\nзаяц\r\n\r\n".encode())
    label = {"numbers": lambda n: n, "texts": lambda n: ["cat", "hot dog", "заяц"][n].encode()}
    records = [{"image": png(index), "label": label[kind](index % 3)} for index in range(12)]
    flags = (*KEYS, "--classes", names, "--split", "train=1")
    made(data_tools, write(tmp_path / "file", records), out, *flags)
    assert manifest.load(out).classes == ("cat", "hot dog", "заяц")
    assert str(tmp_path) not in (out / "manifest.json").read_text()
    assert [row["label"] for row in read_set(out)["train"]] == [index % 3 for index in range(12)]
    assert data_tools("verify", out, "--deep").rc == 0


WRITE_NAMES = "write the name of each class on a line of its own"
WRONG_NAMES = {
    b"": ("LABEL: {file}:record 0:byte 0: class 1 has no name, --classes has 0", FIX[2:]),
    b"cat\n\ndog": ("INPUT: {names}:row 2: the name ''", WRITE_NAMES),
    b"cat\ndog\ncat": (
        "INPUT: {names}:row 3: the name 'cat' again", WRITE_NAMES
    ),
    b"a\x00b": ("INPUT: {names}:row 1: the name 'a\\x00b'", WRITE_NAMES),
    b"cat\n\xff": ("INPUT: {names}:byte 4: the names are not UTF-8", "save them as UTF-8"),
    b"cat": ("LABEL: {file}:record 0:byte 0: class 1 has no name, --classes has 1", FIX[2:]),
}  # fmt: skip


@pytest.mark.parametrize("data", WRONG_NAMES)
def test_names_that_do_not_fit_are_one_line(
    data_tools: Tools, tmp_path: Path, out: Path, data: bytes
) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(data)
    file = write(tmp_path / "file", [{"image": png(0), "label": 1}])
    ran = refused(data_tools, out, file, out, *KEYS, "--classes", names)
    reason, fix = WRONG_NAMES[data]
    assert ran.stderr == f"error: {reason.format(names=names, file=file)}; {fix}\n"


def test_a_text_that_is_no_name_of_a_class_is_label(
    data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    file = write(tmp_path / "file", [{"image": png(0), "label": b"cow"}])
    ran = refused(data_tools, out, file, out, *KEYS, "--classes", tmp_path / "names.txt")
    assert ran.stderr == (
        f"error: LABEL: {file}:record 0:byte 0: label 'cow' is none of the 2 names of --classes"
        f"{FIX}\n"
    )
    ran = refused(data_tools, out, file, out, *KEYS, "--classes", tmp_path / "nowhere")
    assert ran.stderr == (
        f"error: INPUT: {tmp_path / 'nowhere'}: No such file or directory; "
        "check that the path exists and its permissions\n"
    )


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
        assert (ran.rc, ran.stdout) == (3 if records else 4, "")
        assert re.match("error: (INPUT|LABEL): " if records else "error: INTEGRITY: ", ran.error)
        assert [path.name for path in base.iterdir()] == ["file"]
    else:
        assert data_tools("verify", base / "set", "--deep").rc == 0
    shutil.rmtree(base)
