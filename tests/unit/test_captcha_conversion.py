"""From a folder of captchas to a data set: its files, splits and images, and faults of images."""

import hashlib
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from small_captchas import (
    DIGITS,
    MISSING_FIX,
    ROWS_FIX,
    UPPER,
    Ran,
    csv_gives,
    draw,
    files_of,
    read_set,
    texts,
    write_captchas,
)

from data_tools import manifest, schema, tfrecord

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
LABELS = [f"{UPPER[i % 26]}{UPPER[i // 26]}{UPPER[i * 7 % 26]}Z" for i in range(60)]


# The data set that comes out


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, run_cli: RunCli) -> tuple[Path, Path]:
    """(images, data set) of 60 captchas and copies of 20 of them, by the command as users run it.

    The labels are in the CSV in an order that is neither that of names nor of numbers.
    """
    base = tmp_path_factory.mktemp("converted")
    folder = base / "images"
    csv = write_captchas(folder, LABELS)
    rows = csv.read_text().splitlines()
    for original in range(0, 60, 3):
        shutil.copy(folder / f"{original}.jpg", folder / f"{original + 100}.jpg")
        rows.append(f"{original + 100},{LABELS[original]}")
    random.Random(0).shuffle(rows)
    csv.write_text("\n".join(rows) + "\n")
    ran = run_cli(
        ["python", "-m", "data_tools", "captcha-to-tfrecord", folder, csv, base / "set",
         "--workers", 2]
    )  # fmt: skip
    assert (ran.rc, ran.stderr) == (0, "")
    return folder, base / "set"


def test_the_folder_holds_the_shards_the_offsets_and_three_json_files(
    converted: tuple[Path, Path],
) -> None:
    _, out = converted
    names = {path.name for path in out.iterdir()}
    shards = {shard.file for split in manifest.load(out).splits.values() for shard in split.shards}
    assert names == shards | {
        "manifest.json", "features.json", "dataset_info.json", "offsets-train.npy",
        "offsets-test.npy",
    }  # fmt: skip


def test_shards_are_named_as_tfds_does_and_none_is_empty(converted: tuple[Path, Path]) -> None:
    _, out = converted
    for name, split in manifest.load(out).splits.items():
        assert [shard.file for shard in split.shards] == [
            f"captcha-{name}.tfrecord-{index:05d}-of-{len(split.shards):05d}"
            for index in range(len(split.shards))
        ]
        assert all(shard.examples > 0 for shard in split.shards)
    assert len(manifest.load(out).splits["train"].shards) == 4


def test_counts_sizes_and_hashes_of_the_manifest_agree_with_the_files(
    converted: tuple[Path, Path],
) -> None:
    _, out = converted
    splits = manifest.load(out).splits
    assert list(splits) == ["train", "test"]
    assert sum(split.examples for split in splits.values()) == 80
    for split in splits.values():
        assert split.examples == sum(shard.examples for shard in split.shards)
        for shard in split.shards:
            data = (out / shard.file).read_bytes()
            assert shard.bytes == len(data)
            assert shard.sha256 == hashlib.sha256(data).hexdigest()
            assert shard.examples == len(list(tfrecord.read_records(out / shard.file)))


def test_the_offsets_are_where_the_records_of_the_joined_shards_start_and_the_end(
    converted: tuple[Path, Path],
) -> None:
    _, out = converted
    for split in manifest.load(out).splits.values():
        joined = b"".join((out / shard.file).read_bytes() for shard in split.shards)
        (joined_path := out.parent / "joined").write_bytes(joined)
        starts = [start for start, _ in tfrecord.read_records(joined_path)]
        offsets = np.load(out / split.offsets, allow_pickle=False)
        assert offsets.dtype == np.int64
        assert offsets.tolist() == [*starts, len(joined)]


