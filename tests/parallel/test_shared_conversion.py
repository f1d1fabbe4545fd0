"""Ranks share a conversion: the bytes of one process, one error line, nothing left of a failure."""

import json
import socket
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

from data_tools import cli

Run = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
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


def test_what_ranks_do_not_share_is_done_and_told_once(
    images: Path, tmp_path: Path, mpirun: Run, run_cli: Run
) -> None:
    arrays = {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.array([[1], [9], [10]])}
    digits = tmp_path / "digits"
    digits.mkdir()
    scipy.io.savemat(digits / "test_32x32.mat", arrays)
    given = tmp_path / "given"
    assert run_cli(convert(images, given)).rc == 0
    out = tmp_path / "ALONE"
    words = {
        "svhn-to-tfrecord": [digits, out],
        "reshard": [given, out],
        "preview": [given, "--image", out.with_suffix(".png")],
        "verify": [given],
        "info": [given],
        "download": ["cifar10", given],
    }
    assert words.keys() == cli.COMMANDS.keys() - set(cli.SHARED)
    for name, rest in words.items():
        alone = run_cli([*DATA_TOOLS, name, *rest])
        shared = [str(word).replace("ALONE", name) for word in rest]
        done = mpirun(2, [*DATA_TOOLS, name, *shared])
        assert (done.rc, done.stdout) == (alone.rc, alone.stdout.replace("ALONE", name))
        assert error_lines(done.stderr) == error_lines(alone.stderr)
        assert bool(alone.rc) == (name == "download")  # whose folder is there already
        out.rename(tmp_path / f"{name} alone") if out.exists() else None


def test_help_is_told_once(mpirun: Run) -> None:
    for words in (["--help"], ["captcha-to-tfrecord", "--help"], ["verify", "--help"]):
        done = mpirun(2, [*DATA_TOOLS, *words])
        assert (done.rc, done.stdout.lower().count("usage:")) == (0, 1), done.stderr


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


@pytest.fixture
def long_tasks(tmp_path: Path, mpirun: Run) -> Run:
    """Runs long_tasks.py on 3 ranks, of which rank 1 fails if none is named."""

    def start(how: str, failing: int = 1) -> Any:
        script = Path(__file__).parent / "long_tasks.py"
        environ = {"PYTHONPATH": str(ROOT)}
        command = ["python", script, failing, how]
        begin = time.monotonic()
        done = mpirun(3, command, cwd=tmp_path, env=environ, timeout=60)
        assert time.monotonic() - begin < 45  # a task takes 60
        return done

    return start


def test_an_error_on_one_rank_ends_the_long_work_of_the_others(
    long_tasks: Run, tmp_path: Path
) -> None:
    for failing in (0, 1, 2):
        done = long_tasks("error", failing)
        assert done.rc == 3
        assert error_lines(done.stderr) == [f"error: INPUT: task {failing}: refused; none"]
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_an_interrupt_of_one_rank_alone_ends_all(long_tasks: Run, tmp_path: Path) -> None:
    for interrupted in (0, 1):
        done = long_tasks("interrupt", interrupted)
        assert done.rc == 130
        assert done.stderr.splitlines().count("interrupted") == 1
        assert not error_lines(done.stderr)
        assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_killed_at_a_task_ends_all_and_leaves_nothing(
    long_tasks: Run, tmp_path: Path
) -> None:
    done = long_tasks("kill")
    assert done.rc == 137
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_find_other_tasks_and_errors_of_one_alone_are_told_once(
    long_tasks: Run, tmp_path: Path
) -> None:
    done = long_tasks("plan")
    assert done.rc == 6
    assert error_lines(done.stderr) == [
        f"error: HOST: {socket.gethostname()}: rank 1 finds other input than rank 0; put it on a "
        "file system that all hosts share, and leave it as it is meanwhile"
    ]
    for failing in (0, 1):  # longer than a message that MPI sends before it is asked for
        done = long_tasks("early", failing)
        assert done.rc == 3
        assert error_lines(done.stderr) == [f"error: INPUT: {'x' * 100_000}: refused; none"]
        assert (f"rank 1 on {socket.gethostname()}:" in done.stderr) == (failing == 1)
    assert list(tmp_path.iterdir()) == []


def test_results_of_any_length_come_to_rank_0_in_order(long_tasks: Run) -> None:
    done = long_tasks("long")
    assert (done.rc, done.stdout) == (0, "[0, 1, 2, 3, 4, 5]\n"), done.stderr


@pytest.mark.parametrize(
    ("rank", "number", "seconds"),
    [(1, "INT", 0.1), (1, "INT", 0.5), (1, "INT", 0.8), (1, "INT", 2.5), (1, "TERM", 1.0),
     (1, "KILL", 2.5), (0, "INT", 0.6), (0, "INT", 2.5)],
)  # fmt: skip
def test_a_signal_to_one_rank_at_any_time_ends_all_and_leaves_nothing(
    rank: int, number: str, seconds: float, tmp_path: Path, mpirun: Run
) -> None:
    later = f"(sleep {seconds}; kill -{number} $$) >/dev/null 2>&1 &"
    script = f'if [ "$OMPI_COMM_WORLD_RANK" = {rank} ]; then {later} fi; exec "$@"'
    endless = [*DATA_TOOLS, "make-captcha", tmp_path / "set", "--count", 10_000_000]
    done = mpirun(2, ["sh", "-c", script, "sh", *endless], timeout=60)
    assert done.rc != 0
    assert not error_lines(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_rank_0_leaves_what_the_next_run_replaces(
    images: Path, tmp_path: Path, mpirun: Run, run_cli: Run
) -> None:
    killed = 'if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then (sleep 2.5; kill -9 $$) & fi; exec "$@"'
    endless = [*DATA_TOOLS, "make-captcha", tmp_path / "set", "--count", 10_000_000]
    assert mpirun(2, ["sh", "-c", killed, "sh", *endless], timeout=60).rc == 137
    assert {path.name for path in tmp_path.iterdir()} <= {"set.incomplete"}  # if it came so far
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
