import hashlib
import io
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from small_captchas import Ran, draw, files_of, read_set, write_captchas

from data_tools import manifest, schema, tfrecord
from data_tools.writer import MARK

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
DIGITS, UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LABELS = [f"{UPPER[i % 26]}{UPPER[i // 26]}{UPPER[i * 7 % 26]}Z" for i in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "set"


@pytest.fixture
def convert(data_tools: Tools, folder: Path, out: Path) -> Tools:
    """Converts images/ and labels.csv of the test's folder to set/; a fault leaves no output."""

    def run(*flags: object) -> Ran:
        csv = folder.parent / "labels.csv"
        before = files_of(out) if out.is_dir() else None
        ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--workers", 1, *flags)
        assert not out.with_name("set.incomplete").exists()
        if ran.rc != 0:
            assert (files_of(out) if out.is_dir() else None) == before
            assert ran.error.startswith("error: ")
            assert "Traceback" not in ran.stderr
        return ran

    return run


def texts(out: Path) -> list[str]:
    return sorted(row["text"].decode() for rows in read_set(out).values() for row in rows)


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


# Where it is written


def test_an_existing_output_is_config_and_stays(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, LABELS[:3])
    out.mkdir()
    (out / "precious").write_text("work")
    ran = convert()
    assert ran.rc == 2
    assert ran.stderr == (f"error: CONFIG: {out}: it exists already; choose another folder\n")


def test_overwrite_replaces_the_whole_folder(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, LABELS[:3])
    assert convert("--shards", 3, "--split", "all=1").rc == 0
    write_captchas(folder, ["1234", "5678"])
    assert convert("--overwrite", "--split", "all=1", "--shards", 1).rc == 0
    assert texts(out) == ["1234", "5678"]
    assert {path.name for path in out.iterdir()} == {
        "manifest.json", "features.json", "dataset_info.json", "offsets-all.npy",
        "captcha-all.tfrecord-00000-of-00001",
    }  # fmt: skip
    assert {path.name for path in out.parent.iterdir()} == {"images", "labels.csv", "set"}


def test_a_failing_overwrite_keeps_the_old_data_set(
    convert: Tools, folder: Path, out: Path
) -> None:
    csv = write_captchas(folder, LABELS[:3])
    assert convert().rc == 0
    csv.write_text("0,AB\n1,CD\n9,EF\n")
    assert convert("--overwrite").rc == 3  # `convert` compares the folder before and after


def test_overwrite_of_what_does_not_exist_just_writes(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, LABELS[:3])
    assert convert("--overwrite").rc == 0
    assert texts(out) == sorted(LABELS[:3])


def test_overwrite_refuses_a_folder_that_is_no_data_set(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, LABELS[:3])
    out.mkdir()
    (out / "precious").write_text("work")
    ran = convert("--overwrite")  # `convert` compares the folder before and after
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: {out}: --overwrite replaces data sets only, and this is none; "
        "choose another folder\n"
    )


def test_overwrite_never_replaces_the_folder_of_its_own_images(
    data_tools: Tools, folder: Path
) -> None:
    csv = write_captchas(folder, LABELS[:3])
    before = files_of(folder)
    for out in (folder, folder.parent):
        ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--overwrite")
        assert ran.rc == 2
        assert ran.stderr == (f"error: CONFIG: {out}: it holds the images; choose another folder\n")
        assert files_of(folder) == before


def test_overwrite_leaves_a_folder_named_like_the_output_but_old(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, LABELS[:3])
    assert convert().rc == 0
    precious = out.with_name(out.name + ".old") / "precious"
    precious.parent.mkdir()
    precious.write_text("work")
    assert convert("--overwrite").rc == 0
    assert precious.read_text() == "work"


@pytest.mark.parametrize("name", [".", ".."])
def test_an_output_without_a_name_of_its_own_is_config(
    data_tools: Tools, folder: Path, name: str
) -> None:
    csv = write_captchas(folder, LABELS[:3])
    for flags in ((), ("--overwrite",)):
        ran = data_tools("captcha-to-tfrecord", folder, csv, name, *flags)
        assert ran.rc == 2
        assert ran.stderr == (
            f"error: CONFIG: {name}: not the name of a new folder; choose another folder\n"
        )


