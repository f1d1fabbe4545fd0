"""`data_tools folder-to-tfrecord`: a user's own images by class to a data set that trains."""

import hashlib
import io
import json
import os
import shutil
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_captchas import Ran, draw, files_of, read_set

from data_tools import manifest
from data_tools.convert_folder import MAX_CLASSES, class_names
from data_tools.convert_images import split_of
from data_tools.errors import DataError
from data_tools.sources.folder import ClassFolders
from hvd_train.data.source import open_source

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
HELP = "see data_tools folder-to-tfrecord --help"
MEND = "mend them, or pass --skip-bad to leave them out"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def convert(data_tools: Tools, source: Path, out: Path) -> Tools:
    """Converts source/ to set/; a fault leaves what is there as it is."""

    def run(*flags: object) -> Ran:
        before = files_of(out) if out.is_dir() else None
        ran = data_tools("folder-to-tfrecord", source, out, "--workers", 1, *flags)
        assert not out.with_name("set.incomplete").exists()
        if ran.rc != 0:
            assert (files_of(out) if out.is_dir() else None) == before
            assert ran.stdout == ""
            assert ran.error.startswith("error: ")
            assert "Traceback" not in ran.stderr
        return ran

    return run


def write_images(folder: Path, names: Mapping[str, int] | list[str], **size: int) -> None:
    """Writes PNGs, or JPEGs by their suffix, of pictures that differ by number."""
    numbers = names if isinstance(names, Mapping) else {name: i for i, name in enumerate(names)}
    for name, number in numbers.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(number, **size).save(path, "JPEG" if path.suffix == ".jpg" else "PNG")


def many(*classes: str, each: int = 12) -> list[str]:
    return [f"{name}/{number}.png" for number in range(each) for name in classes]


def pixels(number: int) -> bytes:
    return np.asarray(draw(number)).tobytes()


def labels_of(out: Path) -> dict[bytes, str]:
    """The name of the class of each image of the set, by what is stored of the image."""
    classes = manifest.load(out).classes or ()
    return {
        row["image"]: classes[int(row["label"])] for rows in read_set(out).values() for row in rows
    }


# The data set that comes out


def test_every_image_has_the_class_of_its_folder(convert: Tools, source: Path, out: Path) -> None:
    names = ["dog/1.png", "cat/1.png", "cat/old/older/2.png", "cat/old/1.png", "Zebra/7", "9/1.jpg"]
    write_images(source, names)
    ran = convert("--split", "train=1")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 6 images of 4 classes: train 6\n"
    assert manifest.load(out).classes == ("9", "Zebra", "cat", "dog")
    expected = {pixels(number): name.split("/")[0] for number, name in enumerate(names[:5])}
    found = labels_of(out)
    assert {image: label for image, label in found.items() if label != "9"} == expected
    assert list(found.values()) == ["9", "Zebra", "cat", "cat", "cat", "dog"]


def test_the_set_is_of_classes_raw_and_named_images(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, many("cat", "dog"))
    assert convert("--shards", 2).rc == 0
    found = manifest.load(out)
    assert (found.name, found.kind, found.label, found.skipped) == ("images", "classes", None, ())
    assert found.image == manifest.ImageSpec(height=12, width=24, channels=3, encoding="raw")
    assert found.created_from["arguments"] == [
        "--split=train=0.9,test=0.1", "--shards=2", "--image-encoding=raw", "--transcode=False",
        "--resize=None", "--pad=None", "--skip-bad=False",
    ]  # fmt: skip
    shards = {shard.file for split in found.splits.values() for shard in split.shards}
    assert {path.name for path in out.iterdir()} == shards | {
        "manifest.json", "features.json", "dataset_info.json", "label.labels.txt",
        "offsets-train.npy", "offsets-test.npy",
    }  # fmt: skip
    assert all(name.startswith("images-") for name in shards)


def test_original_keeps_the_bytes_of_the_files_whatever_their_names(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["cat/1.png", "cat/2.jpg", "dog/no suffix"])
    (source / "cat" / "1.png").rename(source / "cat" / "1.jpg")
    assert convert("--image-encoding", "original", "--name", "pets").rc == 0
    found = manifest.load(out)
    assert (found.name, found.image.encoding) == ("pets", "mixed")
    assert labels_of(out) == {
        path.read_bytes(): path.parent.name for path in source.rglob("*") if path.is_file()
    }


