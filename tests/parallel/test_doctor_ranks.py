"""`hvd_train doctor` under launchers and before them, on this machine."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Env = dict[str, str | None]
HOST = socket.gethostname()


@pytest.fixture
def env() -> Env:
    """The variables of a shell that has activated the environment, and lets root run mpirun."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def test_ranks_under_mpirun_report_in_one_table(mpirun: Run, sets: Path) -> None:
    done = mpirun(2, ["hvd_train", "doctor", "--data", sets / "captcha"])
    assert (done.rc, done.stderr) == (0, "")
    head, *rows = [re.split(r"  +", line.strip()) for line in done.stdout.splitlines()]
    assert head == [
        "host", "rank", "cores", "GPUs", "Python", "TensorFlow", "Horovod", "data", "free",
        "clock", "interfaces",
    ]  # fmt: skip
    assert [row[:2] for row in rows] == [[HOST, "0"], [HOST, "1"]]
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        assert cells["TensorFlow"].startswith("2.")
        assert cells["Horovod"].startswith("0.28.1")
        assert re.fullmatch(r"[0-9a-f]{8}", cells["data"])
        assert re.fullmatch(r"[+-]\d\.\d s", cells["clock"])


def test_a_size_that_horovod_does_not_see_is_told_of_all_ranks(run_cli: Run, env: Env) -> None:
    env = {**env, "HOROVOD_CONTROLLER": "gloo"}
    done = run_cli(["hvd_train", "doctor", "--", "mpirun", "-np", 2], env=env, timeout=180)
    assert done.rc == 2
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [[HOST, "0"], [HOST, "1"]]
    assert done.stderr == (
        "error: CONFIG: Open MPI: the launcher started 2 processes, Horovod sees 1; "
        "unset HOROVOD_CONTROLLER, use horovodrun, or a Horovod that was built for this MPI\n"
    )


def test_a_rank_that_is_not_the_first_prints_no_table(run_cli: Run, env: Env) -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    rank1 = {f"OMPI_COMM_WORLD_{name}": value for name, value in zip(names, "1212", strict=True)}
    env = {**env, **rank1, "HOROVOD_CONTROLLER": "gloo"}
    done = run_cli(["hvd_train", "doctor"], env=env, timeout=180)
    assert (done.rc, done.stdout) == (2, "")
    assert done.stderr == (
        "error: CONFIG: Open MPI: the launcher started 2 processes, Horovod sees 1; "
        "unset HOROVOD_CONTROLLER, use horovodrun, or a Horovod that was built for this MPI\n"
    )


def launcher(folder: Path, script: str) -> Path:
    """A launcher that sets no variables by which its ranks know themselves."""
    path = folder / "launcher"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_ranks_that_each_take_themselves_for_the_only_one_are_a_fault(
    run_cli: Run, env: Env, tmp_path: Path
) -> None:
    path = launcher(tmp_path, '"$@" & "$@"; wait')
    done = run_cli(["hvd_train", "doctor", "--", path], env=env, timeout=180)
    assert done.rc == 2
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [[HOST, "0"]] * 2
    assert done.stderr == (
        f"error: CONFIG: {path}: the launcher started 2 processes, each takes itself for one of 1; "
        "use horovodrun, or the mpirun of the MPI that Horovod was built for\n"
    )