def test_a_file_in_place_of_the_output_is_refused_and_stays(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, LABELS[:3])
    out.write_text("a file")
    for flags in ((), ("--overwrite",)):
        ran = convert(*flags)
        assert ran.rc == 2
        assert ran.stderr == f"error: CONFIG: {out}: it is a file; choose another folder\n"
        assert out.read_text() == "a file"


def test_a_file_in_place_of_the_outputs_parent_is_one_line(
    data_tools: Tools, folder: Path, tmp_path: Path
) -> None:
    csv = write_captchas(folder, LABELS[:3])
    (tmp_path / "file").touch()
    ran = data_tools("captcha-to-tfrecord", folder, csv, tmp_path / "file/set")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {tmp_path / 'file/set.incomplete'}: Not a directory; "
        "check that the path exists and its permissions\n"
    )


def test_what_a_killed_run_left_is_replaced(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, LABELS[:3])
    left = out.with_name("set.incomplete")
    left.mkdir()
    for name in (MARK, "captcha-train.tfrecord-00000-of-00004", "stray"):
        (left / name).write_bytes(b"half")
    assert convert().rc == 0
    assert not {"stray", MARK} & set(files_of(out))
    assert not left.exists()


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_a_user_keeps_under_the_unfinished_name_is_never_touched(
    data_tools: Tools, folder: Path, out: Path, what: str
) -> None:
    csv = write_captchas(folder, LABELS[:3])
    in_the_way = out.with_name("set.incomplete")
    precious = in_the_way if what == "file" else folder.parent / "kept" / "thesis.txt"
    if what == "folder":
        precious = in_the_way / "thesis.txt"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("precious")
    if what == "link":
        in_the_way.symlink_to(precious.parent)
    ran = data_tools("captcha-to-tfrecord", folder, csv, out)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {in_the_way}: it is in the way, and no unfinished folder of this program; "
        "move it, or choose another name\n",
    )
    assert precious.read_text() == "precious"
    assert not out.exists()


def test_a_character_that_cannot_be_printed_is_a_label_fault(
    convert: Tools, folder: Path, out: Path
) -> None:
    csv = write_captchas(folder, LABELS[:3])
    csv.write_text(csv.read_text().replace(LABELS[1], LABELS[1][:-1] + "\x01"))
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.startswith(f"error: LABEL: {csv}:row 2: ")
    assert "has a character that can't be printed; " in ran.stderr
    assert not out.exists()


def test_files_and_folder_follow_the_umask(folder: Path, out: Path) -> None:
    csv = write_captchas(folder, LABELS[:3])
    command = f"umask 027 && exec {sys.executable} -m data_tools captcha-to-tfrecord"
    subprocess.run(["sh", "-c", f'{command} "$@"', "sh", folder, csv, out], check=True)
    assert stat.S_IMODE(out.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o640}


def mounted(target: Path, options: str, *command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command with a tmpfs mounted at `target` that only it sees; lists it on stdout."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare, to mount a tmpfs")
    script = 'mount -t tmpfs -o "$1" tmpfs "$2" || exit 99; dir=$2; shift 2; "$@"; code=$?'
    script += '; ls -A "$dir"; exit $code'
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", options, target, *map(str, command)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode == 99 or "unshare failed" in ran.stderr:
        pytest.skip(f"no tmpfs can be mounted here: {ran.stderr.strip()}")
    return ran


CONVERT = (sys.executable, "-m", "data_tools", "captcha-to-tfrecord")


def test_a_full_disk_is_space_and_nothing_is_left(folder: Path, tmp_path: Path) -> None:
    csv = write_captchas(folder, LABELS)
    disk = tmp_path / "disk"
    disk.mkdir()
    out = disk / "set"
    ran = mounted(disk, "size=16k", *CONVERT, folder, csv, out, "--workers", 2)
    assert ran.returncode == 5
    assert ran.stdout == ""  # `ls` found nothing, and the command said nothing there
    line = ran.stderr.splitlines()[-1]
    assert line.startswith(f"error: SPACE: {disk}")
    assert line.endswith(": No space left on device; free some space or choose another folder")


