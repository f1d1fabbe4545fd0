"""`hvd_train predict` with a trained run: what it reads, writes, and says of what it can't read."""

import contextlib
import csv
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import content
from small_captchas import Ran

from data_tools.errors import parse_flags, run_main
from hvd_train.flags import Predict

Predicts = Callable[..., Ran]
SIZE = ("--charset", "AB37", "--length", "3", "--size", "48x16", "--dots", "0", "--curves", "0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, run_cli: Callable[..., Any]) -> Path:
    """A folder with a run in runs/a that reads nearly all captchas, and unseen ones in fresh/."""
    folder = tmp_path_factory.mktemp("trained")
    for command in (
        ["data_tools", "make-captcha", "images", "--count", "700", *SIZE],
        ["data_tools", "captcha-to-tfrecord", "images", "images/labels.csv", "set"],
        ["hvd_train", "captcha", "--data", "set", "--epochs", "12", "--batch-size", "32",
         "--name", "a", "--runs-dir", "runs", "--eval-every", "12"],
        ["data_tools", "make-captcha", "fresh", "--count", "300", "--seed", "9", *SIZE],
    ):  # fmt: skip
        done = run_cli(command, cwd=folder, timeout=300)
        assert done.rc == 0, done.stderr
    return folder


@pytest.fixture
def predict(trained: Path) -> Predicts:
    """Runs the command in this process, where TensorFlow has started once."""
    from hvd_train import predict

    def run(*args: object) -> Ran:
        argv = [str(trained / "runs/a"), *map(str, args)]
        parse = functools.partial(parse_flags, Predict, prog="hvd_train predict", argv=argv)
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            rc = run_main(lambda: predict.main(parse()))
        return Ran(rc=rc, stdout=content(out), stderr=content(err))

    return run


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def truth(trained: Path) -> dict[str, str]:
    with (trained / "fresh/labels.csv").open(newline="") as file:
        return {f"{trained}/fresh/{name}.jpg": label for name, label in csv.reader(file)}


def test_labels_are_read_and_written_as_csv_and_as_json_lines(
    predict: Predicts, trained: Path, tmp_path: Path
) -> None:
    ran = predict(trained / "fresh")
    assert (ran.rc, ran.stderr) == (0, "1 files that are not named as images were left out\n")
    found, right = rows(ran.stdout), truth(trained)
    assert ran.stdout.startswith("file,label,probability\n")
    assert [row["file"] for row in found] == sorted(right)
    assert sum(row["label"] == right[row["file"]] for row in found) > 0.85 * len(found)
    assert all(0 <= float(row["probability"]) <= 1 for row in found)
    output = tmp_path / "out.jsonl"
    output.write_text("of before")
    ran = predict(trained / "fresh", "--format", "jsonl", "--output", output)
    assert (ran.rc, ran.stdout) == (0, "")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [{**line, "probability": str(line["probability"])} for line in lines] == found
    assert list(tmp_path.iterdir()) == [output]


def test_bad_files_are_a_line_each_and_the_rest_is_predicted(
    predict: Predicts, trained: Path, tmp_path: Path
) -> None:
    good = sorted(truth(trained))[:3]
    text, missing = tmp_path / "a.jpg", tmp_path / "b.jpg"
    text.write_text("no image")
    ran = predict(good[0], text, good[1], missing, good[2])
    assert (ran.rc, [row["file"] for row in rows(ran.stdout)]) == (3, good)
    assert ran.stderr == (
        f"{text}: the content is neither JPEG nor PNG\n"
        f"{missing}: No such file or directory\n"
        "error: INPUT: FILE: 2 of 5 files could not be read; "
        "mend them or leave them out; the others are done\n"
    )
    ran = predict("x" * 300, good[0])
    assert (ran.rc, [row["file"] for row in rows(ran.stdout)]) == (3, good[:1])
    ran = predict(text)
    assert (ran.rc, ran.stdout) == (3, "file,label,probability\n")
    fault = f"{text}: the content is neither JPEG nor PNG; replace the file"
    assert ran.stderr == f"error: INPUT: {fault}\n"


def test_names_of_any_bytes_are_quoted_or_escaped(
    predict: Predicts, trained: Path, tmp_path: Path
) -> None:
    image = Path(min(truth(trained))).read_bytes()
    for name in (b"a,b.jpg", b"line\nbreak.jpg", b"r\rr.jpg", b"z\xff.jpg"):
        (tmp_path / os.fsdecode(name)).write_bytes(image)
    output = tmp_path / "out"
    for form in ("csv", "jsonl"):
        assert predict(tmp_path, "--format", form, "--output", output).rc == 0
        text = output.read_bytes().decode()
        lines = rows(text) if form == "csv" else list(map(json.loads, text.splitlines()))
        escaped = r"z\udcff.jpg" if form == "csv" else "z\udcff.jpg"
        names = [
            f"{tmp_path}/{name}" for name in ("a,b.jpg", "line\nbreak.jpg", "r\rr.jpg", escaped)
        ]
        assert [line["file"] for line in lines] == names


def test_an_output_that_can_not_be_written_is_one_line_and_leaves_nothing(
    predict: Predicts, trained: Path, tmp_path: Path
) -> None:
    image = min(truth(trained))
    full = Path("/dev/full")
    ran = predict(image, "--output", full)
    reason = "No space left on device; free some space or choose another folder"
    assert (ran.rc, ran.stderr) == (5, f"error: SPACE: {full}: {reason}\n")
    assert full.is_char_device()
    ran = predict(image, "--output", tmp_path)
    assert (ran.rc, ran.error.split(";")[0]) == (3, f"error: INPUT: {tmp_path}: Is a directory")
    ran = predict(image, "--output", tmp_path / "no/out")
    where = f"{tmp_path}/no/out"
    assert (ran.rc, ran.error.split(";")[0]) == (
        3, f"error: INPUT: {where}: No such file or directory"
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_ends_it_quietly(trained: Path, tmp_path: Path) -> None:
    image = Path(min(truth(trained))).read_bytes()
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number:04}.jpg").write_bytes(image)
    process = subprocess.Popen(
        [sys.executable, "-m", "hvd_train", "predict", str(trained / "runs/a"), str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "file,label,probability\n"
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(120) == 1
    assert "Traceback" not in said
    assert "error:" not in said


def test_planted_wrong_labels_are_found_and_drawn(
    predict: Predicts, trained: Path, tmp_path: Path
) -> None:
    labels, wrong = {Path(name).name: label for name, label in truth(trained).items()}, set()
    for name in sorted(labels)[::30]:
        labels[name] = labels[name].translate(str.maketrans("AB37", "B37A"))
        wrong.add(f"{trained}/fresh/{name}")
    given, sheet = tmp_path / "given.csv", tmp_path / "sheet.png"
    text = "".join(f"{name},{label}\n" for name, label in labels.items())
    given.write_text(text + "absent.jpg,ABA\n")
    ran = predict(trained / "fresh", "--suspicious", given, "--sheet", sheet)
    found = rows(ran.stdout)
    hits = wrong.intersection(row["file"] for row in found)
    assert len(hits) >= 0.8 * len(wrong)
    assert len(hits) >= 0.8 * len(found)
    assert all(row["given"] != row["label"] for row in found)
    order = [float(row["probability_of_given"]) for row in found]
    assert order == sorted(order)
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert (ran.rc, ran.stderr) == (
        3,
        f"{len(found)} of 300 given labels are suspicious\n"
        f"{given}:row 301: no image 'absent.jpg'\n"
        f"error: INPUT: {trained}/fresh: 1 of 301 images and labels can't be used; "
        "mend them or leave them out; the others are done\n",
    )
    before = sheet.read_bytes()
    ran = predict(
        trained / "fresh", "--suspicious", given, "--sheet", sheet, "--min-ratio", 1e300
    )  # fmt: skip
    assert ran.stderr.startswith(
        f"0 of 300 given labels are suspicious\n{sheet}: nothing to draw, so nothing was written\n"
    )
    assert sheet.read_bytes() == before
    ran = predict(trained / "fresh", "--suspicious", "-")
    reason = "- is for classes, the run reads captchas; name a CSV with rows `image,label`"
    assert (ran.rc, ran.stdout, ran.stderr) == (2, "", f"error: CONFIG: --suspicious: {reason}\n")


def test_outputs_take_no_input_s_place_and_are_checked_before_reading(
    predict: Predicts, trained: Path, tmp_path: Path
) -> None:
    (folder := tmp_path / "images").mkdir()
    image, given = folder / "a.png", tmp_path / "given.csv"
    image.write_bytes(Path(min(truth(trained))).read_bytes())
    given.write_text("a.png,ABA\n")
    both, before = tmp_path / "both.png", bytes_in(tmp_path)
    doubts = [folder, "--suspicious", given]
    one, kept = "it is one of the images", "--output and --sheet both name it"
    for flags, where, reason in [
        ([image, "--output", image], image, one),
        ([folder, "--output", folder / "../images/a.png"], None, one),
        ([*doubts, "--sheet", image], image, one),
        ([*doubts, "--output", given], given, "it holds the labels"),
        ([*doubts, "--output", both, "--sheet", both], both, kept),
    ]:
        ran = predict(*flags)
        line = f"error: CONFIG: {where or flags[-1]}: {reason}; choose another name\n"
        assert (ran.rc, ran.stdout, ran.stderr) == (2, "", line)
    ran = predict(*doubts, "--sheet", tmp_path / "no/sheet.png")
    assert (ran.rc, ran.stdout) == (3, "")
    missing = f"error: INPUT: {tmp_path}/no/sheet.png: No such file or directory"
    assert ran.stderr.startswith(missing)
    assert bytes_in(tmp_path) == before


def bytes_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_old_output_stays_where_nothing_can_be_read(predict: Predicts, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    output.write_text("old")
    assert predict(tmp_path / "absent.jpg", "--output", output).rc == 3
    assert output.read_text() == "old"
