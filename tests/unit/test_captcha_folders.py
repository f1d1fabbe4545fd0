"""Folders as people have them: other formats, mixed sizes and modes, many faults, real sets."""

import io
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captchas import (
    DIGITS,
    LOWER,
    SKIP_FIX,
    UPPER,
    Ran,
    draw,
    files_of,
    read_set,
    write_captchas,
)

from data_tools import images, manifest

Tools = Callable[..., Ran]


@pytest.fixture
def convert(data_tools: Tools, folder: Path, out: Path) -> Tools:
    """Converts images/ and labels.csv to set/ with one split; a fault leaves no output."""

    def run(*flags: object) -> Ran:
        csv = folder.parent / "labels.csv"
        ran = data_tools(
            "captcha-to-tfrecord", folder, csv, out, "--split", "all=1", "--workers", 1, *flags
        )
        assert ran.rc == 0 or not out.exists()
        assert not out.with_name("set.incomplete").exists()
        return ran

    return run


def pixels_of(record: bytes) -> np.ndarray:
    """The pixels of a PNG or JPEG record, uint8 [height, width, 3]."""
    return images.decode(record, "record")


def on_white(path: Path) -> np.ndarray:
    """Pillow's own decoding, uint8 [height, width, 3]."""
    with Image.open(path) as image:
        whole = image.convert("RGBA")
    white = Image.new("RGBA", whole.size, "white")
    return np.asarray(Image.alpha_composite(white, whole).convert("RGB"))


# Other formats

FORMATS = ["BMP", "GIF", "WEBP", "JPEG", "PNG"]


def one_of_each(folder: Path) -> Path:
    """0.bmp, 1.gif, 2.webp, 3.jpeg and 4.png, and then the same all named .jpg."""
    csv = write_captchas(folder, {f"{i}.{name.lower()}": f"A{i}" for i, name in enumerate(FORMATS)})
    with csv.open("a") as rows:
        for index, name in enumerate(FORMATS):
            draw(index).save(folder / f"{index}.{name.lower()}", name)
            draw(index + 5).save(folder / f"{index + 5}.jpg", name)
            rows.write(f"{index + 5},B{index}\n")
    return csv


def test_without_transcode_each_other_format_is_a_fault_that_names_the_flag(
    convert: Tools, folder: Path
) -> None:
    csv = one_of_each(folder)
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{folder}/0.bmp: BMP is neither JPEG nor PNG",
        f"{folder}/1.gif: GIF is neither JPEG nor PNG",
        f"{folder}/2.webp: WEBP is neither JPEG nor PNG",
        f"{folder}/5.jpg: BMP is neither JPEG nor PNG",
        f"{folder}/6.jpg: GIF is neither JPEG nor PNG",
        f"{folder}/7.jpg: WEBP is neither JPEG nor PNG",
        f"error: INPUT: {csv}: 6 of 10 rows can't be used; "
        f"pass --transcode to store it as PNG{SKIP_FIX}",
    ]


@pytest.mark.parametrize("encoding", ["original", "raw"])
def test_transcode_takes_each_format_by_content_in_one_folder(
    convert: Tools, data_tools: Tools, folder: Path, out: Path, encoding: str
) -> None:
    csv = one_of_each(folder)
    ran = convert("--transcode", "--image-encoding", encoding)
    assert (ran.rc, ran.stderr) == (0, "")
    assert data_tools("verify", out).rc == 0
    rows = read_set(out)["all"]
    assert [row["text"] for row in rows] == [line[-2:] for line in csv.read_bytes().splitlines()]
    for index, row in enumerate(rows):
        path = next(folder.glob(f"{index}.*"))
        if encoding == "raw":
            assert row["image"] == on_white(path).tobytes()
        else:
            np.testing.assert_array_equal(pixels_of(row["image"]), on_white(path))
            if FORMATS[index % 5] in ("JPEG", "PNG"):
                assert row["image"] == path.read_bytes()
    expected = {"original": "mixed", "raw": "raw"}[encoding]
    assert manifest.load(out).image.encoding == expected


def test_ids_find_images_of_every_extension(convert: Tools, folder: Path, out: Path) -> None:
    csv = one_of_each(folder)
    csv.write_text("".join(f"{index},A{index}\n" for index in range(5)))
    ran = convert("--transcode")
    assert (ran.rc, ran.stderr) == (0, "")
    assert "5 images have no row and were left out: " in ran.stdout
    assert [row["text"] for row in read_set(out)["all"]] == [b"A0", b"A1", b"A2", b"A3", b"A4"]