def test_a_read_only_parent_is_one_line(folder: Path, tmp_path: Path) -> None:
    csv = write_captchas(folder, LABELS[:3])
    disk = tmp_path / "disk"
    disk.mkdir()
    ran = mounted(disk, "ro", *CONVERT, folder, csv, disk / "set")
    assert ran.returncode == 3
    assert ran.stderr == (
        f"error: INPUT: {disk / 'set.incomplete'}: Read-only file system; "
        "check that the path exists and its permissions\n"
    )


# Killed and interrupted


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(images, CSV) of captchas that take a second to convert; most are hard links."""
    base = tmp_path_factory.mktemp("many")
    folder = base / "images"
    folder.mkdir()
    for index in range(40):
        draw(index, width=300, height=150).save(folder / f"{index}.png")
    for index in range(40, 480):
        os.link(folder / f"{index % 40}.png", folder / f"{index}.png")
    csv = base / "labels.csv"
    csv.write_text("".join(f"{index},{index:04d}\n" for index in range(480)))
    return folder, csv


def start_and_wait_for_records(many: tuple[Path, Path], out: Path) -> subprocess.Popen[str]:
    """Starts a conversion in a process group of its own, and returns when it has written some."""
    process = subprocess.Popen(
        [*CONVERT, *many, out, "--workers", "2"],
        start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    incomplete = out.with_name(out.name + ".incomplete")
    deadline = time.monotonic() + 30
    while not any(path.stat().st_size for path in incomplete.glob("*")):
        assert process.poll() is None, "it ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return process


def running(group: int) -> Iterator[int]:
    """The processes of a process group that run and are no zombies."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state != "Z":
            yield int(path.parent.name)


def wait_until_none_runs(group: int, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while left := list(running(group)):
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
            pytest.fail(f"still running: {left}")
        time.sleep(0.05)


def test_a_killed_run_leaves_only_the_incomplete_folder_and_the_rerun_is_byte_identical(
    many: tuple[Path, Path], tmp_path: Path, data_tools: Tools
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = start_and_wait_for_records(many, killed)
    process.kill()
    process.wait()
    # Its workers see that it is gone, and don't write into the folder of the next run.
    wait_until_none_runs(process.pid)
    process.communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"killed.incomplete"}
    assert not (tmp_path / "killed.incomplete" / "manifest.json").exists()
    for out in (killed, whole):
        assert data_tools("captcha-to-tfrecord", *many, out).rc == 0
    assert {path.name for path in tmp_path.iterdir()} == {"killed", "whole"}
    assert files_of(killed) == files_of(whole)


def test_a_killed_worker_is_one_host_line_and_nothing_is_left(
    many: tuple[Path, Path], tmp_path: Path
) -> None:
    process = start_and_wait_for_records(many, tmp_path / "set")
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=20)
    wait_until_none_runs(process.pid)
    assert stderr == (
        f"error: HOST: {socket.gethostname()}: a worker process was killed, perhaps for want of "
        "memory; free some memory or lower --workers\n"
    )
    assert process.returncode == 6
    assert list(tmp_path.iterdir()) == []