def test_the_manifest_says_what_was_found(converted: tuple[Path, Path]) -> None:
    found = manifest.load(converted[1])
    assert (found.name, found.kind, found.classes, found.skipped) == (
        "captcha",
        "captcha",
        None,
        (),
    )
    assert found.image == manifest.ImageSpec(height=12, width=24, channels=3, encoding="jpeg")
    assert found.label == manifest.LabelSpec(charset=UPPER, min_length=4, max_length=4, case="keep")


def test_records_hold_the_original_bytes_and_one_uint8_a_character(
    converted: tuple[Path, Path],
) -> None:
    folder, out = converted
    originals = {path.read_bytes() for path in folder.iterdir()}
    label_of = {(folder / f"{i}.jpg").read_bytes(): label for i, label in enumerate(LABELS)}
    rows = [row for rows in read_set(out).values() for row in rows]
    assert {row["image"] for row in rows} == originals
    for row in rows:
        assert sorted(row) == ["image", "label", "text"]
        assert row["text"].decode() == label_of[row["image"]]
        assert row["label"] == bytes(UPPER.index(letter) for letter in label_of[row["image"]])


def test_records_of_a_split_are_in_the_order_of_the_csv(converted: tuple[Path, Path]) -> None:
    folder, out = converted
    ids = [row.split(",")[0] for row in (folder.parent / "labels.csv").read_text().splitlines()]
    in_csv = [(folder / f"{name}.jpg").read_bytes() for name in ids]
    for rows in read_set(out).values():
        stored = [row["image"] for row in rows]
        assert stored == [image for image in in_csv if image in set(stored)]


def test_copies_of_an_image_are_in_one_split(converted: tuple[Path, Path]) -> None:
    _, out = converted
    train, test = ({row["image"] for row in rows} for rows in read_set(out).values())
    assert not train & test


def test_every_record_decodes_with_the_manifest(converted: tuple[Path, Path]) -> None:
    _, out = converted
    whole = manifest.load(out)
    for rows in whole.splits.values():
        for shard in rows.shards:
            for _, record in tfrecord.read_records(out / shard.file):
                pixels, label = schema.decode_record(record, whole, shard.file)
                text = tfrecord.decode_example(record)["text"][0].decode()
                assert schema.decode_label(label.tolist(), UPPER) == text
                assert pixels.shape == (12, 24, 3)


def test_tensorflow_reads_the_shards(tf: ModuleType, converted: tuple[Path, Path]) -> None:
    _, out = converted
    split = manifest.load(out).splits["train"]
    spec = {name: tf.io.FixedLenFeature([], tf.string) for name in ("image", "label", "text")}
    dataset = tf.data.TFRecordDataset([str(out / shard.file) for shard in split.shards])
    theirs = [
        {name: value.numpy() for name, value in tf.io.parse_single_example(record, spec).items()}
        for record in dataset
    ]
    assert theirs == read_set(out)["train"]


@pytest.mark.parametrize(
    ("suffix", "flags"),
    [
        ("png", ()),
        ("jpg", ("--image-encoding", "raw")),
        ("jpg", ()),
        ("jpg and png", ("--variable-length",)),
    ],
)
def test_tensorflow_datasets_opens_the_folder_with_equal_pixels_and_labels(
    tf: ModuleType, tfds: ModuleType, convert: Tools, folder: Path, out: Path,
    suffix: str, flags: tuple[str, ...],
) -> None:  # fmt: skip
    names = [f"{index}.{suffix.split()[-(index % 2)]}" for index in range(20)]
    labels = [label[: 3 if "--variable-length" in flags and label < "N" else 4] for label in LABELS]
    write_captchas(folder, dict(zip(names, labels, strict=False)))
    assert convert("--shards", 2, *flags).rc == 0
    whole = manifest.load(out)
    builder = tfds.builder_from_directory(str(out))
    config = tfds.ReadConfig(interleave_cycle_length=1)  # the order of the shards
    for name, rows in read_set(out).items():
        assert builder.info.splits[name].num_examples == whole.splits[name].examples == len(rows)
        theirs = builder.as_dataset(split=name, read_config=config).as_numpy_iterator()
        for their, row in zip(theirs, rows, strict=True):
            pixels = (
                np.frombuffer(row["image"], np.uint8).reshape(12, 24, 3)
                if whole.image.encoding == "raw"
                else tf.io.decode_image(row["image"], channels=3).numpy()
            )
            np.testing.assert_array_equal(their["image"], pixels)
            np.testing.assert_array_equal(their["label"], np.frombuffer(row["label"], np.uint8))
            assert their["label"].dtype == their["image"].dtype == np.uint8
            assert their["text"] == row["text"]


