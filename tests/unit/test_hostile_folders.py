"""Inputs and outputs that no sane folder has: nothing hangs, nothing of the user's is lost."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_captchas import Ran, files_of, write_captchas

from data_tools import images, manifest, schema
from data_tools.errors import DataError
from data_tools.sources.image_folder import ImageFolder
from data_tools.writer import atomic_folder

Tools = Callable[..., Ran]
LABELS = ["ABCD", "EFGH", "IJKL", "MNOP"]
AGAIN = "choose another folder"


@pytest.fixture
def convert(data_tools: Tools, folder: Path) -> Tools:
    """Converts images/ and labels.csv to set/ or another path."""
    write_captchas(folder, LABELS)

    def run(*flags: object, csv: Path | None = None, out: Path | None = None) -> Ran:
        csv, out = csv or folder.parent / "labels.csv", out or folder.parent / "set"
        return data_tools("captcha-to-tfrecord", folder, csv, out, "--workers", 1, *flags)

    return run


# Images


def test_a_pipe_in_place_of_an_image_is_input_and_not_waited_for(
    convert: Tools, folder: Path
) -> None:
    (folder / "2.jpg").unlink()
    os.mkfifo(folder / "2.jpg")
    ran = convert()
    assert (ran.rc, ran.stderr) == (
        3, f"error: INPUT: {folder / '2.jpg'}: not a file; replace the file\n"
    )  # fmt: skip


def test_a_file_larger_than_any_image_is_input_and_not_read(convert: Tools, folder: Path) -> None:
    os.truncate(folder / "2.jpg", 30 << 30)
    ran = convert()
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {folder / '2.jpg'}: 32,212,254,720 bytes, the limit is "
        f"{images.MAX_BYTES:,}; replace the file\n",
    )


def test_a_name_too_long_for_a_file_is_an_image_that_is_not_there(
    convert: Tools, folder: Path
) -> None:
    csv = folder.parent / "labels.csv"
    csv.write_text(csv.read_text() + f"x/{'a' * 5000},ABCD\n")
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.startswith(f"error: INPUT: {csv}:row 5: no image 'x/aaa")


@pytest.mark.parametrize("names", [["a.jpg"], ["a.JPG", "b.jpg"], ["a.b.Jpeg"], ["a.jpg.png"]])
def test_an_image_is_found_by_its_name_without_extension(folder: Path, names: list[str]) -> None:
    write_captchas(folder, dict.fromkeys(names, "ABCD"))
    found = ImageFolder(folder)
    for name in names:
        assert found.find(name) == found.find(Path(name).stem) == [name]


# Text that can't be printed


def test_file_names_that_are_no_text_are_told_on_any_terminal(folder: Path) -> None:
    csv = write_captchas(folder, LABELS)
    shutil.copy(folder / "0.jpg", folder / os.fsdecode(b"\xff.jpg"))
    ran = subprocess.run(
        [sys.executable, "-m", "data_tools", "captcha-to-tfrecord", folder, csv,
         folder.parent / "set"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[1:] == [
        r"1 images have no row and were left out: \udcff.jpg"
    ]  # fmt: skip


def test_what_was_skipped_is_the_same_wherever_the_images_lie(
    data_tools: Tools, tmp_path: Path
) -> None:
    sets = []
    for place in (b"plain", b"sub/folder", b"\xff"):
        folder = tmp_path / os.fsdecode(place)
        csv = write_captchas(folder, LABELS, labels=tmp_path / "labels.csv")
        csv.write_text(csv.read_text() + "9,ABCD\n../9,ABCD\n")
        (folder / "1.jpg").write_bytes(b"")
        out = tmp_path / f"set{len(sets)}"
        ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--skip-bad", "--workers", 1)
        assert (ran.rc, ran.stderr) == (0, "")
        sets.append(files_of(out))
    assert sets[0] == sets[1] == sets[2]
    assert manifest.load(tmp_path / "set0").skipped == (
        "row 2: the file is empty",
        "row 5: no image '9'",
        "row 6: '../9' is not the name of an image inside the folder",
    )


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--name", "a\nb", r"--name is 'a\nb'; it may hold letters, digits, ., - and _"),
        ("--name", "a\udcff", r"--name is 'a\udcff'; it may hold letters, digits, ., - and _"),
        ("--charset", "AB\udcff", r"--charset is 'AB\udcff'; not all of it can be printed"),
    ],
)
def test_flags_that_no_manifest_can_hold_are_config(
    convert: Tools, flag: str, value: str, reason: str
) -> None:
    ran = convert(flag, value)
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: command line: {reason}; see data_tools captcha-to-tfrecord --help\n"
    )  # fmt: skip


def test_a_closed_standard_output_stops_nothing(folder: Path) -> None:
    csv = write_captchas(folder, LABELS)
    out = folder.parent / "set"
    command = [sys.executable, "-m", "data_tools", "captcha-to-tfrecord", folder, csv, out]
    ran = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *map(str, command)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert manifest.load(out).splits["train"].examples > 0


# Outputs


def test_labels_in_the_folder_that_is_replaced_are_config_and_stay(
    convert: Tools, folder: Path
) -> None:
    out = folder.parent / "set"
    assert convert().rc == 0
    csv = Path(shutil.copy(folder.parent / "labels.csv", out))
    ran = convert("--overwrite", csv=csv)
    assert (ran.rc, ran.stderr) == (2, f"error: CONFIG: {out}: it holds the labels; {AGAIN}\n")
    assert csv.exists()


def test_images_in_the_folder_of_an_unfinished_run_are_config_and_stay(
    convert: Tools, folder: Path
) -> None:
    moved = folder.with_name("set.incomplete")
    folder.rename(moved)
    folder.symlink_to(moved)
    before = files_of(moved)
    ran = convert()
    out = folder.parent / "set"
    assert (ran.rc, ran.stderr) == (2, f"error: CONFIG: {out}: it holds the images; {AGAIN}\n")
    assert files_of(moved) == before


def test_a_second_run_to_the_same_folder_is_config_and_the_first_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "set"
    with atomic_folder(target) as folder:
        (folder / "file").write_bytes(b"of the first")
        with pytest.raises(DataError) as raised, atomic_folder(target):
            pass
        assert str(raised.value) == (
            f"error: CONFIG: {target}.incomplete: another process is writing it; wait for it to end"
        )
    assert files_of(target) == {"file": b"of the first"}


def test_a_folder_made_while_we_wrote_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "set"
    with pytest.raises(DataError) as raised, atomic_folder(target):
        target.mkdir()
    assert raised.value.reason == "it exists already"
    assert list(tmp_path.iterdir()) == [target]


def test_two_conversions_at_once_make_one_whole_set(folder: Path, data_tools: Tools) -> None:
    csv = write_captchas(folder, [f"{index:04d}" for index in range(300)])
    out = folder.parent / "set"
    command = [sys.executable, "-m", "data_tools", "captcha-to-tfrecord", folder, csv, out]
    runs = [
        subprocess.Popen([*map(str, command), "--workers", "1"], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [run.communicate(timeout=60)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 2]
    assert "error: CONFIG: " in "".join(errors)
    assert data_tools("verify", out).rc == 0
    assert not out.with_name("set.incomplete").exists()


def test_sigterm_is_answered_as_ctrl_c_is(folder: Path) -> None:
    csv = write_captchas(folder, [f"{index:04d}" for index in range(400)])
    for copy in range(1, 50):
        for index in range(0, 400, 4):
            os.link(folder / f"{index}.jpg", folder / f"{index}x{copy}.jpg")
            with csv.open("a") as rows:
                rows.write(f"{index}x{copy},{index:04d}\n")
    out = folder.parent / "set"
    process = subprocess.Popen(
        [sys.executable, "-m", "data_tools", "captcha-to-tfrecord", folder, csv, out],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not any(out.with_name("set.incomplete").glob("*")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "interrupted\n")
    assert {path.name for path in out.parent.iterdir()} == {"images", "labels.csv"}


# Records


def test_a_record_of_another_encoding_than_the_manifest_says_is_integrity(
    convert: Tools, folder: Path
) -> None:
    assert convert().rc == 0
    whole = manifest.load(folder.parent / "set")
    pixels = images.decode((folder / "0.jpg").read_bytes(), "0.jpg")
    record = schema.captcha_record(images.encode_png(pixels), "ABCD", whole.label.charset)
    with pytest.raises(DataError) as raised:
        schema.decode_record(record, whole, "record 0")
    assert str(raised.value) == (
        "error: INTEGRITY: record 0: not a record of this data set: an image that is not jpeg; "
        "convert the data set again"
    )
