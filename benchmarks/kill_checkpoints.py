"""Kills writers of checkpoints and whole trainers: what is left is whole, and runs end the same.

    .venv/bin/python benchmarks/kill_checkpoints.py --save          (make kill-checkpoints)

- times: a process that does nothing but save (NumPy, no TensorFlow), killed at moments uniform in
  time, again and again in one run folder.
- calls: the same, killed by strace as it enters its N-th call of a kind, for N = 1, 2, ... until
  none gets that far.
- trainers: runs of two ranks under mpirun, of which the chief, the other rank or all are killed at
  random moments and gone on with; each run is killed five times.

After each kill the newest checkpoint is whole, and is the last whose save had returned or the one
that was being saved. Each run of trainers ends with the bits of the undisturbed run. A part adds
its figures when it is done.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from harness import BIN, ROOT, add_save, environment, report, scratch
from kill_points import CALLS, QUIET, pictures, run_here, strace

from hvd_train import checkpoint
from hvd_train.checkpoint import ARRAYS, Checkpoint

KEEP = 2
NUMBERS = 60_000
"""float32 in each array: 240 kB a file."""
STEPS = 300
KILLS_A_RUN = 5


def main() -> None:
    """Runs the parts that the command line names, or one writer."""
    if sys.argv[1:2] == ["write"]:
        write(Path(sys.argv[2]), int(sys.argv[3]), pause=float(sys.argv[4]))
        return
    parts: dict[str, Callable[[int], list[str]]] = {
        "times": kill_at_times, "calls": kill_at_calls, "trainers": kill_trainers,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--count", type=int, help="kills by time (300) or of trainers (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    add_save(parser)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    for name in arguments.only:
        count = arguments.count or {"times": 300, "calls": 0, "trainers": 20}[name]
        report(parts[name](count), save=arguments.save)


# The writer


def made(step: int) -> Checkpoint:
    """The checkpoint of a step, which differs from those of all others."""
    arrays = {
        name: {"w": np.full(NUMBERS, step + i / 4, np.float32)} for i, name in enumerate(ARRAYS)
    }
    return Checkpoint(step=step, **arrays, state={"progress": step})


def write(run: Path, steps: int, *, pause: float) -> None:
    """Saves the steps that follow the newest, telling before and after each; the last one twice."""
    newest = checkpoint.restore_newest(run, skipped=[])
    first = newest.step + 1 if newest else 1
    for step in (*range(first, first + steps), first + steps - 1):
        os.write(1, f"{step} begun\n".encode())
        checkpoint.save(run, made(step), keep=KEEP)
        os.write(1, f"{step} saved\n".encode())
        time.sleep(pause)


def writer(run: Path, steps: int, *, pause: float) -> list[str]:
    """The command that starts one."""
    return [sys.executable, __file__, "write", str(run), str(steps), str(pause)]


def check(run: Path, told: str, before: int) -> tuple[int, str]:
    """Returns the newest step that is left, and in which phase the kill came.

    Args:
        run: the run folder.
        told: what the writer said until it was killed.
        before: the newest step when it was started, 0 if there was none.

    Raises:
        AssertionError: the newest isn't whole, or is another than it must be.
    """
    words = [line.split() for line in told.splitlines()]
    saved = max([before, *(int(step) for step, what in words if what == "saved")])
    saving = int(words[-1][0]) if words and words[-1][1] == "begun" else None
    phase = "between saves" if saving is None else phase_of(run, saving)
    skipped: list[str] = []
    found = checkpoint.restore_newest(run, skipped=skipped)
    newest = found.step if found else 0
    assert not skipped, (phase, skipped)
    assert newest in (saved, saving), (phase, newest, saved, saving)
    if found:
        for name in ARRAYS:
            wanted = getattr(made(newest), name)["w"]
            assert np.array_equal(getattr(found, name)["w"], wanted), (phase, name)
    return newest, phase


def phase_of(run: Path, step: int) -> str:
    """What the save of a step was doing when it was killed, as the disk shows."""
    folder = checkpoint.folder_of(run, step)
    parts = folder.with_name(folder.name + ".incomplete")
    files = {path.name for path in parts.iterdir()} if parts.is_dir() else set()
    if folder.exists():
        return (
            "flushing the renamed, removing the oldest"
            if not parts.is_dir()
            else "changing places with the old one"
        )
    for name in ("state.json", *(f"{name}.npz" for name in reversed(ARRAYS))):
        if name in files:
            return f"writing {name}" if name != "state.json" else "writing state.json, renaming"
    return "before the first file"


# Kills


def kill_at_times(count: int) -> list[str]:
    """Kills a writer at moments uniform in time."""
    phases: Counter[str] = Counter()
    start = time.monotonic()
    with disk() as folder:
        newest = 0
        for _ in range(count):
            with subprocess.Popen(
                writer(folder, 10**6, pause=0.002), env=environment() | QUIET,
                stdout=subprocess.PIPE, text=True,
            ) as process:  # fmt: skip
                assert process.stdout is not None
                told = process.stdout.readline()
                time.sleep(random.uniform(0, 0.3))
                process.kill()
                told += process.stdout.read()
            newest, phase = check(folder, told, newest)
            phases[phase] += 1
    inside = phases.total() - phases["between saves"]
    return [
        f"{count} kills of a writer, uniform in time, {inside} inside a save; {newest} steps "
        f"saved; {time.monotonic() - start:.0f} s. Each time the newest checkpoint was whole, and "
        "the last whose save had returned or the one being saved.",
        *table("the save was", phases),
    ]


def kill_at_calls(_: int) -> list[str]:
    """Kills a writer of four steps at every call that changes the disk."""
    calls: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    start = time.monotonic()
    with scratch() as folder:
        for call in CALLS:
            for point in itertools.count(1):
                run = folder / f"{call}-{point}"
                run.mkdir()
                ran = strace(call, point, writer(run, 4, pause=0))
                _, phase = check(run, ran.stdout.decode(), 0)
                if ran.returncode == 0:
                    break
                calls[call] += 1
                phases[phase] += 1
                shutil.rmtree(run)
    assert calls["fsync"] and calls["rename"] and calls["renameat2"], calls
    return [
        f"{calls.total()} kills of a writer, one at each call: "
        f"{', '.join(f'{call} {n}' for call, n in calls.items())}; "
        f"{time.monotonic() - start:.0f} s. The same held.",
        *table("the save was", phases),
    ]


@contextlib.contextmanager
def disk() -> Iterator[Path]:
    """A temporary folder on a disk, where fsync takes its time."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        yield Path(folder)