def test_raw_encoding_stores_the_pixels_that_pillow_decodes(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, LABELS[:6])
    assert convert("--image-encoding", "raw", "--split", "train=1").rc == 0
    assert manifest.load(out).image.encoding == "raw"
    for index, row in enumerate(read_set(out)["train"]):
        with Image.open(folder / f"{index}.jpg") as image:
            assert row["image"] == np.asarray(image.convert("RGB")).tobytes()


def test_jpegs_and_pngs_in_one_folder_are_kept_and_other_pngs_become_rgb(
    convert: Tools, folder: Path, out: Path
) -> None:
    csv = write_captchas(folder, {"0.jpg": "AB", "1.png": "CD", "2.png": "EF"})
    draw(2).convert("RGBA").save(folder / "2.png")
    assert csv.exists()
    assert convert("--split", "train=1").rc == 0
    assert manifest.load(out).image.encoding == "mixed"
    rows = read_set(out)["train"]
    assert rows[0]["image"] == (folder / "0.jpg").read_bytes()
    assert rows[1]["image"] == (folder / "1.png").read_bytes()
    with Image.open(io.BytesIO(rows[2]["image"])) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        np.testing.assert_array_equal(np.asarray(image), np.asarray(draw(2)))


def test_png_named_jpg_is_read_by_its_content(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, ["AB"])
    draw(0).save(folder / "0.jpg", "PNG")
    assert convert("--split", "train=1").rc == 0
    assert manifest.load(out).image.encoding == "png"
    assert read_set(out)["train"][0]["image"] == (folder / "0.jpg").read_bytes()


# The split


def test_the_split_is_near_its_fractions_and_stays_when_files_are_added(
    convert: Tools, data_tools: Tools, folder: Path, out: Path, tmp_path: Path
) -> None:
    csv = write_captchas(folder, [f"{index:04d}" for index in range(400)])
    assert convert().rc == 0
    small = read_set(out)
    assert 20 <= len(small["test"]) <= 65
    for index in range(400, 500):
        draw(index).save(folder / f"{index}.jpg", quality=90)
    rows = [f"{index},{index:04d}\n" for index in range(500)]
    random.Random(0).shuffle(rows)
    csv.write_text("".join(rows))
    assert data_tools("captcha-to-tfrecord", folder, csv, tmp_path / "more").rc == 0
    more = read_set(tmp_path / "more")
    for name, found in small.items():
        assert {row["text"] for row in found} <= {row["text"] for row in more[name]}


def test_three_splits_are_written_in_the_order_they_were_named(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, [f"{index:03d}" for index in range(100)])
    assert convert("--split", "train=0.6,validation=0.2,test=0.2").rc == 0
    counts = {name: split.examples for name, split in manifest.load(out).splits.items()}
    assert list(counts) == ["train", "validation", "test"]
    assert sum(counts.values()) == 100
    assert counts["train"] > counts["validation"] > 5 < counts["test"]