def test_the_split_is_that_of_the_hash_of_the_file(convert: Tools, source: Path, out: Path) -> None:
    write_images(source, many("cat", "dog", each=20))
    write_images(source, {f"cat/copy{number}.png": number for number in range(5)})
    assert convert("--image-encoding", "original", "--split", "train=0.5,dev=0.5").rc == 0
    rows = read_set(out)
    assert list(rows) == ["train", "dev"]
    assert all(rows.values())
    for name, own in rows.items():
        for row in own:
            sha256 = hashlib.sha256(row["image"]).digest()
            assert split_of(sha256, {"train": 0.5, "dev": 0.5}) == name


def test_the_output_depends_neither_on_workers_nor_on_the_order_of_creation_nor_on_the_place(
    run_cli: RunCli, tmp_path: Path
) -> None:
    names = {name: number for number, name in enumerate(many("cat", "dog", "é", each=8))}
    names |= {"cat/copy.png": 0, "cat/b.jpg": 99}
    sets = []
    for place, workers, env in (
        ("one", 1, {"LC_ALL": "C"}), ("two/deep", 2, {"LC_ALL": "C.UTF-8"})
    ):  # fmt: skip
        source = tmp_path / place / "source"
        write_images(source, dict(reversed(names.items())) if workers == 2 else names)
        (source / "dog" / "bad").write_bytes(b"no image")
        out = tmp_path / place / "set"
        ran = run_cli(
            ["python", "-m", "data_tools", "folder-to-tfrecord", source, out, "--workers", workers,
             "--shards", 3, "--skip-bad", "--split", "train=0.5,test=0.5"], env=env,
        )  # fmt: skip
        assert (ran.rc, ran.stderr) == (0, "")
        sets.append(files_of(out))
    assert sets[0] == sets[1]
    assert len([name for name in sets[0] if ".tfrecord-" in name]) == 6


def test_the_trainers_reader_verify_and_info_take_the_set(
    convert: Tools, data_tools: Tools, source: Path, out: Path
) -> None:
    write_images(source, many("cat", "dog"))
    assert convert("--split", "train=0.7,test=0.3").rc == 0
    assert data_tools("verify", out).rc == 0
    assert json.loads(data_tools("info", out, "--json").stdout)["classes"] == {"cat": 12, "dog": 12}
    for split in ("train", "test"):
        batch = open_source(out, manifest.load(out), split, budget=1e9).gather(np.arange(3))
        for image, label in zip(batch.images, batch.labels, strict=True):
            assert labels_of(out)[image.tobytes()] == ("cat", "dog")[label[0]]


def test_tfds_reads_the_pixels_and_the_names_of_the_classes(
    tfds: ModuleType, convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, many("cat", "Dog house", "ärger", each=6))
    for flags in ((), ("--image-encoding", "original", "--overwrite")):
        assert convert("--split", "train=1", *flags).rc == 0
        builder = tfds.builder_from_directory(str(out))
        assert builder.info.features["label"].names == ["Dog house", "cat", "ärger"]
        config = tfds.ReadConfig(interleave_cycle_length=1)  # the order of the shards
        theirs = builder.as_dataset(split="train", read_config=config).as_numpy_iterator()
        for their, row in zip(theirs, read_set(out)["train"], strict=True):
            stored = row["image"]
            ours = Image.open(io.BytesIO(stored)).tobytes() if flags else stored
            assert (their["image"].tobytes(), their["label"]) == (ours, row["label"])


# What counts as an image


def test_what_systems_leave_is_passed_over(convert: Tools, source: Path, out: Path) -> None:
    write_images(source, ["cat/1.png", "cat/.hidden/2.png", "cat/__MACOSX/3.png", ".git/4.png"])
    for name in ("Thumbs.db", "cat/thumbs.db", "cat/.DS_Store", "cat/._1.png", "cat/desktop.ini"):
        (source / name).write_bytes(b"\0")
    ran = convert("--split", "train=1")
    assert (ran.rc, ran.stderr, ran.stdout) == (
        0, "", f"{out}: 1 images of 1 classes: train 1\n"
    )  # fmt: skip