def table(head: str, counts: Counter[str]) -> list[str]:
    """Counts as a table."""
    rows = [f"| {what} | {count} |" for what, count in sorted(counts.items())]
    return ["", f"| {head} | kills |", "| --- | --- |", *rows]


# Trainers


def kill_trainers(count: int) -> list[str]:
    """Kills runs of two ranks and compares their ends with that of the undisturbed run."""
    left: Counter[str] = Counter()
    start = time.monotonic()
    with scratch() as folder:
        data, images = folder / "data", folder / "images"
        pictures(images, 200)
        run_here(["captcha-to-tfrecord", str(images), str(images / "labels.csv"), str(data)])
        assert train(folder, data, "whole").wait() == 0, (folder / "whole.log").read_text()
        wanted = bits(folder / "whole")
        for number in range(-(-count // KILLS_A_RUN)):
            name = f"killed-{number}"
            kills = min(KILLS_A_RUN, count - number * KILLS_A_RUN)
            for nth in range(kills):
                left[kill_one(folder, data, name, at=STEPS * (nth + 1) // (kills + 1))] += 1
            assert train(folder, data, name).wait() == 0
            assert bits(folder / name) == wanted, f"{name} ends otherwise"
            print(f"{name}: {kills} kills, the same {len(wanted)} arrays", flush=True)
            shutil.rmtree(folder / name)
    return [
        f"{left.total()} kills of runs of 2 ranks (linear, {STEPS} steps), each gone on with by "
        f"--resume; {time.monotonic() - start:.0f} s. Every run ended with the same bits of "
        "weights, optimizer and moving averages, and the same losses, as the undisturbed one.",
        *table("killed", left),
    ]


def train(folder: Path, data: Path, name: str) -> "subprocess.Popen[str]":
    """Starts two ranks, or goes on with their run."""
    command = [
        str(BIN / "mpirun"), "-np", "2", sys.executable, str(ROOT / "hvd_train" / "captcha.py"),
        "--data", str(data), "--runs-dir", str(folder), "--name", name, "--resume",
        "--model", "linear", "--global-batch", "10", "--steps", str(STEPS), "--log-every", "1",
        "--checkpoint-every", "7", "--test-split", "train", "--validation-split", "test",
        "--keep-best",
    ]  # fmt: skip
    log = (folder / f"{name}.log").open("a")
    return subprocess.Popen(
        command, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        text=True,
    )  # fmt: skip


def kill_one(folder: Path, data: Path, name: str, *, at: int) -> str:
    """Kills a part of the run some time after a step and returns which."""
    process = train(folder, data, name)
    metrics = folder / name / "metrics.jsonl"
    ranks: list[int] = []
    while len(ranks) < 2 or last_step(metrics) < at:
        if process.poll() is not None:
            raise AssertionError((folder / f"{name}.log").read_text()[-3000:])
        ranks = ranks if len(ranks) == 2 else children(process.pid)
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    victims = {"the chief": ranks[:1], "the other rank": ranks[1:2], "all": [*ranks, process.pid]}
    what = random.choice(list(victims))
    for pid in victims[what]:
        with contextlib.suppress(ProcessLookupError):  # the run was done meanwhile
            os.kill(pid, signal.SIGKILL)
    assert process.wait() != 0, "it was done before the kill"
    return what


def last_step(metrics: Path) -> int:
    """The step of the last whole line of a metrics.jsonl, or -1."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    return max(
        (json.loads(line)["step"] for line in lines[-3:] if line.endswith("}\n")), default=-1
    )


def children(pid: int) -> list[int]:
    """The processes that a process has started, by age."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def bits(run: Path, steps: int = STEPS) -> dict[str, bytes]:
    """All that must be the same at the end of a run: arrays, best evaluation and losses."""
    newest = checkpoint.restore_newest(run, skipped=[])
    assert newest is not None and newest.step == steps
    arrays = {
        f"{name}/{k}": v.tobytes() for name in ARRAYS for k, v in getattr(newest, name).items()
    }
    return arrays | {"progress": repr(newest.state["progress"]).encode(), "losses": losses(run)}


def losses(run: Path) -> bytes:
    """Step, split and loss of each line of metrics.jsonl."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return repr([(line["step"], line["split"], line["loss"]) for line in lines]).encode()


if __name__ == "__main__":
    main()