@pytest.mark.parametrize(
    "split",
    ["", "train", "train=", "=1", "train=x", "train=0.5", "train=0.5,test=0.6", "train=-1,test=2",
     "train=0.5,train=0.5", "train=nan", "train=inf", "a/b=1", "../a=1", "train=1,"],
)  # fmt: skip
def test_a_split_that_makes_no_sense_is_config(convert: Tools, folder: Path, split: str) -> None:
    write_captchas(folder, LABELS[:2])
    ran = convert("--split", split)
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: --split: {split!r} is not a list of splits whose shares sum up to 1; "
        "write it like train=0.8,validation=0.1,test=0.1\n"
    )


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--shards", 0, "--shards is 0; it must be at least 1"),
        ("--shards", -1, "--shards is -1; it must be at least 1"),
        ("--workers", 0, "--workers is 0; it must be at least 1"),
        ("--length", 0, "--length is 0; it must be at least 1"),
        ("--charset", "", "--charset has 0 characters; 1 to 256 can be told"),
        ("--charset", "ABA", "--charset is 'ABA'; it names a character twice"),
        ("--name", "", "--name is ''; it may hold letters, digits, ., - and _"),
        ("--name", "a/b", "--name is 'a/b'; it may hold letters, digits, ., - and _"),
        ("--name", "..", "--name is '..'; it may hold letters, digits, ., - and _"),
    ],
)
def test_a_flag_that_makes_no_sense_is_config_naming_the_flag(
    convert: Tools, folder: Path, flag: str, value: object, reason: str
) -> None:
    write_captchas(folder, LABELS[:2])
    ran = convert(flag, value)
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: command line: {reason}; see data_tools captcha-to-tfrecord --help\n"
    )


@pytest.mark.parametrize(("flag", "value"), [("--case", "title"), ("--image-encoding", "gif")])
def test_a_choice_there_is_not_is_config_naming_the_flag_and_the_choices(
    convert: Tools, folder: Path, flag: str, value: str
) -> None:
    write_captchas(folder, LABELS[:2])
    ran = convert(flag, value)
    choices = {"--case": ("keep", "upper", "lower"), "--image-encoding": ("original", "raw")}[flag]
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: command line: invalid choice '{value}' for argument '{flag}'. Expected "
        f"one of {choices}; see data_tools captcha-to-tfrecord --help\n"
    )


@pytest.mark.parametrize("shards", [1, 3, 7, 100])
def test_any_number_of_shards_holds_the_same_records_in_the_same_order(
    convert: Tools, folder: Path, out: Path, shards: int
) -> None:
    write_captchas(folder, LABELS[:7])
    assert convert("--shards", shards, "--split", "all=1").rc == 0
    found = manifest.load(out).splits["all"].shards
    assert [shard.file for shard in found] == [
        f"captcha-all.tfrecord-{index:05d}-of-{len(found):05d}" for index in range(len(found))
    ]
    assert [row["text"].decode() for row in read_set(out)["all"]] == LABELS[:7]
    assert len(found) == min(shards, 7)


# The same input gives the same bytes


def test_the_folder_is_byte_identical_for_any_creation_order_workers_hash_seed_and_locale(
    run_cli: RunCli, converted: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, first = converted
    csv = folder.parent / "labels.csv"
    for workers, seed, locale in ((1, "0", "C"), (2, "1", "POSIX"), (3, "2", "C.UTF-8")):
        copy = tmp_path / f"images {workers}"
        copy.mkdir()
        names = sorted(path.name for path in folder.iterdir())
        random.Random(workers).shuffle(names)
        for name in names:
            shutil.copyfile(folder / name, copy / name)
        out = tmp_path / f"set {workers}"
        ran = run_cli(
            ["python", "-m", "data_tools", "captcha-to-tfrecord", copy, csv, out,
             "--workers", workers],
            env={"PYTHONHASHSEED": seed, "LC_ALL": locale, "LANG": locale},
        )  # fmt: skip
        assert ran.rc == 0, ran.stderr
        assert files_of(out) == files_of(first)


def test_the_manifest_names_no_folder_of_the_machine_it_was_made_on(
    converted: tuple[Path, Path],
) -> None:
    folder, out = converted
    for data in files_of(out).values():
        assert str(folder.parent).encode() not in data


# Faults of images, and several at once


def test_a_cut_jpeg_is_input_with_its_name(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB", "CD"])
    data = (folder / "1.jpg").read_bytes()
    (folder / "1.jpg").write_bytes(data[:-2])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder / '1.jpg'}: the JPEG is cut short, its end marker is missing; "
        "replace the file\n"
    )