def test_files_in_no_class_folder_are_told_and_left_out(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["cat/1.png", *(f"{number}.png" for number in range(6))])
    (source / "README").write_text("our pets")
    ran = convert("--split", "train=1")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 1 images of 1 classes: train 1",
        "7 files lie in no class folder and were left out: 0.png, 1.png, 2.png, 3.png, 4.png ...",
    ]


def test_a_file_that_is_no_image_is_input(convert: Tools, source: Path) -> None:
    write_images(source, ["cat/1.png", "dog/1.png"])
    (source / "dog" / "notes.txt").write_text("good dogs")
    ran = convert()
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {source}/dog/notes.txt: the content is neither JPEG nor PNG; "
        "replace the file\n",
    )


def test_all_faults_are_told_in_the_order_of_paths(convert: Tools, source: Path) -> None:
    write_images(source, ["cat/1.png", "dog/1.png"])
    (source / "dog" / "0.jpg").write_bytes(b"")
    (source / "cat" / "gone").symlink_to("nowhere")
    (source / "cow").mkdir()
    (source / " eel").mkdir()
    os.mkfifo(source / "dog" / "pipe")
    ran = convert()
    assert (ran.rc, ran.stderr.splitlines()) == (
        3,
        [
            f"{source}/ eel: the class name ' eel' begins or ends with a space",
            f"{source}/cat/gone: No such file or directory",
            f"{source}/cow: no image in the class folder",
            f"{source}/dog/0.jpg: the file is empty",
            f"{source}/dog/pipe: not a file",
            f"error: INPUT: {source}: 5 of 7 entries can't be used; {MEND}",
        ],
    )


def test_skip_bad_leaves_faults_out_and_lists_them_by_their_paths_in_the_source(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["cat/1.png", "dog/1.png"])
    (source / "cat" / os.fsdecode(b"\xff")).write_bytes(b"")
    (source / "cow").mkdir()
    ran = convert("--skip-bad", "--split", "train=1")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 2 images of 2 classes: train 2",
        "skipped 2 entries, listed in the manifest: 2 INPUT",
    ]  # fmt: skip
    assert manifest.load(out).skipped == (
        r"cat/\udcff: the file is empty", "cow: no image in the class folder",
    )  # fmt: skip
    assert manifest.load(out).classes == ("cat", "dog")


def test_mixed_sizes_are_refused_and_fitted_by_resize(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, many("cat", each=3))
    write_images(source, ["dog/1.png"], width=30, height=40)
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        "3 of 24x12, first cat/0.png",
        "1 of 30x40, first dog/1.png",
        f"error: INPUT: {source}: images of 2 sizes, a data set has one; "
        "pass --resize 24x12 or --pad 30x40, or convert each size to its own data set",
    ]
    assert convert("--resize", "32x32").rc == 0
    assert manifest.load(out).image == manifest.ImageSpec(
        height=32, width=32, channels=3, encoding="raw"
    )


def test_other_formats_are_refused_unless_they_are_transcoded(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["cat/0.png"])
    for number, suffix in ((1, "bmp"), (2, "gif"), (3, "webp")):
        colors = draw(number).quantize(256) if suffix == "gif" else draw(number)
        colors.save(source / "cat" / f"{number}.{suffix}", lossless=True)
    ran = convert()
    assert ran.rc == 3
    assert [line.split(": ")[1] for line in ran.stderr.splitlines()[:3]] == [
        f"{name} is neither JPEG nor PNG" for name in ("BMP", "GIF", "WEBP")
    ]
    assert convert("--transcode", "--split", "train=1").rc == 0
    stored = [row["image"] for row in read_set(out)["train"]]
    assert len(stored) == 4
    assert [stored[0], stored[1], stored[3]] == [pixels(0), pixels(1), pixels(3)]


# Folders that are strange


def test_a_source_that_is_not_there_is_input(convert: Tools, source: Path) -> None:
    ran = convert()
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {source}: No such file or directory; "
        "check that the path exists and its permissions\n",
    )


@pytest.mark.parametrize("names", [[], ["1.png", "2.png"]])
def test_a_source_without_class_folders_is_input(
    convert: Tools, source: Path, names: list[str]
) -> None:
    source.mkdir()
    write_images(source, names)
    ran = convert()
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {source}: no class folders in it; "
        "put the images of each class into a folder of its name, or see --labels\n",
    )