def workers_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.parametrize("whom", ["the group, as Ctrl-C does", "the process alone"])
def test_an_interrupted_run_leaves_nothing_and_says_so_in_one_line(
    many: tuple[Path, Path], tmp_path: Path, whom: str
) -> None:
    process = start_and_wait_for_records(many, tmp_path / "set")
    send = os.killpg if "group" in whom else os.kill
    send(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    wait_until_none_runs(process.pid)
    assert stderr == "interrupted\n"
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


# Labels

LABEL_FIX = "mend the label, or see --charset, --case, --length and --variable-length"
SKIP_FIX = ", or pass --skip-bad to leave them out"
ROWS_FIX = f"mend them; {LABEL_FIX}{SKIP_FIX}"
MISSING_FIX = f"add the image or take out the row{SKIP_FIX}"


@pytest.mark.parametrize(
    ("labels", "charset"),
    [
        (["0012", "9999"], DIGITS),
        (["ABCD"], UPPER),
        (["abcd"], UPPER.lower()),
        (["AB12"], DIGITS + UPPER),
        (["AB_2"], "2AB_"),
        (["ЖЫ", "ЯЖ"], "ЖЫЯ"),
    ],
)
def test_the_charset_in_the_manifest_is_the_smallest_named_one_else_the_sorted_characters(
    convert: Tools, folder: Path, out: Path, labels: list[str], charset: str
) -> None:
    write_captchas(folder, labels)
    assert convert().rc == 0
    assert manifest.load(out).label.charset == charset
    assert texts(out) == sorted(labels)


def test_a_charset_by_name_and_one_by_its_characters_are_taken_as_given(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["12", "34"])
    assert convert("--charset", "digits").rc == 0
    assert manifest.load(out).label.charset == DIGITS
    assert convert("--charset", "4321X", "--overwrite").rc == 0
    assert manifest.load(out).label.charset == "4321X"
    assert {row["label"] for rows in read_set(out).values() for row in rows} == {
        bytes([3, 2]), bytes([1, 0]),
    }  # fmt: skip


def test_labels_that_look_like_numbers_or_truth_stay_strings(
    convert: Tools, folder: Path, out: Path
) -> None:
    labels = ["0012", "1E10", "TRUE", "null", "1.50", "+123", "nan4", "1_00"]
    write_captchas(folder, labels)
    assert convert().rc == 0
    assert texts(out) == sorted(labels)


def test_a_label_outside_the_charset_is_label_with_row_label_and_the_allowed(
    convert: Tools, folder: Path
) -> None:
    csv = write_captchas(folder, ["AB12", "AB_2"])
    ran = convert("--charset", DIGITS + UPPER)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}:row 2: 1.jpg: label 'AB_2' has '_', which is not of "
        f"'{DIGITS + UPPER}'; {LABEL_FIX}\n"
    )


def test_a_label_of_another_length_is_label_with_the_length(convert: Tools, folder: Path) -> None:
    csv = write_captchas(folder, ["ABCD", "ABCDE"])
    ran = convert("--length", 4)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}:row 2: 1.jpg: label 'ABCDE' has 5 characters in place of 4; "
        f"{LABEL_FIX}\n"
    )


def test_labels_of_several_lengths_need_a_flag(convert: Tools, folder: Path, out: Path) -> None:
    csv = write_captchas(folder, ["ABCD", "ABCDE", "AB"])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: 1.jpg: label 'ABCDE' has 5 characters in place of 4",
        f"{csv}:row 3: 2.jpg: label 'AB' has 2 characters in place of 4",
        f"error: LABEL: {csv}: 2 of 3 rows can't be used; {LABEL_FIX}{SKIP_FIX}",
    ]
    assert convert("--variable-length").rc == 0
    label = manifest.load(out).label
    assert (label.min_length, label.max_length) == (2, 5)
    assert texts(out) == ["AB", "ABCD", "ABCDE"]


def test_lower_case_is_outside_an_upper_case_charset_unless_folded(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["ab12"])
    ran = convert("--charset", DIGITS + UPPER)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {folder.parent / 'labels.csv'}:row 1: 0.jpg: label 'ab12' has 'ab', which "
        f"is not of '{DIGITS + UPPER}'; {LABEL_FIX}\n"
    )
    ran = convert("--charset", DIGITS + UPPER, "--case", "upper")
    assert ran.rc == 0
    assert "labels were folded to upper case\n" in ran.stdout
    assert texts(out) == ["AB12"]
    assert manifest.load(out).label.case == "upper"


def test_case_lower_folds_to_lower_case(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, ["Ab", "CD"])
    assert convert("--case", "lower").rc == 0
    assert texts(out) == ["ab", "cd"]
    assert manifest.load(out).label.charset == UPPER.lower()
    assert manifest.load(out).label.case == "lower"


def test_the_length_of_a_label_is_that_of_the_folded_one(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["Maß", "fuß"])
    assert convert("--case", "upper").rc == 0
    assert texts(out) == ["FUSS", "MASS"]
    assert manifest.load(out).label.max_length == 4


def test_an_empty_label_is_a_fault_of_its_row(convert: Tools, folder: Path) -> None:
    csv = write_captchas(folder, ["AB", "", "  "])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: the label of 1.jpg is empty",
        f"{csv}:row 3: the label of 2.jpg is empty",
        f"error: LABEL: {csv}: 2 of 3 rows can't be used; write its label{SKIP_FIX}",
    ]


