"""A run before its first step: what it goes on from, its data, and that all ranks agree.

The run folder:

    runs/NAME/config.yaml      the settings, the batch resolved; a file for --config
              manifest.json    of the data set, so that what was learnt can be used without it
              metrics.jsonl    a line for each step shown and each evaluation
              tensorboard/
              checkpoints/step-00001000/
              best/checkpoints/step-00000800/   the best on the validation split, --keep-best
              eval.json        the last checkpoint, evaluated once; see results.py
              report.html      by hvd_train report
"""

import contextlib
import dataclasses
import os
import platform
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import keras
import numpy as np
import tensorflow as tf
import yaml

import data_tools
from data_tools import datasets, manifest
from data_tools.durable import lock, write_atomically
from data_tools.errors import CONFIG, HOST, INPUT, INTEGRITY, DataError, os_errors
from data_tools.manifest import Manifest
from hvd_train import checkpoint, config_files, dist
from hvd_train.config import FREE_BETWEEN_RANKS, TrainConfig
from hvd_train.data.sharding import even_split, total_steps
from hvd_train.data.source import Source, check_own_hashes, open_source
from hvd_train.dist import World
from hvd_train.task import Task

C = TypeVar("C", bound=TrainConfig)

CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"
BEST = "best"
"""Folder of the best checkpoint, which is laid out like a run's."""
SLOW_FLOAT16 = "warning: a CPU computes --dtype float16 about 100 times as slowly as float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The opened data set of a run."""

    folder: Path
    manifest: Manifest
    digest: str
    train: Source
    test: Source
    validation: Source | None = None


def settle(settings: C, given: Collection[str], folder: Path, world: World) -> tuple[C, bool]:
    """Returns the settings that hold, and whether there is a run to go on with; a collective.

    Args:
        settings: what this call asks for.
        given: the settings that it names itself.
        folder: the run folder, which only the chief needs to see.
        world: the ranks.

    Raises:
        DataError: CONFIG when the run exists and isn't to be resumed, or a setting that changes its
            mathematics differs from the saved one.
    """
    if settings.run.plan and not settings.run.resume:  # whatever is in the folder
        return config_files.resolve_batch(settings, world.size), False
    saved: dict[str, Any] | None = None
    with dist.agreed(world):
        if world.is_chief:
            saved = _saved_settings(folder, resume=settings.run.resume)
    saved = dist.broadcast_json(saved)
    settings = config_files.resolve_batch(settings, world.size)
    with dist.agreed(world):
        if saved is not None:
            settings = config_files.resumed(settings, saved, given, folder / CONFIG_FILE)
    return settings, saved is not None


def _saved_settings(folder: Path, *, resume: bool) -> dict[str, Any] | None:
    if not folder.exists():
        return None
    if not resume:
        raise exists_already(folder)
    check_not_writable_by_others(folder)
    if all(path.name == LOCK_FILE for path in folder.iterdir()):
        return None
    if not (folder / CONFIG_FILE).exists():
        raise DataError(
            CONFIG, folder, f"there is no {CONFIG_FILE} to go on with",
            fix=f"bring back {CONFIG_FILE}, or start a new run with --name",
        )  # fmt: skip
    return config_files.read_yaml(folder / CONFIG_FILE)


def check_not_writable_by_others(folder: Path) -> None:
    """Raises CONFIG when others may have put their own weights into a run's folder."""
    for path in (folder, folder / checkpoint.FOLDER):
        if path.exists() and path.stat().st_mode & 0o002:
            raise DataError(
                CONFIG, path, "other users can write to the folder",
                fix=f"check what is in it, then: chmod o-w {path}",
            )  # fmt: skip


def exists_already(folder: Path) -> DataError:
    """The error of a run that would overwrite another."""
    return DataError(
        CONFIG, folder, "the run folder exists already",
        fix="choose another --name, or go on with --resume",
    )  # fmt: skip


def open_data(task: Task, settings: TrainConfig, world: World) -> Data:
    """Opens the splits, checked whole, the same on all ranks, and large enough; a collective.

    Raises:
        DataError: CONFIG without a data set or with a batch that doesn't fit it, HOST when only
            some hosts have it, INTEGRITY when it is damaged or differs between ranks.
    """
    # A plan writes nothing, so it tells how to make the data set instead.
    make = None if settings.run.plan else task.make_data
    folder, loaded, digest = find_data(task, settings.data.data, world, make)
    budget = settings.data.memory_budget * 2**30
    with dist.agreed(world):
        check_own_hashes(folder, loaded, local_rank=world.local_rank, local_size=world.local_size)
        train = open_source(folder, loaded, settings.data.train_split, budget=budget)
        test = open_source(folder, loaded, settings.data.test_split, budget=budget)
        check_batch(settings, len(train), world.size)
        check_not_empty("--test-split", settings.data.test_split, test, folder)
        validation, split = None, settings.data.validation_split
        if split is not None:
            validation = open_source(folder, loaded, split, budget=budget)
            check_not_empty("--validation-split", split, validation, folder)
    return Data(
        folder=folder, manifest=loaded, digest=digest, train=train, test=test,
        validation=validation,
    )  # fmt: skip