@pytest.mark.parametrize(
    ("name", "shown"), [(b"a\nb", r"'a\nb'"), (b"\xff", r"'\udcff'"), (b"a\x1b[1m", r"'a\x1b[1m'")]
)
def test_a_class_name_that_cant_be_printed_is_input(
    convert: Tools, source: Path, name: bytes, shown: str
) -> None:
    write_images(source, ["cat/1.png", f"{os.fsdecode(name)}/1.png"])
    ran = convert()
    assert ran.rc == 3
    assert ran.error.endswith(
        f": the class name {shown} has a character that can't be printed; rename the folder"
    )


def test_more_classes_than_a_label_can_tell_are_input(source: Path) -> None:
    labels = [str(number) for number in range(MAX_CLASSES + 1)]
    assert len(class_names(labels[1:], source)) == MAX_CLASSES
    with pytest.raises(DataError) as raised:
        class_names(labels, source)
    assert str(raised.value) == (
        f"error: INPUT: {source}: 65537 classes, at most 65536 can be told; "
        "check that it has a folder for each class"
    )


def test_names_that_differ_by_their_unicode_form_only_are_one_class(
    convert: Tools, source: Path, out: Path
) -> None:
    forms = [unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD")]
    write_images(source, [f"{form}/{number}.png" for number, form in enumerate(forms)])
    assert len(list(source.iterdir())) == 2
    assert convert("--split", "train=1").rc == 0
    assert manifest.load(out).classes == (forms[0],)
    assert set(labels_of(out)) == {pixels(0), pixels(1)}


def test_links_to_files_are_followed_and_to_folders_outside_are_faults(
    convert: Tools, source: Path, out: Path, tmp_path: Path
) -> None:
    write_images(source, ["cat/0.png"])
    write_images(tmp_path / "else", {"1.png": 1, "more/2.png": 2, "dogs/3.png": 3})
    (source / "cat" / "1.png").symlink_to(tmp_path / "else" / "1.png")
    (source / "cat" / "4.png").symlink_to("0.png")
    ran = convert("--split", "train=1")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 3 images of 1 classes: train 3",
        "1 links to files lead out of the source and were followed: cat/1.png",
    ]
    assert labels_of(out) == {pixels(0): "cat", pixels(1): "cat"}
    (source / "cat" / "more").symlink_to(tmp_path / "else" / "more")
    (source / "dog").symlink_to("../else/dogs")
    shutil.rmtree(out)
    ran = convert()
    assert ran.rc == 3
    assert f"{source}/cat/more: it leads out of the source\n" in ran.stderr
    assert f"{source}/dog: it leads out of the source\n" in ran.stderr


@pytest.mark.parametrize(
    ("link", "target", "reason"),
    [
        ("cat/again", ".", "the same folder as cat"),
        ("cat/up", "..", "it leads back to the source"),
        ("cat/root", "/", "it leads back to the source"),
        ("dog/cats", "../cat", "the same folder as cat"),
        ("dog2", "dog", "the same folder as dog"),
    ],
)
def test_a_link_to_a_folder_that_is_read_already_is_input(
    convert: Tools, source: Path, link: str, target: str, reason: str
) -> None:
    write_images(source, ["cat/1.png", "dog/1.png"])
    (source / link).symlink_to(target)
    ran = convert()
    assert ran.rc == 3
    assert f"{source}/{link}: {reason}" in ran.stderr
    assert convert("--skip-bad").rc == 0


def test_links_that_double_at_each_level_end_at_once(source: Path) -> None:
    write_images(source, {f"class/{level}/0.png": level for level in range(30)})
    for level in range(29):
        for name in "ab":
            (source / "class" / str(level) / name).symlink_to(f"../{level + 1}")
    folders = ClassFolders(source)
    assert len(folders.read()) == 30
    assert len(folders.faults) == 2 * 29


def test_a_data_set_in_place_of_its_source_is_config(data_tools: Tools, source: Path) -> None:
    write_images(source, many("cat", "dog"))
    ran = data_tools("folder-to-tfrecord", source, source, "--overwrite")
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: {source}: it holds the source; choose another folder\n"
    )  # fmt: skip
    ran = data_tools("folder-to-tfrecord", source, source / "cat" / "set")
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: {source / 'cat/set'}: it lies in the source; choose another folder\n"
    )  # fmt: skip