def test_more_than_256_different_characters_are_one_label_line(
    convert: Tools, folder: Path
) -> None:
    letters = [chr(0x4E00 + index) for index in range(300)]
    csv = write_captchas(folder, ["".join(letters[i : i + 100]) for i in (0, 100, 200)])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}: 300 different characters, at most 256 can be told; "
        "name the characters with --charset and pass --skip-bad\n"
    )


# The CSV


def csv_gives(convert: Tools, folder: Path, data: bytes) -> Ran:
    (folder.parent / "labels.csv").write_bytes(data)
    return convert("--split", "train=1")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("CRLF", b"0,AB12\r\n1,CD34\r\n"),
        ("CR", b"0,AB12\r1,CD34\r"),
        ("no final newline", b"0,AB12\n1,CD34"),
        ("byte order mark", b"\xef\xbb\xbf0,AB12\n1,CD34\n"),
        ("quotes", b'"0","AB12"\n"1","CD34"\n'),
        ("trailing space", b"0,AB12 \n1 , CD34\t\n"),
        ("header id,label", b"id,label\n0,AB12\n1,CD34\n"),
        ("header file,label", b"file,label\n0.jpg,AB12\n1.jpg,CD34\n"),
        ("quoted header with a byte order mark", b'\xef\xbb\xbf"ID","Label"\r\n0,AB12\r\n1,CD34'),
        ("file names", b"0.jpg,AB12\n1.jpg,CD34\n"),
        ("spaces before quotes", b'"0", "AB12"\n "1.jpg",  "CD34"\n'),
        ("numbers that a spreadsheet is kept from", b'0,="AB12"\n1,"=""CD34"""\n'),
        ("paths of Windows", b".\\0.jpg,AB12\r\n.\\1,CD34\r\n"),
        ("blank lines", b"0,AB12\n\n1,CD34\n\n"),
        ("Excel's empty lines at the end", b"0,AB12\r\n1,CD34\r\n,\r\n"),
    ],
)
def test_csv_dialects_of_the_same_rows_give_the_same_labels(
    convert: Tools, folder: Path, out: Path, name: str, data: bytes
) -> None:
    write_captchas(folder, ["", ""])
    ran = csv_gives(convert, folder, data)
    assert ran.rc == 0, ran.stderr
    assert [row["text"] for row in read_set(out)["train"]] == [b"AB12", b"CD34"]


def test_a_path_as_windows_writes_it_is_found_unless_a_file_has_that_name(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {"0.jpg": "", "a\\2.jpg": "", "3.jpg": ""})
    (folder / "a/b").mkdir(parents=True)
    (folder / "0.jpg").rename(folder / "a/b/0.jpg")
    (folder / "3.jpg").rename(folder / "a/2.jpg")
    ran = csv_gives(convert, folder, b"a\\b\\0.jpg,AB12\na\\2.jpg,CD34\n")
    assert ran.rc == 0, ran.stderr
    images = [row["image"] for row in read_set(out)["train"]]
    assert images == [(folder / name).read_bytes() for name in ("a/b/0.jpg", "a\\2.jpg")]
    for cell in (b"..\\out.jpg", b"C:\\x\\0.jpg", b"a\\b\\1.jpg"):
        shutil.rmtree(out, ignore_errors=True)
        ran = csv_gives(convert, folder, cell + b",AB12\n")
        assert ran.rc == 3
        assert ran.stderr == (
            f"error: INPUT: {folder.parent / 'labels.csv'}:row 1: no image {cell.decode()!r}; "
            "add the image or take out the row\n"
        )


def test_a_letter_with_a_mark_is_one_character_in_either_unicode_form(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["", ""])
    ran = csv_gives(convert, folder, "0,e\u0301X\n1,\u00e9X\n".encode())
    assert ran.rc == 0, ran.stderr
    assert [row["text"].decode() for row in read_set(out)["train"]] == ["\u00e9X"] * 2


def test_a_file_name_with_a_comma_is_quoted_as_rfc_4180_says(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {"a,b.jpg": "", 'say "hi".jpg': ""})
    ran = csv_gives(convert, folder, b'"a,b.jpg","AB12"\n"say ""hi"".jpg",CD34\n')
    assert ran.rc == 0, ran.stderr
    assert [row["text"] for row in read_set(out)["train"]] == [b"AB12", b"CD34"]


