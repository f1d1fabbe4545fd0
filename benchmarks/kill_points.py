"""Kills conversions at every write, rename, fsync and removal: what is left never trains wrong.

    .venv/bin/python benchmarks/kill_points.py --save               (make kill-points)

strace sends SIGKILL as a process enters its N-th call of a kind, for N = 1, 2, ... until none gets
that far. After each kill OUT is not there or whole (with --overwrite: the old set or the new one,
whole), and the same command again makes the bytes of an undisturbed run.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import add_save, environment, report, scratch
from PIL import Image

from data_tools import cli
from data_tools.whole_folder import INCOMPLETE, MARK

CALLS = ("write", "rename", "renameat2", "fsync", "mkdir", "unlink", "unlinkat", "rmdir")
# Python's own files must not count, nor what differs from run to run.
QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Case:
    """A conversion to kill.

    Attributes:
        kind: "captcha" or "cifar".
        overwrite: whether it replaces another set.
        workers: of --workers.
        follow: whether the threads and processes that it starts are killed too, each at its own
            N-th call; otherwise the main thread alone counts.
    """

    kind: str
    overwrite: bool
    workers: int
    follow: bool


CASES = {
    "captcha": Case("captcha", False, 1, False),
    "captcha, --overwrite": Case("captcha", True, 1, False),
    "captcha, 2 workers": Case("captcha", False, 2, True),
    "cifar": Case("cifar", False, 1, False),
    "cifar, its thread": Case("cifar", False, 1, True),
    "cifar, --overwrite": Case("cifar", True, 1, False),
}


def main() -> None:
    """Runs the cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    add_save(parser)
    arguments = parser.parse_args()
    lines = ["| conversion | kills | what was left | s |", "| --- | --- | --- | --- |"]
    for name in arguments.only:
        start = time.monotonic()
        with scratch() as folder:
            prepared = prepare(folder, CASES[name])
            left = sum((kill_at(prepared, call) for call in CALLS), Counter[str]())
        told = ", ".join(f"{count} {what}" for what, count in sorted(left.items()))
        seconds = time.monotonic() - start
        lines.append(f"| {name} | {left.total()} | {told} | {seconds:.0f} |")
    report(lines, save=arguments.save)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case with its inputs.

    Attributes:
        case: which.
        command: the words after `data_tools`, which make `out`.
        out: the data set folder.
        old: what is there before, if anything.
        new: what an undisturbed run makes; the content of each file by its name.
    """

    case: Case
    command: Sequence[str]
    out: Path
    old: dict[str, bytes]
    new: dict[str, bytes]


def prepare(folder: Path, case: Case) -> Prepared:
    """Makes the inputs and the sets before and after."""
    source, out = folder / "source", folder / "out" / "set"
    out.parent.mkdir()
    if case.kind == "captcha":
        pictures(source, 12)
        words = ["captcha-to-tfrecord", str(source), str(source / "labels.csv"), str(out)]
    else:
        binaries(source)
        words = ["cifar-to-tfrecord", str(source), str(out)]
    words += ["--workers", str(case.workers)]
    old = {}
    if case.overwrite:
        run_here([*words, "--shards", "3"])
        old = content(out)
        shutil.copytree(out, folder / "old")
        words.append("--overwrite")
    run_here([*words, "--shards", "2"])
    new = content(out)
    assert new != old
    return Prepared(case, [*words, "--shards", "2"], out, old, new)


def pictures(folder: Path, count: int) -> None:
    """Writes captchas with labels; a shard of some takes several writes."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index in range(count):
        Image.fromarray(rng.integers(0, 256, (20, 40, 3), np.uint8)).save(folder / f"{index}.png")
    (folder / "labels.csv").write_text("".join(f"{n},{n:04d}\n" for n in range(count)))


def binaries(folder: Path) -> None:
    """Writes small files in the layout of CIFAR-10."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", 9), ("test_batch.bin", 3)):
        records = rng.integers(0, 256, (count, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())


def run_here(words: Sequence[str]) -> None:
    """Runs data_tools in this process."""
    with contextlib.redirect_stdout(None):
        code = cli.main(words)
    if code:
        raise RuntimeError(f"data_tools {' '.join(words)} ended with {code}")


def content(folder: Path) -> dict[str, bytes]:
    """The content of each file by its name, without the mark of an unfinished folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MARK}


def kill_at(prepared: Prepared, call: str, points: Iterable[int] | None = None) -> Counter[str]:
    """Kills a run at each of the points, or at all, up to the first that it doesn't reach.

    Args:
        prepared: what to run.
        call: the kind of system call that is counted.
        points: numbers of such calls.

    Returns:
        How often what was left.

    Raises:
        AssertionError: it could train wrong, or stop the next run.
    """
    left: Counter[str] = Counter()
    for point in points or itertools.count(1):
        reset(prepared)
        if run_killed(prepared, call, point) == 0:
            assert content(prepared.out) == prepared.new
            break
        left[check(prepared, f"{call} {point}")] += 1
    return left


def reset(prepared: Prepared) -> None:
    """Puts everything as it was before the run."""
    parent = prepared.out.parent
    shutil.rmtree(parent)
    parent.mkdir()
    if prepared.old:
        shutil.copytree(parent.parent / "old", prepared.out)


def run_killed(prepared: Prepared, call: str, point: int) -> int:
    """Runs the command under strace and returns its exit code; negative when it was killed."""
    command = [sys.executable, "-m", "data_tools", *prepared.command]
    return strace(call, point, command, follow=prepared.case.follow).returncode


def strace(
    call: str, point: int, command: Sequence[str], *, follow: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command that is killed as it enters its N-th call of a kind.

    Args:
        call: the kind.
        point: N.
        command: the command.
        follow: whether the threads and processes that it starts are killed too, each at its own.
    """
    return subprocess.run(
        ["strace", *(["-f"] if follow else []), "-qq", "-o", os.devnull, f"--trace={call}",
         f"--inject={call}:signal=KILL:when={point}", *command],
        env=environment() | QUIET, capture_output=True, check=False,
    )  # fmt: skip


def check(prepared: Prepared, point: str) -> str:
    """Says what a killed run has left, once the same command has mended it."""
    out = prepared.out
    names = {path.name for path in out.parent.iterdir()}
    assert names <= {out.name, out.name + INCOMPLETE}, (point, names)
    if out.exists():
        found = content(out)
        assert found in (prepared.old, prepared.new), (point, "neither the old set nor the new")
        run_here(["verify", str(out), "--deep"])
        what = "the new set" if found == prepared.new else "the old set"
    else:
        assert not prepared.old, (point, "the old set is gone")
        what = "no set"
    if what == "no set" or prepared.old:
        run_here(prepared.command)
        assert content(out) == prepared.new, (point, "the next run makes other bytes")
        assert [path.name for path in out.parent.iterdir()] == [out.name], point
    return what


if __name__ == "__main__":
    main()