# Splits that are folders


def test_each_folder_of_classes_is_the_split_that_is_told(
    convert: Tools, source: Path, out: Path
) -> None:
    names = ["train/cat/0.png", "train/dog/1.png", "val/cat/2.png", "val/dog/3.png",
             "extra/cat/a/4.png"]  # fmt: skip
    write_images(source, names)
    ran = convert("--split-folders", "train=train,val=validation,extra=train", "--shards", 1)
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 5 images of 2 classes: train 3, validation 2\n"
    rows = read_set(out)
    assert {
        split: {(row["image"], row["label"]) for row in own} for split, own in rows.items()
    } == {
        "train": {(pixels(0), 0), (pixels(1), 1), (pixels(4), 0)},
        "validation": {(pixels(2), 0), (pixels(3), 1)},
    }
    assert [len(split.shards) for split in manifest.load(out).splits.values()] == [1, 1]
    assert (
        "--split-folders=train=train,val=validation,extra=train"
        in (manifest.load(out).created_from["arguments"])
    )


def test_split_folders_that_are_not_told_of_are_not_taken_for_classes(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["Train/cat/0.png", "Train/dog/1.png", "val/cat/2.png"])
    ran = convert()
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {source}: the folders Train, val look like splits, not classes; "
        "pass --split-folders Train=train,val=val\n",
    )
    assert convert("--split-folders", "Train=train,val=val").rc == 0
    write_images(source, ["car/3.png"])
    assert convert("--overwrite").rc == 0  # a class of trains beside one of cars
    assert manifest.load(out).classes == ("Train", "car", "val")


def test_a_class_that_the_training_split_lacks_is_input(
    convert: Tools, source: Path, out: Path
) -> None:
    names = ["test/Cat/0.png", "test/Cat/9.png", "test/dog/1.png", "train/cat/2.png",
             "train/cow/3.png", "train/dog/4.png"]  # fmt: skip
    write_images(source, names)
    flags = ("--split-folders", "test=test,train=train")
    ran = convert(*flags)
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {source}/test/Cat: a class that split train doesn't have; "
        "add it there or remove the folder\n",
    )
    ran = convert(*flags, "--skip-bad")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 4 images of 3 classes: test 1, train 3",
        "skipped 1 entries, listed in the manifest: 1 INPUT",
        "2 classes have no images in split test: cat, cow",
    ]
    assert manifest.load(out).classes == ("cat", "cow", "dog")


def test_a_split_folder_without_images_is_left_out_and_told(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["train/cat/0.png"])
    (source / "test").mkdir()
    ran = convert("--split-folders", "train=train,test=test")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 1 images of 1 classes: train 1, test 0 (left out)",
        "1 classes have no images in split test: cat",
    ]
    assert list(manifest.load(out).splits) == ["train"]


def test_a_split_folder_that_is_not_there_is_input(convert: Tools, source: Path) -> None:
    write_images(source, ["train/cat/0.png"])
    ran = convert("--split-folders", "train=train,tset=test")
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {source}/tset: No such file or directory; "
        "check that the path exists and its permissions\n",
    )


@pytest.mark.parametrize(
    "text", ["", "train", "train=", "=train", "a=a,a=b", "a=a,./a=b", "../a=a", "/a=a", "a=b/c",
             ".=train", "a\nb=train"],
)  # fmt: skip
def test_split_folders_that_make_no_sense_are_config(
    convert: Tools, source: Path, text: str
) -> None:
    write_images(source, ["a/cat/0.png"])
    ran = convert("--split-folders", text)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: --split-folders: {text!r} is not a list of sub-folders and their splits; "
        "write it like train=train,val=validation\n",
    )


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--split", "train=1"), "--split and --split-folders are both given; give one"),
        (("--labels", "x.csv"), "--labels and --split-folders are both given; give one"),
        (("--shards", 0), "--shards is 0; it must be at least 1"),
        (("--name", "a/b"), "--name is 'a/b'; it may hold letters, digits, ., - and _"),
    ],
)
def test_flags_that_make_no_sense_are_config(
    convert: Tools, source: Path, flags: tuple[object, ...], reason: str
) -> None:
    ran = convert("--split-folders", "train=train", *flags)
    assert (ran.rc, ran.stderr) == (2, f"error: CONFIG: command line: {reason}; {HELP}\n")


