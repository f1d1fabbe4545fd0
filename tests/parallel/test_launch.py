"""`hvd_train launch` keeps a run going: real ranks under mpirun, on hosts that come and go."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import metrics
from small_sets import texts, write_set

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).parent / "launch_rank.py"
STEPS, BATCH = 32, 8
FLAGS = [
    "--data", "set", "--model", "linear", "--global-batch", BATCH, "--steps", STEPS,
    "--log-every", 1, "--eval-every", 0, "--summary-every", 0,
]  # fmt: skip


@pytest.fixture
def env() -> dict[str, str]:
    """Finds mpirun, which root may use here, and our own modules."""
    bin_folder = Path(sys.executable).parent
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {
        "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        **(root if os.geteuid() == 0 else {}),
    }  # fmt: skip


def write_hosts(folder: Path, hosts: str) -> Path:
    """A hosts script that prints a file."""
    (folder / "hosts").write_text(hosts)
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat '{folder}/hosts'\n")
    script.chmod(0o755)
    return script


def command(hosts: Path, *flags: object, ranks: list[Any]) -> list[object]:
    """The command line of a launch."""
    own = ["--hosts-script", hosts, "--poll-seconds", 0.2, *flags]
    return ["hvd_train", "launch", *own, "--", *ranks]


def said(stdout: str) -> list[str]:
    """What launch itself said."""
    return re.findall(r"^launch: (.*)$", stdout, re.MULTILINE)


def read_ids(folder: Path, size: int) -> dict[int, list[int]]:
    """The ids of each step over all ranks, of the starts on so many."""
    found = defaultdict(list)
    for file in folder.glob(f"ids-{size}-*.jsonl"):
        for step, ids in map(json.loads, file.read_text().splitlines()):
            found[step] += ids
    return found


def test_four_ranks_then_two_of_which_one_dies_then_four_are_the_whole_run(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    write_set(tmp_path / "set", train=texts(40), test=texts(9))
    alone = ["python", SCRIPT, tmp_path, *FLAGS, "--name", "whole"]
    done = run_cli(alone, cwd=tmp_path)
    assert done.rc == 0, done.stderr[-3000:]
    hosts = write_hosts(tmp_path, "localhost:9")
    ranks = [sys.executable, SCRIPT, tmp_path, *FLAGS, "--name", "moved"]
    launched = command(hosts, "--min-np", 2, "--max-np", 4, ranks=ranks)
    done = run_cli(launched, cwd=tmp_path, env=env, timeout=600)
    assert (done.rc, done.left) == (0, []), done.stdout[-3000:] + done.stderr[-3000:]
    # Whether the killed rank's code is told or that of the one which missed it, is chance.
    assert [re.sub(r"code (7|137);", "code;", line) for line in said(done.stdout)] == [
        "starts 4 ranks on localhost:4",
        "the hosts are now localhost:2: stops the run",
        "starts 2 ranks on localhost:2",
        "the run failed with code; start 1 of 10 again",
        "starts 2 ranks on localhost:2",
        "the hosts are now localhost:4: stops the run",
        "starts 4 ranks on localhost:4",
    ]
    # From where each start went on is where the one before stopped, but for the one that failed.
    stopped = re.findall(r"stopped by SIGUSR1 after (\d+) of 32 steps", done.stdout)
    gone_on = re.findall(r"runs/moved goes on from step (\d+)", done.stdout)
    assert gone_on == [stopped[0], stopped[0], stopped[1]]
    whole, moved = (metrics(tmp_path / "runs" / name) for name in ("whole", "moved"))
    places = [(line["step"], line["split"]) for line in whole]
    assert [(line["step"], line["split"]) for line in moved] == places
    assert places == [*((step, "train") for step in range(STEPS)), (STEPS, "test")]
    losses = [[line["loss"] for line in lines] for lines in (moved, whole)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    first, second = map(int, stopped)
    ids = {size: read_ids(tmp_path, size) for size in (1, 2, 4)}
    for step in range(STEPS):
        seen = ids[2 if first <= step < second else 4][step]
        assert set(seen) == set(ids[1][step]), step
        if not first <= step < 18:  # the start that failed came about as far, perhaps in part
            assert len(seen) == BATCH, step
    assert len({tuple(own) for own in ids[1].values()}) == STEPS


SAVED = 'echo "runs/a goes on from step 5"; '
SAYS_ONCE = 'if [ -e ran ]; then exit 0; fi; touch ran; echo "{}"; exit {}'
ENDS = {
    "its work is done": ("exit 0", 0, 1),
    "its settings are wrong": ('echo "error: CONFIG: a: b; c" >&2; exit 2', 2, 1),
    "its time is over": ('echo "stopped by --max-minutes after 5 of 9 steps"; exit 143', 143, 1),
    "its host is shut down": (
        SAYS_ONCE.format("stopped by SIGTERM after 5 of 9 steps", 143), 0, 2
    ),
    "it failed once": (SAYS_ONCE.format("", 9), 0, 2),
}  # fmt: skip
"""Why a run ends, what its rank does, the exit code, and how often it is started."""


@pytest.mark.parametrize("why", ENDS)
def test_a_run_is_started_again_only_if_that_may_help(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any], why: str
) -> None:
    ranks, code, starts = ENDS[why]
    hosts = write_hosts(tmp_path, "localhost:1")
    done = run_cli(command(hosts, ranks=["sh", "-c", ranks]), cwd=tmp_path, env=env)
    assert done.rc == code
    assert [line for line in said(done.stdout) if "starts" in line] == [
        "starts 1 rank on localhost:1"
    ] * starts
    assert done.stderr.count("error:") == ranks.count("error:")


def test_a_program_that_ends_without_an_error_line_is_named(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    done = run_cli(command(hosts, ranks=["python", "absent.py"]), cwd=tmp_path, env=env)
    assert (done.rc, said(done.stdout)) == (2, ["starts 1 rank on localhost:1"])
    assert done.error == (
        "error: CONFIG: python absent.py: it ended with code 2 and without an error line; see "
        "what it wrote above, and whether this is how it is started"
    )
    ranks = ["false"]
    done = run_cli(command(hosts, "--max-restarts", 0, ranks=ranks), cwd=tmp_path, env=env)
    assert done.rc == 7
    assert re.sub(r"code \d+", "code", done.error) == (
        "error: RANK: mpirun: 1 start in a row of false failed without a new checkpoint, "
        "the last with code; see what was written above; none came to its first step"
    )


def test_a_mistyped_program_is_never_started(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    done = run_cli(command(hosts, ranks=["hvd_trainn", "cifar"]), cwd=tmp_path, env=env)
    assert (done.rc, done.stdout) == (2, "")
    assert done.stderr == (
        "error: CONFIG: hvd_trainn: there is no such program; write one that is on PATH after "
        "--, such as hvd_train, or its path\n"
    )


def test_failures_without_progress_end_it_with_one_line(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    # The first two starts save a checkpoint, so only the ones after them count.
    counts = "echo x >> ran; n=$(wc -l < ran); [ $n -gt 2 ] && n=2; "
    ranks = counts + 'echo "runs/a goes on from step $n"; exit 9'
    flags = ["--max-restarts", 2]
    done = run_cli(command(hosts, *flags, ranks=["sh", "-c", ranks]), cwd=tmp_path, env=env)
    assert done.rc == 7
    assert done.error == (
        "error: RANK: mpirun: 3 starts in a row failed without a new checkpoint, the last with "
        "code 9; see the errors above; start the same command to go on"
    )
    assert [line for line in said(done.stdout) if "failed" in line] == [
        "the run failed with code 9; start 1 of 2 again",
        "the run failed with code 9; start 1 of 2 again",
        "the run failed with code 9; start 2 of 2 again",
    ]


def test_a_host_that_keeps_failing_is_left_out(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("there is no ssh")
    hosts = write_hosts(tmp_path, "nohost.invalid:1\nlocalhost:1")
    done = run_cli(command(hosts, ranks=["sh", "-c", "exit 0"]), cwd=tmp_path, env=env)
    assert done.rc == 0
    found = said(done.stdout)
    assert found[::2] == [
        *["starts 2 ranks on nohost.invalid:1,localhost:1"] * 3, "starts 1 rank on localhost:1",
    ]  # fmt: skip
    codes = [re.sub(r"code \d+", "code", line) for line in found[1::2]]
    assert codes == [
        f"the run failed with code, charged to nohost.invalid ({n} of 3); start {n} of 10 again"
        for n in (1, 2, 3)
    ]


def test_too_few_hosts_are_waited_for_and_then_end_it(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    flags = ["--min-np", 2, "--wait-minutes", 0.01]
    done = run_cli(command(hosts, *flags, ranks=["sh"]), cwd=tmp_path, env=env)
    assert done.rc == 6
    assert done.stdout == "launch: waits for 2 ranks: there is localhost:1\n"
    assert done.stderr == (
        f"error: HOST: {hosts}: no 2 ranks for 0.01 minutes: there is localhost:1; bring back "
        "hosts and start the same command, which goes on; or lower --min-np\n"
    )


def test_a_run_that_would_start_afresh_after_progress_ends(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    afresh = 'echo "runs/a has nothing to go on with: starts fresh"; sleep 100; '
    ranks = f"if [ -e ran ]; then {afresh}else touch ran; {SAVED}exit 9; fi"
    done = run_cli(command(hosts, ranks=["sh", "-c", ranks]), cwd=tmp_path, env=env)
    assert (done.rc, done.left) == (2, [])
    assert done.error == (
        "error: CONFIG: localhost: the run starts afresh there, but had saved step 5; let "
        "--runs-dir be a folder that all hosts share"
    )


def test_a_run_whose_host_and_folder_are_gone_doesnt_start_from_nothing(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    write_set(tmp_path / "set", train=texts(40), test=texts(9))
    hosts = write_hosts(tmp_path, "localhost:2")
    for step in (8, 24):  # the hosts stay as they are
        (tmp_path / f"done-{step}").touch()
    train = ["exec", sys.executable, SCRIPT, tmp_path, *FLAGS, "--checkpoint-every", 4]
    moves = "runs=first; [ -e done-16 ] && runs=second; "  # which is when the first start dies
    ranks = moves + " ".join(map(str, train)) + ' --name moved --runs-dir $runs "$@"'
    launched = command(hosts, "--min-np", 2, ranks=["sh", "-c", ranks, "sh"])
    done = run_cli(launched, cwd=tmp_path, env=env, timeout=300)
    assert (done.rc, done.left) == (2, []), done.stderr[-3000:]
    assert done.error == (
        "error: CONFIG: localhost: the run starts afresh there, but had taken steps before; let "
        "--runs-dir be a folder that all hosts share"
    )
    assert (tmp_path / "first/moved/checkpoints/step-00000012").exists()


def test_a_run_that_dies_before_its_first_checkpoint_starts_again(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    first = 'touch ran; echo "runs/a has nothing to go on with: starts fresh"; '
    first += 'echo "step 0, loss = 4.6 (1 examples/sec)"; exit 9'
    ranks = f"if [ -e ran ]; then echo runs/a has no checkpoint: starts fresh; else {first}; fi"
    done = run_cli(command(hosts, ranks=["sh", "-c", ranks]), cwd=tmp_path, env=env)
    assert (done.rc, done.stderr.count("error:")) == (0, 0)


def test_a_hosts_script_that_keeps_failing_is_told_of_once(
    tmp_path: Path, env: dict[str, str], run_cli: Callable[..., Any]
) -> None:
    hosts = write_hosts(tmp_path, "localhost:1")
    fails = "echo x >> asked; n=$(wc -l < asked); [ $n -eq 1 ] || "
    fails += "{ [ $n -gt 4 ] && echo late >&2; exit 3; }"
    hosts.write_text(f"#!/bin/sh\ncd '{tmp_path}'; {fails}; cat hosts\n")
    waits = "while [ $(wc -l < asked) -lt 8 ]; do sleep 0.1; done"
    done = run_cli(command(hosts, ranks=["sh", "-c", waits]), cwd=tmp_path, env=env)
    assert done.rc == 0
    told = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    assert told == [
        f"warning: {hosts}: it ended with code 3: {said}; keeps to the hosts that it printed"
        for said in ("it says nothing", "late")
    ]


LISTENS = """
trap 'echo saved; exit 143' USR1
trap '' TERM
echo $$ > pid-$OMPI_COMM_WORLD_RANK
echo 'ranks: 2, '
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_launch_stops_the_run_in_order(
    tmp_path: Path, env: dict[str, str], kill_when: Callable[..., int | None],
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hosts, log = write_hosts(tmp_path, "localhost:2"), tmp_path / "log"
    args = command(hosts, ranks=["sh", "-c", LISTENS])
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])

    def is_up() -> bool:
        return log.read_text().count("ranks: 2, ") == 2

    assert kill_when(is_up, args, cwd=tmp_path, log=log, number=number) == code
    assert log.read_text().count("saved\n") == 2


def test_no_rank_outlives_a_launch_that_is_killed(tmp_path: Path, env: dict[str, str]) -> None:
    hosts = write_hosts(tmp_path, "localhost:2")
    args = command(hosts, ranks=["sh", "-c", LISTENS])[1:]
    start = [sys.executable, "-m", "hvd_train", *map(str, args)]
    files = [tmp_path / f"pid-{rank}" for rank in range(2)]
    with subprocess.Popen(
        start, cwd=tmp_path, env={**os.environ, **env}, stdout=subprocess.DEVNULL
    ) as launch:
        try:
            wait_until(lambda: all(file.exists() and file.read_text() for file in files))
        finally:
            launch.kill()
    pids = [int(file.read_text()) for file in files]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