def test_a_first_row_that_names_an_image_is_no_header(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {"id.jpg": "", "0.jpg": ""})
    ran = csv_gives(convert, folder, b"id,label\n0,other\n")
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["label", "other"]


def test_a_first_row_without_its_image_is_a_fault_and_no_header(
    convert: Tools, folder: Path
) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b"9,CD\n0,AB\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 1: no image '9'; "
        "add the image or take out the row; if it is a header, pass --header yes\n"
    )


def test_a_cyrillic_label_is_utf_8_in_any_locale(run_cli: RunCli, folder: Path, out: Path) -> None:
    csv = write_captchas(folder, {"é.jpg": "ЖЫ"})
    ran = run_cli([*CONVERT, folder, csv, out], env={"LC_ALL": "C", "LANG": "C"})
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["ЖЫ"]


@pytest.mark.parametrize(
    ("line", "columns"), [("1", 1), ("1,CD,extra", 3), ("1;CD", 1), ("1\tCD", 1)]
)
def test_a_wrong_column_count_is_input_with_the_row(
    convert: Tools, folder: Path, line: str, columns: int
) -> None:
    write_captchas(folder, ["AB", "CD", "EF"])
    ran = csv_gives(convert, folder, f"0,AB\n{line}\n2,EF\n".encode())
    csv = folder.parent / "labels.csv"
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}:row 2: {columns} columns in place of 2; "
        "write `image,label`; quote a cell that holds a comma, or see --separator\n"
    )


def test_rows_are_counted_as_an_editor_counts_lines(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB", "CD"])
    ran = csv_gives(convert, folder, b"id,label\n\n0,AB\n1\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 4: 1 columns in place of 2; "
        "write `image,label`; quote a cell that holds a comma, or see --separator\n"
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [("empty", b""), ("only a header", b"id,label\n"), ("only a mark", b"\xef\xbb\xbf"),
     ("only blank lines", b"\r\n\r\n")],
)  # fmt: skip
def test_a_csv_without_rows_is_input_no_examples(
    convert: Tools, folder: Path, name: str, data: bytes
) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, data)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}: no examples; "
        "write a row `image,label` for each image\n"
    )


UTF_8 = "the CSV is not UTF-8; save it as UTF-8"
QUOTE = "quote cells as RFC 4180 says"
NO_CSV = {
    "Latin-1": ("0,é1\n".encode("latin-1"), f"byte 2: {UTF_8}"),
    "UTF-16 that is cut": (
        "0,AB\n".encode("utf-16")[:-1], "byte 10: the CSV is not UTF-16; save it as UTF-8",
    ),
    "an image in place of the CSV": (b"\xff\xd8\xff\xe0\0\x10JFIF", f"byte 0: {UTF_8}"),
    "a NUL": (b"0,A\0B\n", " a NUL character: not a CSV; save it as UTF-8 text"),
    "a quote without an end": (
        b'0,"AB\n1,CD\n', f"row 2: not a CSV: unexpected end of data; {QUOTE}",
    ),
    "a quote in the middle": (
        b'0,"AB"x\n', f"row 1: not a CSV: ',' expected after '\"'; {QUOTE}",
    ),
    "a field of 200 kB": (
        b"0," + b"A" * 200_000 + b"\n",
        f"row 1: not a CSV: field larger than field limit (131072); {QUOTE}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CSV)
@pytest.mark.parametrize("flags", [(), ("--skip-bad",)], ids=["", "--skip-bad"])
def test_a_file_that_is_no_utf_8_csv_is_input_that_names_it(
    convert: Tools, folder: Path, name: str, flags: tuple[str, ...]
) -> None:
    csv = write_captchas(folder, ["AB"])
    data, reason = NO_CSV[name]
    csv.write_bytes(data)
    ran = convert(*flags)
    assert ran.rc == 3
    assert ran.stderr == f"error: INPUT: {csv}:{reason}\n"


def test_all_missing_images_are_listed(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b"0,AB\n7,CD\n8.jpg,EF\nsub/9.png,GH\n")
    csv = folder.parent / "labels.csv"
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: no image '7'",
        f"{csv}:row 3: no image '8.jpg'",
        f"{csv}:row 4: no image 'sub/9.png'",
        f"error: INPUT: {csv}: 3 of 4 rows can't be used; {MISSING_FIX}",
    ]


def test_one_missing_image_is_one_line(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b"0,AB\n7,CD\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 2: no image '7'; "
        "add the image or take out the row\n"
    )


@pytest.mark.parametrize(
    "data", [b"0,AB\n1,CD\n0,AB\n", b"0,AB\n1,CD\n0,XY\n", b"0,AB\n1,CD\n0.jpg,AB\n"]
)
def test_an_image_named_twice_is_input_with_both_rows(
    convert: Tools, folder: Path, data: bytes
) -> None:
    write_captchas(folder, ["AB", "CD"])
    ran = csv_gives(convert, folder, data)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 3: 0.jpg is named in row 1 already; "
        "leave one row for each image\n"
    )