def find_data(
    task: Task, flag: Path | None, world: World, make: Callable[[Path], None] | None
) -> tuple[Path, Manifest, str]:
    """Finds the data set, the same on all ranks; a collective.

    Args:
        task: what it is for.
        flag: what --data says, if anything.
        world: the ranks.
        make: makes it where there is none, on each host.

    Returns:
        The folder, the manifest, and the manifest's digest.

    Raises:
        DataError: CONFIG when there is none or it is of another kind, INTEGRITY when it differs
            between ranks.
    """
    # The chief first, since hosts may share a disk, then one rank of each host that still has none.
    for makes in (world.is_chief, world.local_rank == 0):
        with dist.agreed(world), _another_host_has_it(world):
            if makes:
                datasets.locate(task.name, flag, task.how_to_make_data, make)
    with dist.agreed(world):
        folder = datasets.locate(task.name, flag, task.how_to_make_data)
        loaded = manifest.load(folder)
        check_kind(task, loaded, folder)
        digest = manifest.digest(folder)
    dist.check_same(
        world, INTEGRITY, "data set", {"manifest": digest},
        fix="give every host a copy of the same data set",
    )  # fmt: skip
    return folder, loaded, digest


@contextlib.contextmanager
def _another_host_has_it(world: World) -> Iterator[None]:
    """Makes HOST of a missing data set where the chief, which comes first, has found it."""
    try:
        yield
    except DataError as error:
        if world.is_chief or error.kind is not CONFIG:
            raise
        raise DataError(
            HOST, socket.gethostname(), error.where, f"{error.reason}; the chief's host has one",
            fix="copy it from there, to the same path",
        ) from error  # fmt: skip


def check_kind(task: Task, loaded: Manifest, folder: Path) -> None:
    """Raises CONFIG when the data set is of another kind than the task."""
    if loaded.kind != task.kind:
        raise DataError(
            CONFIG, folder, f"a data set of kind {loaded.kind}, {task.name} needs {task.kind}",
            fix="name another with --data",
        )  # fmt: skip


def check_batch(settings: TrainConfig, num_examples: int, size: int) -> None:
    """Raises CONFIG unless each rank has an example a step and the split fills a batch."""
    batch = settings.optim.global_batch
    assert batch is not None
    if batch > num_examples:
        raise DataError(
            CONFIG, "--batch-size",
            f"a step takes {_count(batch, 'example')} over {_count(size, 'rank')}, the split "
            f"{settings.data.train_split} has {num_examples}",
            fix="lower --batch-size or --global-batch",
        )  # fmt: skip
    if batch < size:
        raise DataError(
            CONFIG, "--global-batch", f"{_count(batch, 'example')} a step for {size} ranks",
            fix="give each rank at least one: raise --global-batch or start fewer ranks",
        )  # fmt: skip
    micro_batches = settings.optim.accumulate
    if batch % micro_batches or batch // micro_batches < size:
        raise DataError(
            CONFIG, "--accumulate",
            f"{micro_batches} micro-batches of {_count(batch, 'example')} for "
            f"{_count(size, 'rank')}",
            fix="let it divide the batch over all ranks, and give each rank an example of each",
        )  # fmt: skip


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_not_empty(flag: str, split: str, source: Source, folder: Path) -> None:
    """Raises CONFIG when there is nothing to evaluate on."""
    if not len(source):
        raise DataError(
            CONFIG, folder, f"the split {split} has no examples to evaluate on",
            fix=f"convert more images, give it a larger share, or name another with {flag}",
        )  # fmt: skip


def steps_of(settings: TrainConfig, num_examples: int) -> int:
    """Returns the number of updates of the whole run."""
    optim = settings.optim
    assert optim.global_batch is not None
    return optim.steps or total_steps(
        num_examples, epochs=optim.epochs, global_batch_size=optim.global_batch
    )


def check_ranks_agree(settings: TrainConfig, world: World) -> None:
    """Stops all ranks unless they have the same versions and settings; a collective."""
    dist.check_same(
        world, HOST, "versions", versions(), fix="install the same versions on every host"
    )
    shared = {k: v for k, v in config_files.flat(settings).items() if k not in FREE_BETWEEN_RANKS}
    dist.check_same(
        world, CONFIG, "settings", shared, fix="give every rank the same flags and --config file"
    )


