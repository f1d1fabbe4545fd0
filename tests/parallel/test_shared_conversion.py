"""Ranks share a conversion: the bytes of one process, one error line, nothing left of a failure."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image
from small_cifar import write_cifar10

Run = Callable[..., Any]
DATA_TOOLS = (sys.executable, "-m", "data_tools")
# Rank 1 may write no more than 512 bytes to a file; MPI must make none, for shared memory.
CRAMPED = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then ulimit -f 1; fi; exec "$@"'
NO_SHARED_MEMORY = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_pml": "ob1"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of captchas; the last shards are those of other ranks than 0."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for index in range(40):
        Image.fromarray(rng.integers(0, 256, (10, 20, 3), np.uint8)).save(folder / f"{index}.png")
    (folder / "labels.csv").write_text("".join(f"{index},{index:04d}\n" for index in range(40)))
    return folder


def convert(images: Path, out: Path, *flags: object) -> list[object]:
    return [*DATA_TOOLS, "captcha-to-tfrecord", images, images / "labels.csv", out, *flags]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def error_lines(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if "error:" in line.lower()]


@pytest.mark.parametrize(("ranks", "flags"), [(2, ()), (3, ("--shards", 7)), (2, ("--shards", 1))])
def test_captchas_are_the_bytes_of_one_process(
    ranks: int, flags: tuple[object, ...], images: Path, tmp_path: Path, run_cli: Run, mpirun: Run
) -> None:
    alone = run_cli(convert(images, tmp_path / "alone", *flags, "--workers", 1))
    done = mpirun(ranks, convert(images, tmp_path / "shared", *flags))
    assert (done.rc, alone.rc) == (0, 0), done.stderr
    assert done.stdout == alone.stdout.replace("alone", "shared")
    assert content(tmp_path / "shared") == content(tmp_path / "alone")
    assert {path.name for path in tmp_path.iterdir()} == {"alone", "shared"}


def test_cifar_is_the_bytes_of_one_process(tmp_path: Path, run_cli: Run, mpirun: Run) -> None:
    files = {"data_batch_1.bin": [1, 2, 3, 4, 5], "data_batch_2.bin": [6, 7], "test_batch.bin": [8]}
    binary = write_cifar10(tmp_path / "binary", files)
    command = ["data_tools", "cifar-to-tfrecord", binary]
    flags = ("--shards", 3, "--validation", 3)
    alone = run_cli([*command, tmp_path / "alone", *flags])
    done = mpirun(2, [*command, tmp_path / "shared", *flags])
    assert (done.rc, alone.rc) == (0, 0), done.stderr
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_a_folder_of_classes_is_the_bytes_of_one_process(
    images: Path, tmp_path: Path, run_cli: Run, mpirun: Run
) -> None:
    source = tmp_path / "classes"
    for path in images.glob("*.png"):
        folder = source / f"class {int(path.stem) % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    command = ["data_tools", "folder-to-tfrecord", source]
    alone = run_cli([*command, tmp_path / "alone"])
    done = mpirun(2, [*command, tmp_path / "shared"])
    assert (done.rc, alone.rc) == (0, 0), done.stderr
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_drawn_captchas_are_the_bytes_of_one_process(
    tmp_path: Path, run_cli: Run, mpirun: Run
) -> None:
    alone = run_cli(["data_tools", "make-captcha", tmp_path / "alone", "--count", 120])
    done = mpirun(2, ["data_tools", "make-captcha", tmp_path / "shared", "--count", 120])
    assert (done.rc, alone.rc) == (0, 0), done.stderr
    assert content(tmp_path / "shared") == content(tmp_path / "alone")


def test_faults_of_all_ranks_are_told_together(images: Path, tmp_path: Path, mpirun: Run) -> None:
    broken = tmp_path / "images"
    broken.mkdir()
    for path in images.iterdir():
        data = path.read_bytes()
        (broken / path.name).write_bytes(data[:50] if path.stem in ("1", "15", "39") else data)
    done = mpirun(2, convert(broken, tmp_path / "set"))
    assert done.rc != 0
    faults = [line for line in done.stderr.splitlines() if "cut short" in line]
    assert faults == [f"{broken / name}: the PNG is cut short" for name in (
        "1.png", "15.png", "39.png")]  # fmt: skip
    assert error_lines(done.stderr) == [
        f"error: INPUT: {broken / 'labels.csv'}: 3 of 40 rows can't be used; "
        "replace the file, or pass --skip-bad to leave them out"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_faults_of_classes_and_digits_are_told_once_and_leave_nothing(
    images: Path, tmp_path: Path, mpirun: Run
) -> None:
    classes, digits, out = tmp_path / "classes", tmp_path / "digits", tmp_path / "set"
    for index in range(24):
        data = (images / f"{index}.png").read_bytes()
        path = classes / f"class {index % 3}" / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:50] if index in (3, 22) else data)
    digits.mkdir()
    arrays = {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.array([[1], [11], [10]])}
    scipy.io.savemat(digits / "train_32x32.mat", arrays)
    folder = [*DATA_TOOLS, "folder-to-tfrecord", classes, out]
    svhn = [*DATA_TOOLS, "svhn-to-tfrecord", digits, out]
    mend = "replace the file, or pass --skip-bad to leave them out"
    for command, line in (
        (folder, f"INPUT: {classes}: 2 of 24 entries can't be used; {mend}"),
        ([*folder, "--split", "train=2"], "CONFIG: --split: 'train=2' is not a list of splits "
         "whose shares sum up to 1; write it like train=0.8,validation=0.1,test=0.1"),
        (svhn, f"INPUT: {digits / 'train_32x32.mat'}:record 1: label 11, not one of 1 to 10; "
         "get the file again, or save it with -v7"),
    ):  # fmt: skip
        done = mpirun(2, command)
        assert done.rc != 0
        assert error_lines(done.stderr) == [f"error: {line}"]
        assert not done.stdout.strip()
        assert {path.name for path in tmp_path.iterdir()} == {"classes", "digits"}
    skipping = mpirun(2, [*folder, "--skip-bad", "--json"])
    assert skipping.rc == 0, skipping.stderr
    assert json.loads(skipping.stdout)["skipped"] == 2


def test_digits_and_new_shards_are_written_once(tmp_path: Path, mpirun: Run, run_cli: Run) -> None:
    arrays = {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.array([[1], [9], [10]])}
    scipy.io.savemat(tmp_path / "test_32x32.mat", arrays)
    done = mpirun(2, [*DATA_TOOLS, "svhn-to-tfrecord", tmp_path, tmp_path / "digits"])
    assert (done.rc, done.stdout) == (0, f"{tmp_path / 'digits'}: 3 images of SVHN: test 3\n")
    done = mpirun(2, [*DATA_TOOLS, "reshard", tmp_path / "digits", tmp_path / "new"])
    assert (done.rc, done.stdout) == (0, f"{tmp_path / 'new'}: 3 examples (classes): test 3\n")
    assert run_cli([*DATA_TOOLS, "verify", tmp_path / "new", "--deep"]).rc == 0


@pytest.mark.parametrize("flags", [("--shards", 0), ("--overwrite", "--case", "title"), ()])
def test_an_error_before_the_work_is_one_line(
    flags: tuple[object, ...], images: Path, tmp_path: Path, mpirun: Run
) -> None:
    (tmp_path / "set").mkdir()
    done = mpirun(2, convert(images, tmp_path / "set", *flags))
    assert done.rc != 0
    assert len(error_lines(done.stderr)) == 1
    assert error_lines(done.stderr)[0].startswith("error: CONFIG: ")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_disk_that_refuses_another_rank_is_one_line_and_nothing_is_left(
    images: Path, tmp_path: Path, mpirun: Run, run_cli: Run
) -> None:
    command = ["sh", "-c", CRAMPED, "sh", *convert(images, tmp_path / "set")]
    done = mpirun(2, command, env=NO_SHARED_MEMORY)
    assert done.rc != 0
    assert error_lines(done.stderr) == [
        f"error: SPACE: {tmp_path / 'set'}: File too large; "
        "free some space or choose another folder"
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_one_rank_stops_the_long_work_of_the_others(
    images: Path, tmp_path: Path, mpirun: Run
) -> None:
    script = Path(__file__).parent / "long_tasks.py"
    for failing in (0, 1, 2):
        start = time.monotonic()
        done = mpirun(3, ["python", script, failing], timeout=60)
        assert time.monotonic() - start < 30
        assert done.rc != 0
        assert error_lines(done.stderr) == [f"error: INPUT: task {failing}: refused; none"]


def test_an_interrupt_of_one_rank_alone_ends_all(mpirun: Run) -> None:
    script = Path(__file__).parent / "long_tasks.py"
    for interrupted in (0, 1):
        done = mpirun(2, ["python", script, interrupted, "interrupt"], timeout=45)
        assert done.rc == 130
        assert "interrupted" in done.stderr.splitlines()
        assert not error_lines(done.stderr)


def test_a_killed_rank_leaves_nothing_under_the_final_name_and_the_next_run_is_whole(
    images: Path, tmp_path: Path, mpirun: Run, run_cli: Run
) -> None:
    killed = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then kill -9 $$; fi; exec "$@"'
    done = mpirun(2, ["sh", "-c", killed, "sh", *convert(images, tmp_path / "set")])
    assert done.rc != 0
    assert {path.name for path in tmp_path.iterdir()} <= {"set.incomplete"}
    assert mpirun(2, convert(images, tmp_path / "set")).rc == 0
    assert run_cli(["data_tools", "verify", tmp_path / "set"]).rc == 0
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_horovodrun_with_gloo_is_told_to_be_mpirun(
    images: Path, tmp_path: Path, horovodrun: Run
) -> None:
    done = horovodrun(2, convert(images, tmp_path / "set"), gloo=True)
    assert done.rc != 0
    assert (
        "error: CONFIG: horovodrun --gloo: it brings no MPI, by which the ranks could share the "
        "work; start the command with mpirun"
    ) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_mpi_that_does_not_load_is_one_line(images: Path, tmp_path: Path, mpirun: Run) -> None:
    done = mpirun(2, convert(images, tmp_path / "set"), env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert done.rc != 0
    assert error_lines(done.stderr) == [
        "error: CONFIG: mpi4py: it doesn't load: cannot load MPI library; pip install mpi4py, set "
        "MPI4PY_LIBMPI to the libmpi.so of this mpirun, or start one process, with --workers"
    ]
    assert list(tmp_path.iterdir()) == []