@pytest.mark.parametrize(
    ("number", "script"),
    [
        (signal.SIGTERM, 'sleep 600 & echo $! > "$0.pid"; wait'),
        (signal.SIGHUP, 'sleep 600 & echo $! > "$0.pid"; wait'),
        # Then the guard tells the launcher alone.
        (signal.SIGKILL, 'echo $$ > "$0.pid"; exec sleep 600'),
    ],
)
def test_a_launcher_does_not_outlive_the_doctor(
    tmp_path: Path, number: signal.Signals, script: str
) -> None:
    path, told = launcher(tmp_path, script), tmp_path / "launcher.pid"
    heard = ["env", "--default-signal=HUP"]  # or nohup pytest would have it ignored
    doctor = subprocess.Popen([*heard, sys.executable, "-m", "hvd_train", "doctor", "--", path])
    pid = None
    try:
        while not (told.exists() and told.read_text().endswith("\n")):
            assert doctor.poll() is None
            time.sleep(0.05)
        pid = int(told.read_text())
        doctor.send_signal(number)
        assert doctor.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}").exists()
    finally:
        doctor.kill()
        doctor.wait()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_gloo_ranks_report_and_the_program_of_the_command_is_left_out(
    run_cli: Run, env: Env, sets: Path
) -> None:
    words = ["horovodrun", "--gloo", "-np", 2, "python", "hvd_train/captcha.py", "--epochs", 1]
    command = ["hvd_train", "doctor", "--data", sets / "captcha", "--", *words]
    done = run_cli(command, env=env, timeout=180)
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout.endswith("\nno faults: 2 ranks came together\n")


HERE = f"localhost:{len(os.sched_getaffinity(0))}"
BEFORE_THE_RANKS = {
    "-- horovodrun -np 4 -H localhost:2 python hvd_train/cifar.py": (
        "error: CONFIG: -np: 4 ranks but 2 slots; "
        "give the hosts more slots, or start horovodrun -np 2 -H localhost:2"
    ),
    "-- horovodrun -np 4 -H host1:2 host2:2": (
        "error: CONFIG: -H: spaces part the hosts; write -H host1:2,host2:2"
    ),
    "-H host1:2, host2:2": "error: CONFIG: -H: spaces part the hosts; write -H host1:2,host2:2",
    "-H host1:two": (
        "error: CONFIG: -H: 'two' is no number of slots from 1 to 999,999; "
        "write it like -H host1:4,host2:4"
    ),
    "-- mpirun -np 512": (
        "error: CONFIG: mpirun: there are more ranks than slots; "
        "start fewer, give hosts more slots as in -H host1:4, or mpirun --oversubscribe"
    ),
    "-- no-such-launcher -np 2": (
        "error: CONFIG: no-such-launcher: it can't be started: No such file or directory; "
        "activate the environment, or give its path"
    ),
    "-- sh -c false": (
        "error: RANK: sh: no rank reported, it ended with 1 and said 'nothing'; "
        "see what it wrote above"
    ),
}


@pytest.mark.parametrize("words", BEFORE_THE_RANKS)
def test_what_a_launcher_refuses_is_one_line_with_the_fix(
    run_cli: Run, env: Env, words: str
) -> None:
    done = run_cli(["hvd_train", "doctor", *words.split()], env=env, timeout=60)
    assert done.error == BEFORE_THE_RANKS[words]
    assert done.rc == (7 if words.endswith("false") else 2)
    assert done.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="Open MPI refuses root alone")
def test_open_mpi_as_root_is_explained(run_cli: Run, env: Env) -> None:
    command = ["hvd_train", "doctor", "--", "mpirun", "-np", 1]
    done = run_cli(command, env={**env, "OMPI_ALLOW_RUN_AS_ROOT": None}, timeout=60)
    assert (done.rc, done.error) == (
        2,
        "error: CONFIG: mpirun: Open MPI refuses root; use an ordinary user; in a container set "
        "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    )


def test_a_machine_that_is_all_there_is_gets_its_own_commands(run_cli: Run, env: Env) -> None:
    done = run_cli(["hvd_train", "doctor", "-H", HERE], env=env, timeout=60)
    assert (done.rc, done.stderr) == (0, "")
    size = HERE.partition(":")[2]
    horovodrun, mpirun = done.stdout.splitlines()[-2:]
    assert horovodrun.startswith('  env -i PATH="$PATH" HOME="$HOME" ')
    assert horovodrun.endswith(f" horovodrun -np {size} -H {HERE} python hvd_train/cifar.py")
    assert mpirun == f"  mpirun -np {size} -H {HERE} -x PATH python hvd_train/cifar.py"