@pytest.mark.parametrize("format", ["BMP", "GIF", "WEBP"])
def test_another_format_named_jpg_is_input_with_its_name(
    convert: Tools, folder: Path, format: str
) -> None:
    write_captchas(folder, ["AB", "CD"])
    draw(1).save(folder / "1.jpg", format)
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder / '1.jpg'}: {format} is neither JPEG nor PNG; "
        "pass --transcode to store it as PNG\n"
    )


UNREADABLE = {
    "a folder": "not a file; replace the file",
    "a dangling link": "No such file or directory; check that the path exists and its permissions",
    "an empty file": "the file is empty; replace the file",
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_readable_file_is_input_with_its_name(
    convert: Tools, folder: Path, what: str
) -> None:
    write_captchas(folder, ["AB", "CD"])
    path = folder / "1.jpg"
    path.unlink()
    make = {"a folder": path.mkdir, "a dangling link": lambda: path.symlink_to("nowhere")}
    make.get(what, path.touch)()
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr == f"error: INPUT: {path}: {UNREADABLE[what]}\n"


def test_mixed_sizes_are_input_with_a_table_of_sizes(convert: Tools, folder: Path) -> None:
    write_captchas(folder, LABELS[:6])
    for index, size in ((1, (30, 12)), (2, (30, 12)), (5, (24, 13))):
        draw(index, width=size[0], height=size[1]).save(folder / f"{index}.jpg")
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        "3 of 24x12, first 0.jpg",
        "2 of 30x12, first 1.jpg",
        "1 of 24x13, first 5.jpg",
        f"error: INPUT: {folder}: images of 3 sizes, a data set has one; "
        "pass --resize 24x12 or --pad 30x13, or convert each size to its own data set",
    ]


def faulty(folder: Path) -> None:
    """Six images and as many rows: one good, and one of each fault."""
    csv = write_captchas(folder, ["ABCD", "ABCD", "AB_D", "ABCD", "ABC", "ABCD"])
    (folder / "1.jpg").write_bytes((folder / "1.jpg").read_bytes()[:-2])
    (folder / "3.jpg").unlink()
    (folder / "5.jpg").write_text("hello")
    assert csv.exists()


def test_all_faults_of_a_run_are_told_in_the_order_of_the_csv_and_counted(
    convert: Tools, folder: Path
) -> None:
    faulty(folder)
    ran = convert("--charset", "upper", "--length", 4)
    assert ran.rc == 3
    csv = folder.parent / "labels.csv"
    assert ran.stderr.splitlines() == [
        f"{folder / '1.jpg'}: the JPEG is cut short, its end marker is missing",
        f"{csv}:row 3: 2.jpg: label 'AB_D' has '_', which is not of '{UPPER}'",
        f"{csv}:row 4: no image '3'",
        f"{csv}:row 5: 4.jpg: label 'ABC' has 3 characters in place of 4",
        f"{folder / '5.jpg'}: the content is neither JPEG nor PNG",
        f"error: INPUT: {csv}: 5 of 6 rows can't be used; {ROWS_FIX}",
    ]


def test_of_more_than_50_faults_50_are_shown_and_all_are_counted(
    convert: Tools, folder: Path
) -> None:
    write_captchas(folder, ["AB"])
    rows = ["0,AB", *(f"{index},AB" for index in range(1, 61))]
    ran = csv_gives(convert, folder, "\n".join(rows).encode())
    csv = folder.parent / "labels.csv"
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        *(f"{csv}:row {index + 1}: no image '{index}'" for index in range(1, 51)),
        "... 60 faults, 50 shown",
        f"error: INPUT: {csv}: 60 of 61 rows can't be used; {MISSING_FIX}",
    ]


