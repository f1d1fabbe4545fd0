"""Where a data set of captchas is written, and what is left when that goes wrong."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_captchas import CONVERT, UPPER, Ran, draw, files_of, texts, write_captchas

from data_tools.whole_folder import MARK

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
LABELS = [f"{UPPER[i % 26]}{UPPER[i // 26]}{UPPER[i * 7 % 26]}Z" for i in range(60)]


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
