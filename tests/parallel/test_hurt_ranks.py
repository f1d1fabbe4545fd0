"""A rank that comes to harm ends all ranks: one line names it, under each launcher."""

import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

HOST = socket.gethostname()
SCRIPT = Path(__file__).parent / "hurt_rank.py"
LIMIT = 5

Start = Callable[[str, int, str, int], Any]


@pytest.fixture(scope="module")
def hurt(
    sets: Path,
    tmp_path_factory: pytest.TempPathFactory,
    mpirun: Callable[..., Any],
    horovodrun: Callable[..., Any],
) -> Start:
    """`hurt(launcher, size, what, rank)` trains for ever on ranks of which one comes to harm."""

    def start(launcher: str, size: int, what: str, rank: int) -> Any:
        runs = tmp_path_factory.mktemp("hurt")
        command: Sequence[object] = [
            "python", SCRIPT, rank, what, "--data", sets / "captcha", "--runs-dir", runs,
            "--model", "linear", "--global-batch", 8, "--epochs", 1e6, "--eval-every", 0,
            "--stall-seconds", LIMIT,
        ]  # fmt: skip
        if launcher == "mpirun":
            return mpirun(size, command)
        return horovodrun(size, command, gloo=launcher == "horovodrun --gloo")

    return start


def lines_and_pids(done: Any) -> tuple[list[str], dict[int, int]]:
    """The error lines, without what a launcher puts before them, and each rank's process."""
    pids = re.findall(r"rank (\d+) is process (\d+)", done.stdout)
    lines = re.findall(r"^(?:\[[\d,]+\]<stderr>: ?)?(error:.*?)\r?$", done.stderr, re.MULTILINE)
    return lines, {int(rank): int(pid) for rank, pid in pids}


GO_ON = "--resume goes on from the last checkpoint, if there is one"


@pytest.mark.parametrize(
    ("launcher", "what", "rank"),
    [("mpirun", "stop_tracing", 1), ("horovodrun --gloo", "stop", 0)],
)
def test_a_frozen_rank_ends_all_within_the_limit_itself_too(
    hurt: Start, launcher: str, what: str, rank: int
) -> None:
    done = hurt(launcher, 2, what, rank)
    lines, pids = lines_and_pids(done)
    assert lines == [
        f"error: RANK: rank {rank} on {HOST}: process {pids[rank]} is silent for {LIMIT} s; see "
        f"whether it is stopped, its host out of memory or cut off; {GO_ON}; --stall-seconds sets "
        "the limit"
    ]
    assert done.rc != 0
    assert done.left == []


def test_a_rank_that_hangs_in_its_input_ends_all(hurt: Start) -> None:
    done = hurt("mpirun", 2, "hang", 1)
    lines, pids = lines_and_pids(done)
    assert lines == [
        f"error: RANK: rank 1 on {HOST}: process {pids[1]} lives, but is training for {LIMIT} s "
        f"while others wait; see whether its disk answers; {GO_ON}; --stall-seconds sets the limit"
    ]
    assert done.rc != 0
    assert done.left == []


@pytest.mark.parametrize(
    ("launcher", "size", "what", "rank"),
    [
        ("horovodrun", 2, "kill", 1), ("horovodrun --gloo", 3, "kill", 1),
        ("mpirun", 2, "raise", 1),
    ],
)  # fmt: skip
def test_a_rank_that_ends_amid_an_allreduce_ends_all_with_one_line(
    hurt: Start, launcher: str, size: int, what: str, rank: int
) -> None:
    done = hurt(launcher, size, what, rank)
    lines, pids = lines_and_pids(done)
    assert lines == [
        f"error: RANK: rank {rank} on {HOST}: process {pids[rank]} ended while the others waited "
        f"for it; look for that rank's own error above, or in the system's log if it was killed; "
        f"{GO_ON}"
    ]
    assert ("RuntimeError: a bug of this rank" in done.stderr) == (what == "raise")
    assert done.rc != 0
    assert done.left == []