# Files and a CSV of their classes


@pytest.mark.parametrize("header", ["", "file,class\n", "image,label\n", "path,Category\n"])
def test_a_csv_names_the_classes_of_a_flat_folder(
    convert: Tools, source: Path, out: Path, header: str
) -> None:
    write_images(source, ["0.png", "1.png", "sub/2.png", "3.png"])
    labels = source / "classes.csv"
    labels.write_text(header + '0.png,cat\n1,"dog, small"\nsub/2.png, cat \n')
    ran = convert("--labels", labels, "--split", "train=1")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 3 images of 2 classes: train 3",
        *([f"row 1, {header.strip()!r}, was taken for a header"] if header else []),
        "1 images have no row and were left out: 3.png",
    ]
    assert labels_of(out) == {pixels(0): "cat", pixels(1): "dog, small", pixels(2): "cat"}


def test_a_csv_of_classes_has_any_separator_and_header(
    convert: Tools, source: Path, out: Path
) -> None:
    write_images(source, ["0.png", "1.png"])
    labels = source.parent / "classes.csv"
    labels.write_text("Datei;Klasse\n0;Katze\n1;Hund\n")
    ran = convert("--labels", labels)
    assert (ran.rc, ran.stderr) == (
        3, f"error: INPUT: {labels}: the rows are separated by ';'; pass --separator ';'\n"
    )  # fmt: skip
    ran = convert("--labels", labels, "--separator", ";", "--header", "yes")
    assert (ran.rc, ran.stderr) == (0, "")
    assert labels_of(out) == {pixels(0): "Katze", pixels(1): "Hund"}
    assert manifest.load(out).created_from["arguments"][1:3] == ["--separator=;", "--header=yes"]


def test_faults_of_a_csv_are_told_by_row(convert: Tools, source: Path, out: Path) -> None:
    write_images(source, ["0.png", "1.png", "2.png"])
    (source / "1.png").write_bytes(b"GIF89a")
    labels = source.parent / "classes.csv"
    labels.write_text("0,cat\n1,dog\n9,dog\n../0.png,dog\n2,a\u200bb\n")
    ran = convert("--labels", labels)
    zero_width = r"'a\u200bb'"
    assert (ran.rc, ran.stderr.splitlines()) == (
        3,
        [
            f"{source}/1.png: GIF is neither JPEG nor PNG",
            f"{labels}:row 3: no image '9'",
            f"{labels}:row 4: '../0.png' is not the name of an image inside the folder",
            f"{labels}:row 5: the class name {zero_width} has a character that can't be printed",
            f"error: INPUT: {labels}: 4 of 5 rows can't be used; mend them; "
            "pass --transcode to store it as PNG, or pass --skip-bad to leave them out",
        ],
    )
    assert convert("--labels", labels, "--skip-bad", "--split", "train=1").rc == 0
    assert manifest.load(out).skipped == (
        "row 2: GIF is neither JPEG nor PNG",
        "row 3: no image '9'",
        "row 4: '../0.png' is not the name of an image inside the folder",
        f"row 5: the class name {zero_width} has a character that can't be printed",
    )
    assert labels_of(out) == {pixels(0): "cat"}


# Any tree of folders


NAMES = st.text("ab.é ", min_size=1, max_size=3).filter(lambda name: name.strip(". ") == name)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.tuples(NAMES, st.lists(NAMES, max_size=2).map(tuple)), st.integers(1, 3)))
def test_a_tree_gives_each_file_once_with_its_top_folder_in_order(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[tuple[str, tuple[str, ...]], int]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    expected = {}
    for (top, below), count in tree.items():
        folder = root / top / Path(*(f"d{name}" for name in below))
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / f"f{number}").touch()
            expected[str((folder / f"f{number}").relative_to(root))] = top
    folders = ClassFolders(root)
    rows = folders.read()
    assert {row.image: row.label for row in rows} == expected
    assert [row.number for row in rows] == list(range(1, len(expected) + 1))
    assert (folders.faults, folders.stray, folders.outside) == ([], [], [])
