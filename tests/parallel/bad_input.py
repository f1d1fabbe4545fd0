"""Faults that training must tell in one line: what to run, and what is said and left.

bad_ranks.py runs every case on each rank; test_bad_input.py compares.
"""

import hashlib
import json
import resource
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WHOLE = "whole"
"""The case that trains without a fault; others go on with copies of its run."""
WHOLE_FLAGS = (
    "--model", "linear", "--steps", "6", "--checkpoint-every", "2", "--log-every", "1",
    "--global-batch", "10",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a case runs.

    Attributes:
        cwd: the folder of the case.
        sets: the data sets of conftest.py.
        out: the folder of all cases.
        size: the number of ranks.
    """

    cwd: Path
    sets: Path
    out: Path
    size: int

    @property
    def data(self) -> Path:
        """The data set of the case: its own copy, if it made one."""
        own = self.cwd / "data"
        return own if own.exists() else self.sets / "captcha"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A command line that must fail, and what it must say.

    Attributes:
        flags: besides --data.
        line: the whole error line; a callable where it tells paths or ranks.
        code: exit code.
        prepare: makes files in the folder before, on the chief; a function that it returns runs
            after the case.
        other: flags of rank 1 alone.
        data: whether to name the data set.
        faults: the lines before the error line.
        sizes: numbers of ranks that it makes sense with.
        unchanged: whether every file stays as it was.
    """

    line: Callable[[Place], str]
    code: int
    flags: Sequence[str] = ()
    prepare: Callable[[Place], object] = lambda place: None
    other: Callable[[Place], Sequence[str]] = lambda place: ()
    data: bool = True
    faults: Callable[[Place], Sequence[str]] = lambda place: ()
    sizes: Sequence[int] = (1, 2)
    unchanged: bool = True


def shard(data: Path, index: int) -> Path:
    """A shard of the training split; of two ranks on a host, each hashes every other."""
    return data / f"captcha-train.tfrecord-{index:05d}-of-00003"


def copy_data(place: Place) -> Path:
    return shutil.copytree(place.sets / "captcha", place.cwd / "data")


def flip_byte(place: Place, index: int) -> None:
    path = shard(copy_data(place), index)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def copy_run(place: Place, *damaged: int) -> Path:
    """Copies the run of the whole case and breaks its checkpoints of these steps."""
    run = shutil.copytree(place.out / WHOLE / "runs" / "captcha", place.cwd / "runs" / "captcha")
    for step in damaged:
        (run / "checkpoints" / f"step-{step:08d}" / "weights.npz").write_bytes(b"broken")
    return run


def write_later(place: Place) -> None:
    """Flips a byte of a record once the run has begun, while its shards are mapped."""
    path = shard(copy_data(place), 1)
    metrics = place.cwd / "runs" / "captcha" / "metrics.jsonl"

    def wait_and_write() -> None:
        while not metrics.exists() or metrics.stat().st_size < 1000:
            time.sleep(0.005)
        with path.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 1]))

    threading.Thread(target=wait_and_write, daemon=True).start()


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def make_classes(path: Path) -> None:
    """Turns the manifest of captchas into one of classes."""
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "kind": "classes", "label": None, "classes": ["cat"]}))