def versions() -> dict[str, str]:
    """The versions of this rank's Python and of what it computes with."""
    return {
        "python": platform.python_version(),
        "hvd-train": data_tools.__version__,
        "horovod": dist.horovod_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
    }


def describe(settings: TrainConfig, data: Data, world: World) -> list[str]:
    """Says in words what will be trained on what, and what becomes of the examples left over."""
    image, batch = data.manifest.image, settings.optim.global_batch
    assert batch is not None
    parts = settings.optim.accumulate
    shares = [
        parts * len(even_split(batch // parts, rank=r, size=world.size))
        for r in (0, world.size - 1)
    ]
    share = f"{shares[0]}" if shares[0] == shares[1] else f"{shares[0]} or {shares[1]}"
    steps = steps_of(settings, len(data.train))
    slow = settings.run.dtype == "float16" and not tf.config.list_physical_devices("GPU")
    validation = f"{len(data.validation)} to validate on, " if data.validation else ""
    return [
        *[SLOW_FLOAT16] * slow,
        f"data: {data.folder}, {len(data.train)} to train on, {validation}{len(data.test)} to test "
        "on, "
        f"{image.width}x{image.height}x{image.channels}",
        f"batch: {batch} a step, {share} a rank on {_count(world.size, 'rank')}; {steps} steps = "
        f"{steps * batch / len(data.train):.4g} epochs; the order goes on over an epoch's end, so "
        "no example is dropped or repeated",
    ]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The run folder, held by the chief so that no other run writes to it."""

    path: Path
    lock: BinaryIO
    """Its locked file."""

    def check_there(self) -> None:
        """Raises INPUT when it was removed or replaced, rather than write to another run's."""
        path = self.path / LOCK_FILE
        there = path.exists()
        if not (there and os.path.samestat(os.fstat(self.lock.fileno()), path.stat())):
            raise DataError(
                INPUT, self.path, "the run folder was removed or replaced while the run went on",
                fix="start the run again",
            )  # fmt: skip


@contextlib.contextmanager
def sole_writer(folder: Path, *, resume: bool) -> Iterator[RunFolder]:
    """Makes the run folder, or takes the one to go on with, and keeps other runs out of it.

    A run that fails before it has written anything leaves no folder.

    Raises:
        DataError: CONFIG when another process has made it meanwhile or trains in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=resume)
    except FileExistsError as error:
        raise exists_already(folder) from error
    with (folder / LOCK_FILE).open("ab") as file:
        if not lock(file.fileno()):
            raise DataError(
                CONFIG, folder, "another process is training in it",
                fix="wait for it to end, or start a run with another --name",
            )  # fmt: skip
        try:
            yield RunFolder(folder, file)
        finally:
            with contextlib.suppress(OSError):
                if all(path.name == LOCK_FILE for path in folder.iterdir()):
                    (folder / LOCK_FILE).unlink()
                    folder.rmdir()


def write_manifest(folder: RunFolder, data: Data) -> None:
    """Writes manifest.json, the data set's own."""
    folder.check_there()
    with os_errors(data.folder / manifest.FILE_NAME):
        content = (data.folder / manifest.FILE_NAME).read_bytes()
    write_atomically(folder.path / manifest.FILE_NAME, content)


def write_settings(folder: RunFolder, settings: TrainConfig) -> None:
    """Writes config.yaml."""
    folder.check_there()
    values = yaml.safe_dump(config_files.to_save(settings), sort_keys=False)
    write_atomically(folder.path / CONFIG_FILE, values.encode())


def data_state(data: Data) -> dict[str, Any]:
    """What a checkpoint says of its data set."""
    label = data.manifest.label
    return {"manifest": data.digest, "label": dataclasses.asdict(label) if label else None}


def check_data_state(state: dict[str, Any], data: Data, folder: Path) -> None:
    """Raises CONFIG when a run goes on with another data set than it was started with."""
    now = data_state(data)
    fix = "go on with the data set that the run was started with, or start one with --name"
    before, label = state["label"] or {}, now["label"] or {}
    check_charset(before.get("charset"), label.get("charset"), folder, fix=fix)
    if state["manifest"] != now["manifest"]:
        raise DataError(
            CONFIG, folder, f"the run was started on another data set than {data.folder}", fix=fix
        )


def check_charset(before: str | None, now: str | None, folder: Path, *, fix: str) -> None:
    """Raises CONFIG when a data set has another charset than the run in the folder."""
    if before != now:
        raise DataError(
            CONFIG, folder, f"the checkpoint's charset is {before!r}, the data set's is {now!r}",
            fix=fix,
        )  # fmt: skip
