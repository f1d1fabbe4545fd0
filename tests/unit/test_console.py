"""What commands tell: progress on a terminal and elsewhere, and JSON in place of lines."""

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from small_captchas import Ran, read_set, write_captchas
from small_cifar import write_cifar10

from data_tools import console, manifest

Tools = Callable[..., Ran]
LINE = re.compile(r"(\w+): (\S+) of (\S+)( MB, \S+ MB/s|, \S+/s), (\d+ s left|-)")


@pytest.fixture(scope="module")
def out(data_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of captchas."""
    base = tmp_path_factory.mktemp("console")
    csv = write_captchas(base / "images", [f"{index:04d}" for index in range(12)])
    assert data_tools("captcha-to-tfrecord", base / "images", csv, base / "set").rc == 0
    return base / "set"


@pytest.mark.parametrize(
    ("flags", "title"),
    [
        (("verify", "{set}"), "verifying"),
        (("verify", "{shard}"), "verifying"),
        (("info", "{set}"), "reading"),
        (("reshard", "{set}", "{out}"), "writing"),
        (("captcha-to-tfrecord", "{set}/../images", "{set}/../labels.csv", "{out}"), "converting"),
        (("make-captcha", "{out}", "--count", "80"), "drawing"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_elsewhere_than_on_a_terminal_progress_is_lines_on_standard_error(
    out: Path, data_tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...], title: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    shard = out / next(iter(manifest.load(out).splits.values())).shards[0].file
    ran = data_tools(*(flag.format(set=out, shard=shard, out=tmp_path / "out") for flag in flags))
    assert ran.rc == 0
    lines = ran.stderr.splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    assert {match[1] for match in found if match} == {title}
    last = found[-1]
    assert last is not None
    assert last[2] == last[3]  # all is done
    assert last[5] == "0 s left"


def test_a_compressed_file_is_done_at_its_end(
    data_tools: Tools, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(console, "_MEGA", 1)
    shard = out / next(iter(manifest.load(out).splits.values())).shards[0].file
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(shard.read_bytes() * 20))
    ran = data_tools("verify", path)
    size = path.stat().st_size
    assert f"verifying: {size}.0 of {size}.0 MB" in ran.stderr.splitlines()[-1]


def test_the_numbers_are_the_amount_the_rate_and_the_time_left() -> None:
    text = console.describe(240_000_000, 480_000_000, 10e6, console.BYTES)
    assert text == "240.0 of 480.0 MB, 10.0 MB/s, 24 s left"
    assert console.describe(1, 4, 0.25, console.TASKS) == "1 of 4, 0.25/s, 12 s left"
    assert console.describe(0, 4, 0.0, console.TASKS) == "0 of 4, 0/s, -"


def test_on_a_terminal_a_bar_goes_before_the_result_comes(out: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "data_tools", "verify", str(out), "--json"]
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm"})
        os.close(theirs)
        shown = b""
        try:
            while data := screen.read(1 << 16):
                shown += data
        except OSError:  # how the end of a terminal reads on Linux
            pass
        assert process.wait() == 0
    assert b"verifying" in shown
    assert "━".encode() in shown
    result = shown[shown.rindex(b"\x1b[2K") + 4 :]  # after the line was cleared
    assert json.loads(result)["ok"] is True


def test_json_of_each_command_that_makes_something(data_tools: Tools, tmp_path: Path) -> None:
    def told(*args: object) -> dict[str, object]:
        ran = data_tools(*args, "--json")
        assert (ran.rc, ran.stderr) == (0, "")
        facts: dict[str, object] = json.loads(ran.stdout)
        return facts

    base = tmp_path
    drawn = told("make-captcha", base / "drawn", "--count", 5, "--workers", 1)
    assert drawn == {"folder": str(base / "drawn"), "labels": "labels.csv", "images": 5}
    csv = write_captchas(base / "images", ["ABCD", "EFGH", "IJKL"])
    (base / "images/é.png").write_bytes((base / "images/0.jpg").read_bytes())
    captcha = told(
        "captcha-to-tfrecord", base / "images", csv, base / "captcha", "--case", "lower",
        "--split", "train=1", "--workers", 1,
    )  # fmt: skip
    assert captcha == {
        "folder": str(base / "captcha"), "name": "captcha", "kind": "captcha",
        "splits": {"train": 3}, "skipped": 0,
        "notes": [
            "labels were folded to lower case", "1 images have no row and were left out: é.png"
        ],
    }  # fmt: skip
    (base / "classes/cat").mkdir(parents=True)
    (base / "classes/cat/1.jpg").write_bytes((base / "images/0.jpg").read_bytes())
    (base / "classes/cat/2.jpg").write_bytes(b"no image")
    (base / "classes/stray.jpg").write_bytes(b"")
    folder = told(
        "folder-to-tfrecord", base / "classes", base / "folder", "--split", "train=1",
        "--skip-bad", "--workers", 1,
    )  # fmt: skip
    assert folder == {
        "folder": str(base / "folder"), "name": "images", "kind": "classes",
        "splits": {"train": 1}, "skipped": 1,
        "notes": [
            "skipped 1 entries, listed in the manifest: 1 INPUT",
            "1 files lie in no class folder and were left out: stray.jpg",
        ],
    }  # fmt: skip
    binary = write_cifar10(base / "binary", {"data_batch_1.bin": [1, 2, 3], "test_batch.bin": [4]})
    assert told("cifar-to-tfrecord", binary, base / "cifar") == {
        "folder": str(base / "cifar"), "name": "cifar10", "kind": "classes",
        "splits": {"train": 3, "test": 1}, "skipped": 0,
    }  # fmt: skip
    (base / "svhn").mkdir()
    arrays = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    scipy.io.savemat(base / "svhn/test_32x32.mat", arrays)
    assert told("svhn-to-tfrecord", base / "svhn", base / "digits")["splits"] == {"test": 2}
    assert told("reshard", base / "captcha", base / "again")["splits"] == {"train": 3}
    preview = told("preview", base / "captcha", "--image", base / "a.png", "--count", 2)
    assert preview["image"] == str(base / "a.png")
    assert (preview["split"], len(preview["records"])) == ("train", 2)  # type: ignore[arg-type]
    assert len(read_set(base / "again")["train"]) == 3