def test_an_id_of_two_images_is_input_with_both(convert: Tools, folder: Path) -> None:
    write_captchas(folder, {"0.jpg": "", "0.png": ""})
    ran = csv_gives(convert, folder, b"0,AB\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 1: '0' can be 0.jpg or 0.png; "
        "write the whole file name\n"
    )


@pytest.mark.parametrize("name", ["../secret.jpg", "/SECRET", "sub/../../secret.jpg", "..", "."])
def test_names_that_leave_the_folder_are_input_though_the_file_exists(
    convert: Tools, folder: Path, name: str
) -> None:
    write_captchas(folder, ["AB"])
    secret = folder.parent / "secret.jpg"
    draw(9).save(secret)
    (folder / "sub").mkdir()
    name = name.replace("/SECRET", str(secret))
    ran = csv_gives(convert, folder, f"0,AB\n{name},CD\n".encode())
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 2: {name!r} is not the name of an image "
        f"inside the folder; name images of the folder only\n"
    )


def test_upper_case_extensions_are_found(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, {"A.JPG": "", "b.jpeg": "", "c.Png": ""})
    ran = csv_gives(convert, folder, b"A,AA\nb,BB\nc,CC\n")
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["AA", "BB", "CC"]


def test_images_without_a_row_are_reported_and_no_error(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {f"{name}.jpg": "" for name in "abcde"})
    ran = csv_gives(convert, folder, b"a,AB\nb,CD\n")
    assert ran.rc == 0
    assert ran.stderr == ""
    assert "3 images have no row and were left out: c.jpg, d.jpg, e.jpg\n" in ran.stdout
    assert texts(out) == ["AB", "CD"]


def test_what_file_managers_leave_is_ignored(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB", "CD"])
    for name in (".DS_Store", "._0.jpg", "Thumbs.db", "desktop.ini"):
        (folder / name).write_bytes(b"\0\0\0\1Bud1")
    ran = convert()
    assert (ran.rc, ran.stderr) == (0, "")
    for name in ("DS_Store", "._0", "Thumbs", "desktop"):
        assert name not in ran.stdout


@pytest.mark.parametrize("what", ["images", "labels"])
def test_a_missing_input_is_named(data_tools: Tools, folder: Path, out: Path, what: str) -> None:
    csv = write_captchas(folder, ["AB"])
    given = {"images": folder, "labels": csv} | {what: folder.parent / "absent"}
    ran = data_tools("captcha-to-tfrecord", given["images"], given["labels"], out)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'absent'}: No such file or directory; "
        "check that the path exists and its permissions\n"
    )


@pytest.mark.parametrize("swapped", ["a file as IMAGES", "a folder as LABELS"])
def test_a_file_for_a_folder_and_the_reverse_are_named(
    data_tools: Tools, folder: Path, out: Path, swapped: str
) -> None:
    csv = write_captchas(folder, ["AB"])
    given = (csv, csv) if "IMAGES" in swapped else (folder, folder)
    ran = data_tools("captcha-to-tfrecord", *given, out)
    reason = "Not a directory" if "IMAGES" in swapped else "Is a directory"
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {given[0]}: {reason}; check that the path exists and its permissions\n"
    )


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