# Mixed sizes

SIZES = [(24, 12), (24, 12), (30, 12), (21, 13)]


def of_sizes(folder: Path) -> None:
    write_captchas(folder, [f"A{index}" for index in range(4)])
    for index, (width, height) in enumerate(SIZES):
        draw(index, width=width, height=height).save(folder / f"{index}.jpg")


@pytest.mark.parametrize("encoding", ["original", "raw"])
def test_resize_scales_all_images_to_one_size_by_lanczos(
    convert: Tools, data_tools: Tools, folder: Path, out: Path, encoding: str
) -> None:
    of_sizes(folder)
    ran = convert("--resize", "20x10", "--image-encoding", encoding)
    assert (ran.rc, ran.stderr) == (0, "")
    assert data_tools("verify", out).rc == 0
    stored = {"original": "png", "raw": "raw"}[encoding]
    assert manifest.load(out).image == manifest.ImageSpec(
        height=10, width=20, channels=3, encoding=stored
    )
    for index, row in enumerate(read_set(out)["all"]):
        original = Image.fromarray(on_white(folder / f"{index}.jpg"))
        expected = np.asarray(original.resize((20, 10), Image.Resampling.LANCZOS))
        if encoding == "raw":
            assert row["image"] == expected.tobytes()
        else:
            np.testing.assert_array_equal(pixels_of(row["image"]), expected)


@pytest.mark.parametrize("encoding", ["original", "raw"])
def test_pad_puts_all_images_in_the_middle_of_white_ones(
    convert: Tools, data_tools: Tools, folder: Path, out: Path, encoding: str
) -> None:
    of_sizes(folder)
    ran = convert("--pad", "31x14", "--image-encoding", encoding)
    assert (ran.rc, ran.stderr) == (0, "")
    assert data_tools("verify", out).rc == 0
    for index, row in enumerate(read_set(out)["all"]):
        (width, height), expected = SIZES[index], np.full((14, 31, 3), 255, np.uint8)
        left, top = (31 - width) // 2, (14 - height) // 2
        expected[top : top + height, left : left + width] = on_white(folder / f"{index}.jpg")
        if encoding == "raw":
            assert row["image"] == expected.tobytes()
        else:
            np.testing.assert_array_equal(pixels_of(row["image"]), expected)


def test_images_larger_than_the_frame_are_faults_of_their_own(
    convert: Tools, folder: Path, out: Path
) -> None:
    of_sizes(folder)
    ran = convert("--pad", "24x13")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder}/2.jpg: 30x12 pixels are more than the 24x13 of --pad; "
        "choose a larger --pad, or --resize\n"
    )
    assert convert("--pad", "24x13", "--skip-bad").rc == 0
    assert [row["text"] for row in read_set(out)["all"]] == [b"A0", b"A1", b"A3"]


@pytest.mark.parametrize("flag", ["--resize", "--pad"])
def test_a_frame_of_more_pixels_than_any_image_may_have_is_config(
    convert: Tools, folder: Path, flag: str
) -> None:
    of_sizes(folder)
    ran = convert(flag, "4000x4001")
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: {flag}: 4000x4001 pixels, the limit is 16,000,000; choose a smaller one\n"
    )


def test_mixed_modes_of_one_folder_all_become_rgb(convert: Tools, folder: Path, out: Path) -> None:
    modes = ["RGB", "RGBA", "L", "LA", "P", "1"]
    write_captchas(folder, {f"{mode}.png": "AB" for mode in modes})
    for index, mode in enumerate(modes):
        draw(index).convert(mode).save(folder / f"{mode}.png")
    draw(9).convert("CMYK").save(folder / "CMYK.jpg")
    with (folder.parent / "labels.csv").open("a") as rows:
        rows.write("CMYK,AB\n")
    assert convert().rc == 0
    for name, row in zip([*modes, "CMYK"], read_set(out)["all"], strict=True):
        path = next(folder.glob(f"{name}.*"))
        assert np.abs(pixels_of(row["image"]).astype(int) - on_white(path)).max() <= 3
        with Image.open(io.BytesIO(row["image"])) as image:
            assert image.mode in ("RGB", "L")