def fill_disk(place: Place) -> Callable[[], None]:
    """Lets the chief write no file of more than 100 kB, in place of a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def is_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_line(place: Place, index: int) -> str:
    """What is said of a shard whose hash is not that of the manifest."""
    path = shard(place.data, index)
    splits = json.loads((place.data / "manifest.json").read_text())["splits"]
    (wanted,) = [s["sha256"] for s in splits["train"]["shards"] if s["file"] == path.name]
    return (
        f"error: INTEGRITY: {path}: SHA-256 {sha256(path)[:12]}..., the manifest says "
        f"{wanted[:12]}...; run data_tools verify to find the record, then convert the data set "
        "again"
    )


def files_below(folder: Path) -> dict[str, str]:
    """Every file and folder below a folder, and the hash of what a file holds."""
    return {
        str(path.relative_to(folder)): "" if path.is_dir() else sha256(path)
        for path in sorted(folder.rglob("*"))
    }


MAKE = (
    "make one: data_tools make-captcha captcha-images; "
    "data_tools captcha-to-tfrecord captcha-images captcha-images/labels.csv datasets/captcha"
)
GO_ON = "leave the flag out to go on, or start a new run with --name"
SAME_DATA = "go on with the data set that the run was started with, or start one with --name"
UPPER, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"


def says(line: str) -> Callable[[Place], str]:
    return lambda place: line


def damaged_line(place: Place, step: int) -> str:
    return (
        f"skipped runs/captcha/checkpoints/step-{step:08d}: the checkpoint is damaged "
        "(weights.npz has another SHA-256 than state.json says)"
    )


def host() -> str:
    return socket.gethostname()


CASES = {
    # The data set
    "missing_data": Case(
        flags=["--data", "nowhere"], data=False, code=2,
        line=says(f"error: CONFIG: nowhere: no data set there; {MAKE}"),
    ),
    "missing_default_data": Case(
        data=False, code=2,
        line=says(f"error: CONFIG: datasets/captcha: no data set there; {MAKE}"),
    ),
    "unfinished_data": Case(
        data=False, code=2,
        prepare=lambda place: (place.cwd / "datasets" / "captcha.incomplete").mkdir(parents=True),
        line=says(
            "error: CONFIG: datasets/captcha: no data set there (datasets/captcha.incomplete is "
            f"what a conversion that didn't finish left); {MAKE}"
        ),
    ),
    "no_manifest": Case(
        flags=["--data", "empty"], data=False, code=3,
        prepare=lambda place: (place.cwd / "empty").mkdir(),
        line=says(
            "error: INPUT: empty: no manifest.json, so this is not a finished data set; "
            "convert it again with data_tools"
        ),
    ),
    "damaged_shard": Case(
        code=4, prepare=lambda place: flip_byte(place, 0),
        line=lambda place: hash_line(place, 0),
    ),
    # Of two ranks only rank 1 reads it: the split is mapped, not decoded at the start.
    "damaged_shard_of_rank_1": Case(
        code=4, flags=["--memory-budget", "0"], prepare=lambda place: flip_byte(place, 1),
        line=lambda place: hash_line(place, 1),
    ),
    "deleted_shard": Case(
        code=4, prepare=lambda place: shard(copy_data(place), 1).unlink(),
        line=lambda place: (
            f"error: INTEGRITY: {shard(place.data, 1)}: the shard is missing; "
            "convert the data set again"
        ),
    ),
    "no_such_split": Case(
        flags=["--test-split", "validation"], code=2,
        line=lambda place: (
            f"error: CONFIG: {place.data}: no split 'validation'; the splits are train, test"
        ),
    ),
    "empty_test_split": Case(
        flags=["--data", "../sets/no_test", "--global-batch", "10"], data=False, code=2,
        line=says(
            "error: CONFIG: ../sets/no_test: no split 'test'; the splits are train"
        ),
    ),
    "other_kind": Case(
        code=2,
        prepare=lambda place: make_classes(copy_data(place) / "manifest.json"),
        line=lambda place: (
            f"error: CONFIG: {place.data}: a data set of kind classes, captcha needs captcha; "
            "name another with --data"
        ),
    ),
    # Flags
    "unknown_flag": Case(
        flags=["--nosuch"], code=2,
        line=says(
            "error: CONFIG: command line: Unrecognized options: --nosuch; see captcha.py --help"
        ),
    ),
    "both_batches": Case(
        flags=["--batch-size", "5", "--global-batch", "10"], code=2,
        line=says(
            "error: CONFIG: --global-batch: --batch-size is given too; "
            "give the batch of a rank or the batch of all ranks"
        ),
    ),
    "batch_beyond_split": Case(
        flags=["--global-batch", "102"], code=2,
        line=lambda place: (
            f"error: CONFIG: --batch-size: a step takes 102 examples over "
            f"{'1 rank' if place.size == 1 else '2 ranks'}, "
            "the split train has 101; lower --batch-size or --global-batch"
        ),
    ),
    "batch_a_rank_beyond_split": Case(
        flags=["--batch-size", "51"], code=2, sizes=[2],
        line=says(
            "error: CONFIG: --batch-size: a step takes 102 examples over 2 ranks, "
            "the split train has 101; lower --batch-size or --global-batch"
        ),
    ),
    "batch_below_ranks": Case(
        flags=["--global-batch", "1"], code=2, sizes=[2],
        line=says(
            "error: CONFIG: --global-batch: 1 example a step for 2 ranks; "
            "give each rank at least one: raise --global-batch or start fewer ranks"
        ),
    ),
    "missing_config": Case(
        flags=["--config", "nowhere.yaml"], code=3,
        line=says(
            "error: INPUT: nowhere.yaml: No such file or directory; "
            "check that the path exists and its permissions"
        ),
    ),
    # The run folder
    "existing_run": Case(
        code=2, prepare=copy_run,
        line=says(
            "error: CONFIG: runs/captcha: the run folder exists already; "
            "choose another --name, or go on with --resume"
        ),
    ),
    "unwritable_runs": Case(
        flags=["--global-batch", "10"], code=3,
        prepare=lambda place: (place.cwd / "runs").write_text("a file\n"),
        line=says(
            "error: INPUT: runs/captcha: Not a directory; "
            "check that the path exists and its permissions"
        ),
    ),
    "writable_by_others": Case(
        flags=["--resume"], code=2,
        prepare=lambda place: (copy_run(place) / "checkpoints").chmod(0o757),
        line=says(
            "error: CONFIG: runs/captcha/checkpoints: other users can write to the folder; "
            "check what is in it, then: chmod o-w runs/captcha/checkpoints"
        ),
    ),
    "no_settings": Case(
        flags=["--resume"], code=2,
        prepare=lambda place: (copy_run(place) / "config.yaml").unlink(),
        line=says(
            "error: CONFIG: runs/captcha: there is no config.yaml to go on with; "
            "bring back config.yaml, or start a new run with --name"
        ),
    ),
    "settings_of_another_version": Case(
        flags=["--resume"], code=2,
        prepare=lambda place: edit(copy_run(place) / "config.yaml", "augment:", "augmentation:"),
        line=says(
            "error: CONFIG: runs/captcha/config.yaml: it doesn't name the settings of this "
            "version: augment, augmentation; go on with the version that the run was started with, "
            "or start one with --name"
        ),
    ),
    # Going on
    "full_disk": Case(
        code=5, prepare=fill_disk, unchanged=False,
        flags=["--model", "linear", "--global-batch", "10", "--checkpoint-every", "3"],
        line=says(
            "error: SPACE: runs/captcha/checkpoints/step-00000003: File too large; "
            "free some space or choose another folder"
        ),
    ),
    "metrics_in_the_way": Case(
        flags=["--resume"], code=3, unchanged=False,
        prepare=lambda place: replace_by_folder(copy_run(place) / "metrics.jsonl"),
        line=says(
            "error: INPUT: runs/captcha/metrics.jsonl: Is a directory; "
            "check that the path exists and its permissions"
        ),
    ),
    "resume_other_seed": Case(
        flags=["--resume", "--seed", "7"], code=2, prepare=copy_run,
        line=says(
            f"error: CONFIG: --seed: the run was started with 0, now 7; {GO_ON}"
        ),
    ),
    "resume_other_batch": Case(
        flags=["--resume", "--batch-size", "7"], code=2, prepare=copy_run,
        line=lambda place: (
            "error: CONFIG: --batch-size: the run was started with a global batch of 10, "
            f"now {7 * place.size}; {GO_ON}"
        ),
    ),
    "resume_other_charset": Case(
        flags=["--resume", "--data", "../sets/alnum"], data=False, code=2, prepare=copy_run,
        line=says(
            f"error: CONFIG: runs/captcha: the checkpoint's charset is '{UPPER}', the data set's "
            f"is '{DIGITS}{UPPER}{UPPER.lower()}'; {SAME_DATA}"
        ),
    ),
    "resume_other_data": Case(
        flags=["--resume", "--data", "../sets/fewer"], data=False, code=2, prepare=copy_run,
        line=says(
            "error: CONFIG: runs/captcha: the run was started on another data set than "
            f"../sets/fewer; {SAME_DATA}"
        ),
    ),
    "resume_all_damaged": Case(
        flags=["--resume"], code=4, prepare=lambda place: copy_run(place, 2, 4, 6),
        faults=lambda place: [damaged_line(place, step) for step in (6, 4, 2)],
        line=says(
            "error: INTEGRITY: runs/captcha/checkpoints: no checkpoint is whole; "
            "start a new run with --name, or bring back a copy"
        ),
    ),
    # Starting from another run
    "init_from_nothing": Case(
        flags=["--init-from", "runs/other"], code=2,
        prepare=lambda place: (place.cwd / "runs").mkdir(),
        line=says(
            "error: CONFIG: --init-from: runs/other has no checkpoints; "
            "name the folder of a run that saved some"
        ),
    ),
    "init_from_what_others_can_write": Case(
        flags=["--init-from", "runs/captcha", "--name", "tuned"], code=2,
        prepare=lambda place: copy_run(place).chmod(0o757),
        line=says(
            "error: CONFIG: runs/captcha: other users can write to the folder; "
            "check what is in it, then: chmod o-w runs/captcha"
        ),
    ),
    "no_validation_split": Case(
        flags=["--validation-split", "validation"], code=2,
        line=lambda place: (
            f"error: CONFIG: {place.data}: no split 'validation'; the splits are train, test"
        ),
    ),
    # Only one rank is wrong
    "other_seed_on_rank_1": Case(
        code=2, sizes=[2], flags=["--global-batch", "10"], other=lambda place: ["--seed", "1"],
        line=lambda place: (
            f"error: CONFIG: settings: rank 1 on {host()} has seed = 1, rank 0 has 0; "
            "give every rank the same flags and --config file"
        ),
    ),
    "other_model_on_rank_1": Case(
        code=2, sizes=[2], flags=["--global-batch", "10", "--model", "linear"],
        other=lambda place: ["--model", "ctc"],
        line=lambda place: (
            f"error: CONFIG: settings: rank 1 on {host()} has model = ctc, rank 0 has linear; "
            "give every rank the same flags and --config file"
        ),
    ),
    "other_data_on_rank_1": Case(
        code=4, sizes=[2], other=lambda place: ["--data", str(place.sets / "fewer")],
        line=lambda place: (
            f"error: INTEGRITY: data set: rank 1 on {host()} has manifest = "
            f"{sha256(place.sets / 'fewer' / 'manifest.json')}, rank 0 has "
            f"{sha256(place.sets / 'captcha' / 'manifest.json')}; "
            "give every host a copy of the same data set"
        ),
    ),
    "missing_data_on_rank_1": Case(
        code=2, sizes=[2], other=lambda place: ["--data", "nowhere"],
        line=says(f"error: CONFIG: nowhere: no data set there; {MAKE}"),
    ),
    "unknown_flag_on_rank_1": Case(
        code=2, sizes=[2], other=lambda place: ["--nosuch"],
        line=says(
            "error: CONFIG: command line: Unrecognized options: --nosuch; see captcha.py --help"
        ),
    ),
}  # fmt: skip

NUMERIC_FIX = "lower --base-lr; the last checkpoint is kept"
STOPPED = {
    "rate_of_1e6": Case(
        code=8,
        flags=[
            "--base-lr", "1e6", "--global-batch", "10", "--checkpoint-every", "1",
            "--log-every", "1",
        ],
        line=says(f"error: NUMERIC: step 1: the loss is inf; {NUMERIC_FIX}"),
    ),
    "damage_meanwhile": Case(
        code=4, prepare=write_later,
        flags=[
            "--model", "linear", "--memory-budget", "0", "--global-batch", "10",
            "--checkpoint-every", "1", "--log-every", "1", "--epochs", "1000",
        ],
        line=lambda place: (
            f"error: INTEGRITY: {shard(place.data, 1)}:byte 0: the checksum of the data is wrong; "
            "get the file again or convert the data set again"
        ),
    ),
}  # fmt: skip
"""Runs that begin well and must stop in the middle."""

GOOD = {
    WHOLE: (WHOLE_FLAGS, lambda place: None),
    "resume_newest_damaged": (("--resume", "--steps", "6"), lambda place: copy_run(place, 6)),
    "resume_finished": (("--resume",), copy_run),
    "resume_nothing": ((*WHOLE_FLAGS, "--resume"), lambda place: None),
}
"""Runs that end well, though not all of them started so."""