def test_skip_bad_converts_the_good_and_names_and_counts_the_bad(
    convert: Tools, folder: Path, out: Path
) -> None:
    faulty(folder)
    ran = convert("--charset", "upper", "--length", 4, "--skip-bad")
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["ABCD"]
    assert "skipped 5 rows, listed in the manifest: 3 INPUT, 2 LABEL\n" in ran.stdout
    assert manifest.load(out).skipped == (
        "row 2: the JPEG is cut short, its end marker is missing",
        f"row 3: 2.jpg: label 'AB_D' has '_', which is not of '{UPPER}'",
        "row 4: no image '3'",
        "row 5: 4.jpg: label 'ABC' has 3 characters in place of 4",
        "row 6: the content is neither JPEG nor PNG",
    )


def test_skip_bad_with_no_good_row_is_input_no_examples(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB"])
    (folder / "0.jpg").unlink()
    ran = convert("--skip-bad")
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{folder.parent / 'labels.csv'}:row 1: no image '0'",
        f"error: INPUT: {folder}: no examples; mend the rows listed above",
    ]


def test_control_characters_of_a_csv_do_not_reach_the_terminal(
    convert: Tools, folder: Path
) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b'0,AB\n"7\x1b[2J\n8",CD\n9,"E\nF"\n')
    assert ran.rc == 3
    csv = folder.parent / "labels.csv"
    assert ran.stderr.splitlines() == [
        f"{csv}:row 3: no image '7\\x1b[2J\\n8'",
        f"{csv}:row 5: no image '9'",
        f"error: INPUT: {csv}: 2 of 3 rows can't be used; {MISSING_FIX}",
    ]


def test_one_captcha_is_a_data_set(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, ["AB"])
    assert convert().rc == 0
    assert texts(out) == ["AB"]


# Real captchas


def test_genpics_digits_convert_with_crlf_labels(
    captcha_sets: Path, data_tools: Tools, tmp_path: Path
) -> None:
    source, out = captcha_sets / "genpics_digits", tmp_path / "set"
    assert b"\r\n" in (source / "labels.csv").read_bytes()
    ran = data_tools("captcha-to-tfrecord", source, source / "labels.csv", out)
    assert ran.rc == 0, ran.stderr
    whole = manifest.load(out)
    assert whole.image == manifest.ImageSpec(height=24, width=60, channels=3, encoding="jpeg")
    assert whole.label == manifest.LabelSpec(
        charset=DIGITS, min_length=4, max_length=4, case="keep"
    )
    assert sum(split.examples for split in whole.splits.values()) == 5000
    assert 420 <= whole.splits["test"].examples <= 580
    train, test = ({row["image"] for row in rows} for rows in read_set(out).values())
    assert not train & test
    rows = (source / "labels.csv").read_text().splitlines()
    in_csv = {
        (source / f"{name}.jpg").read_bytes(): label
        for name, label in (row.split(",") for row in rows)
    }
    for rows in read_set(out).values():
        for row in rows:
            assert row["text"].decode() == in_csv[row["image"]]


def test_the_courses_captchas_give_the_labels_of_its_own_tfrecord(
    test_data: Path, data_tools: Tools, tmp_path: Path
) -> None:
    course, out = test_data / "tfrecords/course_captcha", tmp_path / "set"
    ran = data_tools(
        "captcha-to-tfrecord", course / "captchas", course / "labels.csv", out,
        "--image-encoding", "raw", "--split", "train=1",
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    ours = read_set(out)["train"]
    theirs = [
        tfrecord.decode_example(record)
        for _, record in tfrecord.read_records(course / "tfrecords/cifar.tfrecords")
    ]
    assert list(ours[0]["label"]) == [18, 3, 2, 21]
    for our, their in zip(ours, theirs, strict=True):
        assert our["label"] == their["label"][0]
        distance = np.frombuffer(our["image"], np.uint8).astype(int) - np.frombuffer(
            their["image"][0], np.uint8
        )
        assert np.abs(distance).max() <= 4
