"""Labels in the names of files, and sub-folders that are splits."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_captchas import (
    LABEL_FIX,
    SKIP_FIX,
    Ran,
    draw_all,
    files_of,
    found,
    splits,
)

from data_tools import manifest

Tools = Callable[..., Ran]


@pytest.fixture
def convert(convert_labels: Tools) -> Tools:
    return convert_labels


# Labels from names


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        ({"0001_keanuo-9708.png": "keanuo", "0002_ab-1.png": "ab"}, r"_(?P<label>.+)-\d+"),
        ({"0001_keanuo-9708.png": "keanuo", "0002_ab-1.png": "ab"}, r"^(?P<no>\d+)_(?P<label>\w+)"),
        ({"23LYM_33.png": "23LYM", "7_1.png": "7"}, r"^[^_]+"),
        ({"23LYM_33.png": "23LYM", "7_1.png": "7"}, r"(.+)_(\d+)"),
        ({"0+16_-(2).png": "0+16", "3-1_-(10).png": "3-1"}, r"^(.+)_-\(\d+\)"),
        ({"AbC1.png": "AbC1", "x.y.png": "x.y"}, r"(.*)\."),
        ({"[AB]1.png": "AB", "[c].png": "c"}, r"[[](.*)[]]"),
    ],
)
def test_the_label_is_the_group_label_else_the_first_group_else_the_whole_match(
    convert: Tools, folder: Path, out: Path, names: dict[str, str], pattern: str
) -> None:
    draw_all(folder, list(names))
    ran = convert("--label-from-name", pattern)
    assert (ran.rc, ran.stderr) == (0, "")
    assert found(out, folder) == names


NO_LABEL = "finds no label in this name"


def test_a_name_without_a_label_is_a_fault_of_its_file(convert: Tools, folder: Path) -> None:
    draw_all(folder, ["AB_1.png", "CD.png", "sub/_7.png"])
    flag = ("--label-from-name", "^(.*)_")
    (folder / "sub/_7.png").unlink()
    ran = convert(*flag)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {folder}/CD.png: --label-from-name '^(.*)_' {NO_LABEL}; "
        "rename the file, or mend the expression\n"
    )
    draw_all(folder, ["AB_1.png", "CD.png", "sub/_7.png"])
    ran = convert("--label-from-name", "^(X)_")
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: LABEL: {folder}: --label-from-name '^(X)_' finds no label in any of 3 names, such "
        "as 'AB_1.png'; mend the expression\n",
    )
    ran = convert(*flag)
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{folder}/CD.png: --label-from-name '^(.*)_' {NO_LABEL}",
        f"{folder}/sub/_7.png: --label-from-name '^(.*)_' {NO_LABEL}",
        f"error: LABEL: {folder}: 2 of 3 images can't be used; "
        f"rename the file, or mend the expression{SKIP_FIX}",
    ]


@pytest.mark.parametrize("pattern", [r"(?P<label>\d+)?x", r"(\d+)?x", r"()x", r"y|^"])
def test_a_match_whose_label_is_empty_or_takes_no_part_is_a_fault(
    convert: Tools, folder: Path, pattern: str
) -> None:
    draw_all(folder, ["x.png"])
    ran = convert("--label-from-name", pattern)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {folder}/x.png: --label-from-name {pattern!r} {NO_LABEL}; "
        "rename the file, or mend the expression\n"
    )


def test_all_kinds_of_faults_are_told_by_the_file_and_skip_bad_lists_them_by_name(
    convert: Tools, folder: Path, out: Path
) -> None:
    draw_all(folder, ["AB_1.png", "CD.png", "E!_2.png", "GH_3.png"])
    (folder / "GH_3.png").write_bytes(b"")
    flags = ("--label-from-name", "^(.*)_", "--charset", "upper")
    allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    ran = convert(*flags)
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{folder}/CD.png: --label-from-name '^(.*)_' {NO_LABEL}",
        f"{folder}/E!_2.png: label 'E!' has '!', which is not of '{allowed}'",
        f"{folder}/GH_3.png: the file is empty",
        f"error: LABEL: {folder}: 3 of 4 images can't be used; mend them; {LABEL_FIX}{SKIP_FIX}",
    ]
    ran = convert(*flags, "--skip-bad")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[1:] == [
        "skipped 3 images, listed in the manifest: 1 INPUT, 2 LABEL"
    ]
    assert found(out, folder) == {"AB_1.png": "AB"}
    assert manifest.load(out).skipped == (
        f"CD.png: --label-from-name '^(.*)_' {NO_LABEL}",
        f"E!_2.png: label 'E!' has '!', which is not of '{allowed}'",
        "GH_3.png: the file is empty",
    )


def test_a_name_that_is_no_text_is_a_fault_and_can_be_skipped(
    convert: Tools, folder: Path, out: Path
) -> None:
    draw_all(folder, ["AB.png", os.fsdecode(b"C\xff.png")])
    flag = ("--label-from-name", r"^[^.]+")
    ran = convert(*flag)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {folder}/C .png: label 'C\\udcff' has a character that can't be printed; "
        f"{LABEL_FIX}\n"
    )
    assert convert(*flag, "--skip-bad").rc == 0
    assert manifest.load(out).label.charset == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert manifest.load(out).skipped == (
        "C\\udcff.png: label 'C\\udcff' has a character that can't be printed",
    )


def test_images_of_all_sub_folders_are_taken_but_hidden_ones_and_other_files(
    convert: Tools, folder: Path, out: Path
) -> None:
    taken = ["AA.png", "b/BB.PNG", "b/c/CC.png", "d e/DD.jpeg"]
    draw_all(folder, [*taken, ".git/XX.png", "b/._BB.png", "b/.x/YY.png"])
    for name in ("README.md", "b/Thumbs.db", "labels.txt"):
        (folder / name).write_text("no image")
    assert convert("--label-from-name", r"^\w+").rc == 0
    assert sorted(found(out, folder)) == taken


def test_links_to_folders_outside_or_read_already_are_refused(
    convert: Tools, folder: Path, csv: Path, tmp_path: Path
) -> None:
    draw_all(folder, ["AA.png", "sub/BB.png"])
    draw_all(tmp_path / "elsewhere", ["CC.png"])
    flag = ("--label-from-name", r"^\w+")
    (folder / "root").symlink_to("/")
    assert convert(*flag).stderr == (
        f"error: INPUT: {folder}/root: it leads back to the source; remove the link\n"
    )
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "sub/again").symlink_to("../sub")
    (folder / "circle").symlink_to(".")
    ran = convert(*flag)
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{folder}/circle: it leads back to the source",
        f"{folder}/link: it leads out of the source",
        f"{folder}/root: it leads back to the source",
        f"{folder}/sub/again: the same folder as sub",
        f"error: INPUT: {folder}: 4 links can't be followed; remove them",
    ]
    csv.write_text("AA,AA\nlink/CC.png,CC\n")
    assert convert().stderr == (
        f"error: INPUT: {csv}:row 2: no image 'link/CC.png'; add the image or take out the row\n"
    )


def test_links_to_files_are_followed(
    convert: Tools, folder: Path, out: Path, tmp_path: Path
) -> None:
    draw_all(tmp_path / "elsewhere", ["CC.png"])
    folder.mkdir()
    (folder / "CC.png").symlink_to(tmp_path / "elsewhere/CC.png")
    assert convert("--label-from-name", r"^\w+").rc == 0
    assert found(out, folder) == {"CC.png": "CC"}


def test_folders_named_like_images_are_folders(convert: Tools, folder: Path, out: Path) -> None:
    draw_all(folder, ["a.png/AA.png", "b.jpg/CC.png"])
    flags = ("--label-from-name", r"^\w+", "--split-folders", "a.png=train,b.jpg=test")
    assert convert(*flags).rc == 0
    assert splits(out) == {"train": ["AA"], "test": ["CC"]}


@pytest.mark.parametrize("names", [[], ["x.txt"], [".hidden.png"]])
def test_a_folder_without_images_is_input(convert: Tools, folder: Path, names: list[str]) -> None:
    folder.mkdir()
    draw_all(folder, names)
    ran = convert("--label-from-name", ".+")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder}: no images; name them *.jpg, *.jpeg, *.png, *.bmp, *.gif, *.webp\n"
    )


def test_the_order_of_files_and_the_workers_change_no_byte(
    data_tools: Tools, tmp_path: Path
) -> None:
    names = [f"{part}/{index:02}_{'é' * (index % 3)}{index}.png" for index in range(12)
             for part in ("train", "val", "more")]  # fmt: skip
    draw_all(tmp_path / "drawn", names)
    sets = []
    for workers in (1, 2):
        folder, out = tmp_path / f"images{workers}", tmp_path / f"set{workers}"
        random.Random(workers).shuffle(names)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "drawn" / name, folder / name)
        ran = data_tools(
            "captcha-to-tfrecord", folder, "-", out, "--label-from-name", r"_(.*)\.",
            "--split-folders", "train=train,val=validation,more=train", "--variable-length",
            "--workers", workers,
        )  # fmt: skip
        assert (ran.rc, ran.stderr) == (0, "")
        sets.append(files_of(out))
    assert sets[0] == sets[1]


# Folders of splits


def test_sub_folders_are_splits_by_names(convert: Tools, folder: Path, out: Path) -> None:
    draw_all(folder, ["train/AA.png", "train/deep/BB.png", "val/CC.png", "other/DD.png", "EE.png"])
    ran = convert("--label-from-name", r"^\w+", "--split-folders", "train=train,val=validation")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 3 captchas: train 2, validation 1",
        "2 images are in no folder of --split-folders and were left out: EE.png, other/DD.png",
    ]
    assert splits(out) == {"train": ["AA", "BB"], "validation": ["CC"]}


def test_sub_folders_are_splits_by_a_csv(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, ["train/0.png", "train/1.png", "val/0.png", "val/9.png"])
    csv.write_text("file,label\ntrain/0.png,AA\nval/0,BB\n./train/1.png,CC\n")
    ran = convert("--split-folders", "val=validation,train=train")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{out}: 3 captchas: validation 1, train 2",
        "row 1, 'file,label', was taken for a header",
        "1 images have no row and were left out: val/9.png",
    ]
    assert splits(out) == {"validation": ["BB"], "train": ["AA", "CC"]}
    assert list(manifest.load(out).splits) == ["validation", "train"]


def test_several_folders_may_be_one_split_and_the_innermost_counts(
    convert: Tools, folder: Path, out: Path
) -> None:
    draw_all(folder, ["a/AA.png", "a/held out/BB.png", "c/CC.png"])
    ran = convert(
        "--label-from-name", r"^\w+", "--split-folders", "a=train,a/held out/=test,c=train"
    )
    assert (ran.rc, ran.stderr) == (0, "")
    assert splits(out) == {"train": ["AA", "CC"], "test": ["BB"]}


def test_equal_images_stay_in_their_folders_splits(convert: Tools, folder: Path, out: Path) -> None:
    draw_all(folder, ["train/AA.png"])
    (folder / "val").mkdir()
    shutil.copy(folder / "train/AA.png", folder / "val/BB.png")
    assert convert("--label-from-name", r"^\w+", "--split-folders", "train=train,val=test").rc == 0
    assert splits(out) == {"train": ["AA"], "test": ["BB"]}


def test_a_row_outside_the_folders_is_a_fault_of_the_row(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["train/0.png", "1.png"])
    csv.write_text("train/0.png,AA\n1.png,BB\n")
    ran = convert("--split-folders", "train=train")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}:row 2: 1.png lies in no folder of --split-folders; "
        "name its folder there, or take out the row\n"
    )


def test_a_split_without_examples_is_left_out_and_told(
    convert: Tools, folder: Path, out: Path
) -> None:
    draw_all(folder, ["train/AA.png"])
    (folder / "val").mkdir()
    ran = convert("--label-from-name", r"^\w+", "--split-folders", "train=train,val=validation")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 1 captchas: train 1, validation 0 (left out)\n"
    assert splits(out) == {"train": ["AA"]}
    assert not (out / "offsets-validation.npy").exists()


def test_a_folder_that_is_not_there_is_config(convert: Tools, folder: Path) -> None:
    draw_all(folder, ["train/AA.png", "val.png"])
    for name in ("valid", "val.png", "train/AA.png", "train/val"):
        ran = convert("--label-from-name", r"^\w+", "--split-folders", f"train=train,{name}=test")
        assert ran.rc == 2
        assert ran.stderr == (
            f"error: CONFIG: --split-folders: no folder '{name}' in {folder}; "
            "name sub-folders of IMAGES\n"
        )


@pytest.mark.parametrize(
    "text",
    ["", "train", "train=", "=train", "train=a b", "train=train,train=test", "train=train,",
     "../images/train=train", "/=train", ".=train", "train=../x", "train=train,train/=test"],
)  # fmt: skip
def test_a_list_of_folders_that_makes_no_sense_is_config(
    convert: Tools, folder: Path, text: str
) -> None:
    draw_all(folder, ["train/AA.png"])
    ran = convert("--label-from-name", r"^\w+", "--split-folders", text)
    assert ran.rc == 2
    assert ran.stderr == (
        f"error: CONFIG: --split-folders: {text!r} is not a list of sub-folders and their splits; "
        "write it like train=train,val=validation\n"
    )