def test_the_flags_change_no_byte_for_any_number_of_workers(
    data_tools: Tools, folder: Path, tmp_path: Path
) -> None:
    csv = one_of_each(folder)
    for flags in (("--resize", "33x11"), ("--pad", "33x13")):
        sets = []
        for workers in (1, 2):
            out = tmp_path / f"{flags[0]}{workers}"
            ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--transcode", *flags,
                             "--workers", workers)  # fmt: skip
            assert (ran.rc, ran.stderr) == (0, "")
            sets.append(files_of(out))
        assert sets[0] == sets[1]


# Many faults, many shards


@pytest.mark.parametrize("count", [50, 51, 120])
def test_of_many_damaged_images_50_are_told_and_all_are_counted(
    data_tools: Tools, folder: Path, out: Path, count: int
) -> None:
    csv = write_captchas(folder, [f"{index:03d}" for index in range(130)])
    for index in range(count):
        path = folder / f"{index}.jpg"
        path.write_bytes(path.read_bytes()[:-2])
    ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--workers", 2)
    assert ran.rc == 3
    reason = "the JPEG is cut short, its end marker is missing"
    assert ran.stderr.splitlines() == [
        *(f"{folder}/{index}.jpg: {reason}" for index in range(50)),
        *([f"... {count} faults, 50 shown"] if count > 50 else []),
        f"error: INPUT: {csv}: {count} of 130 rows can't be used; replace the file{SKIP_FIX}",
    ]
    assert not out.exists()


def test_a_thousand_shards_are_written_and_verified_with_64_open_files(
    folder: Path, out: Path
) -> None:
    csv = write_captchas(folder, [f"{index:04d}" for index in range(1000)])
    convert = ["captcha-to-tfrecord", folder, csv, out, "--shards", 1000, "--workers", 2,
               "--split", "train=0.5,test=0.5"]  # fmt: skip
    for command in (convert, ["verify", out]):
        ran = subprocess.run(
            ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, "-m", "data_tools",
             *map(str, command)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
    whole = manifest.load(out)
    assert sum(len(split.shards) for split in whole.splits.values()) == 1000
    assert sum(split.examples for split in whole.splits.values()) == 1000


# Real folders, each by one command


def check_set(out: Path, spec: tuple[int, int, str], splits: dict[str, int], charset: str) -> None:
    """Compares width, height and encoding, the count of each split, and the charset."""
    whole = manifest.load(out)
    assert (whole.image.width, whole.image.height, whole.image.encoding) == spec
    assert {name: split.examples for name, split in whole.splits.items()} == splits
    assert whole.label is not None
    assert whole.label.charset == charset
    assert whole.skipped == ()


def labels_by_folder(source: Path, pattern: str) -> dict[str, Counter[str]]:
    """The labels in the names of the images of each sub-folder, found without our reader."""
    labels: dict[str, Counter[str]] = {}
    for path in source.glob("*/*.[jp][pn]g"):
        match = re.match(pattern, path.name)
        assert match
        labels.setdefault(path.parent.name, Counter())[match[0]] += 1
    return labels


def texts_of(rows: list[dict[str, bytes]]) -> Counter[str]:
    return Counter(row["text"].decode() for row in rows)


def test_genpics_digits_has_5000_captchas_and_another_length_is_refused(
    captcha_sets: Path, data_tools: Tools, out: Path
) -> None:
    source = captcha_sets / "genpics_digits"
    command = ("captcha-to-tfrecord", source, source / "labels.csv", out)
    ran = data_tools(*command, "--length", 5)
    assert ran.rc == 3
    lines = ran.stderr.splitlines()
    assert lines[0] == (
        f"{source}/labels.csv:row 1: 0.jpg: label '2684' has 4 characters in place of 5"
    )
    assert lines[50:] == [
        "... 5000 faults, 50 shown",
        f"error: LABEL: {source}/labels.csv: 5000 of 5000 rows can't be used; "
        f"mend the label, or see --charset, --case, --length and --variable-length{SKIP_FIX}",
    ]
    ran = data_tools(*command)
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 5000 captchas: train 4480, test 520\n"
    check_set(out, (60, 24, "jpeg"), {"train": 4480, "test": 520}, DIGITS)


def test_images_v2_mixes_rgba_pngs_and_jpegs_in_folders_of_splits(
    captcha_sets: Path, data_tools: Tools, out: Path
) -> None:
    source = captcha_sets / "images_v2"
    ran = data_tools(
        "captcha-to-tfrecord", source, "-", out, "--label-from-name", "^[^.]+",
        "--split-folders", "train=train,val=validation",
    )  # fmt: skip
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 1070 captchas: train 856, validation 214",
        "1 images are in no folder of --split-folders and were left out: sample/2b827.png",
    ]
    check_set(out, (200, 50, "mixed"), {"train": 856, "validation": 214}, DIGITS + LOWER)
    labels = labels_by_folder(source, "[^.]+")
    rows = read_set(out)
    assert texts_of(rows["train"]) == labels["train"]
    assert texts_of(rows["validation"]) == labels["val"]
    for split, folder in (("train", "train"), ("validation", "val")):
        for row in rows[split]:
            path = next((source / folder).glob(row["text"].decode() + ".*"))
            np.testing.assert_array_equal(pixels_of(row["image"]), on_white(path))
            if path.suffix == ".jpg":
                assert row["image"] == path.read_bytes()


def test_mixed_80x20_keeps_the_case_of_its_labels(
    captcha_sets: Path, data_tools: Tools, out: Path
) -> None:
    source = captcha_sets / "mixed_80x20"
    ran = data_tools(
        "captcha-to-tfrecord", source, "-", out, "--label-from-name", "^[^.]+",
        "--split-folders", "train=train,test=test",
    )  # fmt: skip
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 3997 captchas: train 1998, test 1999\n"
    check_set(out, (80, 20, "png"), {"train": 1998, "test": 1999}, DIGITS + UPPER + LOWER)
    labels = labels_by_folder(source, "[^.]+")
    assert {name: texts_of(rows) for name, rows in read_set(out).items()} == labels


SWUST = ("--label-from-name", "^[^_]+")


def test_swust_is_of_three_sizes_and_refused_without_a_frame(
    captcha_sets: Path, data_tools: Tools, out: Path
) -> None:
    source = captcha_sets / "swust"
    ran = data_tools("captcha-to-tfrecord", source, "-", out, *SWUST)
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        "1750 of 90x30, first 20200226/03fs_3d13dc08b178bfa268e2fada2585323b.jpg",
        "1641 of 100x35, first 20191218/002p_56dc268efdae9066f8f3eec5ade4c5a0.jpg",
        "1309 of 92x34, first 20190121/113d_77b2c2f41ab8a8196ec3508e6f1171bd.jpg",
        f"error: INPUT: {source}: images of 3 sizes, a data set has one; "
        "pass --resize 90x30 or --pad 100x35, or convert each size to its own data set",
    ]
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--resize", "--pad"])
def test_swust_converts_with_what_the_refusal_proposes(
    captcha_sets: Path, data_tools: Tools, out: Path, flag: str
) -> None:
    source = captcha_sets / "swust"
    size = {"--resize": (90, 30), "--pad": (100, 35)}[flag]
    ran = data_tools(
        "captcha-to-tfrecord", source, "-", out, *SWUST, flag, "{}x{}".format(*size)
    )  # fmt: skip
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 4700 captchas: train 4243, test 457\n"
    check_set(out, (*size, "png"), {"train": 4243, "test": 457}, DIGITS + LOWER)
    labels = labels_by_folder(source, "[^_]+")
    rows = read_set(out)
    assert texts_of(rows["train"] + rows["test"]) == sum(labels.values(), Counter[str]())


def test_one_folder_of_swust_is_of_one_size_and_kept_as_it_is(
    captcha_sets: Path, data_tools: Tools, out: Path
) -> None:
    source = captcha_sets / "swust" / "20190121"
    ran = data_tools("captcha-to-tfrecord", source, "-", out, *SWUST, "--split", "all=1")
    assert (ran.rc, ran.stderr) == (0, "")
    check_set(out, (92, 34, "jpeg"), {"all": 1309}, DIGITS + LOWER)
    stored = Counter(row["image"] for row in read_set(out)["all"])
    assert stored == Counter(path.read_bytes() for path in source.iterdir())


def test_a_real_folder_under_labels_of_another_set_lists_what_is_missing(
    captcha_sets: Path, data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    source = captcha_sets / "mixed_80x20" / "train"
    csv = shutil.copy(captcha_sets / "genpics_digits" / "labels.csv", tmp_path)
    ran = data_tools("captcha-to-tfrecord", source, csv, out)
    assert ran.rc == 3
    lines = ran.stderr.splitlines()  # eleven captchas read like the number of a row
    assert len(lines) == 52
    assert lines[0] == f"{csv}:row 1: no image '0'"
    assert lines[-2:] == [
        "... 4989 faults, 50 shown",
        f"error: INPUT: {csv}: 4989 of 5000 rows can't be used; "
        f"add the image or take out the row{SKIP_FIX}",
    ]
