"""A run that was trained: what it was, and its weights, without its data set."""

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from data_tools import manifest as manifests
from data_tools.errors import CONFIG, INPUT, INTEGRITY, DataError
from data_tools.manifest import Manifest
from hvd_train import checkpoint, config_files, dist, run
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import TrainConfig
from hvd_train.data.source import Source, check_own_hashes, open_source
from hvd_train.dist import World
from hvd_train.task import BUILT_IN, Task, TaskModel
from hvd_train.weights import assign, by_path

WRITTEN_FIRST = (run.CONFIG_FILE, manifests.FILE_NAME)
"""Files of a run folder that are there once a run was started in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedRun:
    """What a run folder says of its run.

    Attributes:
        folder: the run folder.
        task: what was learnt.
        config: the settings of the run.
        manifest: of its data set, which needn't be there.
        digest: of that manifest.
    """

    folder: Path
    task: Task
    config: TrainConfig
    manifest: Manifest
    digest: str

    def build(self) -> TaskModel:
        """Builds the run's model, its weights as drawn."""
        return self.task.build(self.config, self.manifest)

    def load(self, task_model: TaskModel, saved: Checkpoint, *, averaged: bool = True) -> None:
        """Gives the model a checkpoint's weights, or their moving averages.

        Raises:
            DataError: CONFIG when they are those of another model.
        """
        variables = by_path(task_model.model.variables)
        with _hinting_at_task(self.task):
            assign(variables, saved.weights, self.folder)
            if averaged:
                assign({name: variables[name] for name in saved.ema}, saved.ema, self.folder)


def is_started(folder: Path) -> bool:
    """Tells whether a run was started in a folder: whether what `open_run` reads is there."""
    return all((folder / name).is_file() for name in WRITTEN_FIRST)


def open_run(folder: Path, own_task: Task | None = None) -> SavedRun:
    """Reads what a run folder says, which may still be trained in.

    Args:
        folder: the run folder.
        own_task: the task, if it is none of this project's.

    Raises:
        DataError: INPUT when it is no run folder, CONFIG when the run is of another task or
            version, or others can write to the folder.
    """
    if not folder.is_dir():
        raise DataError(INPUT, folder, "no such folder", fix="name one such as runs/captcha")
    for name in WRITTEN_FIRST:
        if not (folder / name).is_file():
            raise DataError(
                INPUT, folder, f"no {name}, so no run was started in it by this version",
                fix="name a folder such as runs/captcha",
            )  # fmt: skip
    run.check_not_writable_by_others(folder)
    try:
        loaded = manifests.load(folder)
    except DataError as error:
        if error.kind != INTEGRITY:
            raise
        fix = "copy it from the run's data set, or train again"
        raise DataError(error.kind, error.where, error.reason, fix=fix) from error
    task = own_task or BUILT_IN[loaded.kind]
    with _hinting_at_task(task):
        config = config_files.read_saved(task.config_type, folder / run.CONFIG_FILE)
    digest = manifests.digest(folder)
    return SavedRun(folder=folder, task=task, config=config, manifest=loaded, digest=digest)


@contextlib.contextmanager
def _hinting_at_task(task: Task) -> Iterator[None]:
    """Says of what doesn't suit one of this project's tasks that the run may be of another."""
    try:
        yield
    except DataError as error:
        if task not in BUILT_IN.values():
            raise
        raise DataError(
            error.kind, error.where, error.reason,
            fix=f"--task MODULE:NAME if the run is of your own task, else {error.fix}",
        ) from error  # fmt: skip


def training_program(saved: SavedRun, task_path: str | None) -> list[str]:
    """The words of the program that trains such runs.

    Args:
        saved: the run.
        task_path: `module:name` of the task, if it is none of this project's.
    """
    if task_path is not None:
        return ["python", str(PurePath(*task_path.partition(":")[0].split("."))) + ".py"]
    return ["hvd_train", "captcha" if saved.task.kind == "captcha" else "cifar"]


def share(opened: SavedRun | None, folder: Path, own_task: Task | None, world: World) -> SavedRun:
    """Tells all ranks what the chief has opened, whose disk alone need hold the run; a collective.

    Args:
        opened: the run, on the chief.
        folder: its folder there.
        own_task: as `open_run` takes it.
        world: the ranks.
    """
    told: dict[str, Any] | None = None
    if opened is not None:
        told = {
            "config": config_files.to_save(opened.config),
            "manifest": manifests.dump(opened.manifest).decode(),
            "digest": opened.digest,
        }
    told = dist.broadcast_json(told)
    assert told is not None
    with dist.agreed(world):
        if opened is not None:
            return opened
        loaded = manifests.parse(told["manifest"].encode())
        task = own_task or BUILT_IN[loaded.kind]
        config = config_files.parse_saved(task.config_type, told["config"], folder)
        return SavedRun(
            folder=folder, task=task, config=config, manifest=loaded, digest=told["digest"]
        )


def newest(saved_run: SavedRun, *, skipped: list[str]) -> Checkpoint:
    """Reads a run's newest checkpoint that verifies, while the run may go on.

    Args:
        saved_run: the run.
        skipped: gets a line for each damaged checkpoint that was passed over.

    Raises:
        DataError: INPUT when there is none yet, INTEGRITY when all are damaged or it is of another
            data set than the folder says.
    """
    saved = newest_if_any(saved_run, skipped=skipped)
    if saved is None:
        raise DataError(
            INPUT, saved_run.folder, "it has no checkpoint",
            fix="wait for its first (--checkpoint-minutes), or train again if it has ended",
        )  # fmt: skip
    return saved


def newest_if_any(saved_run: SavedRun, *, skipped: list[str]) -> Checkpoint | None:
    """Reads it as `newest` does; None when there is none yet."""
    saved = _restore_while_others_write(saved_run.folder, skipped)
    if saved is None:
        return None
    if saved.state["manifest"] != saved_run.digest:
        raise DataError(
            INTEGRITY, saved_run.folder / manifests.FILE_NAME,
            "it isn't that of the checkpoint's data set",
            fix="bring back a copy: it is the data set's own file of that name",
        )  # fmt: skip
    return saved


def _restore_while_others_write(folder: Path, skipped: list[str]) -> Checkpoint | None:
    while True:
        steps, passed_over = checkpoint.saved_steps(folder), list[str]()
        saved, damage = None, None
        try:
            saved = checkpoint.restore_newest(folder, skipped=passed_over)
        except DataError as error:
            damage = error
        # What seems damaged may have been removed meanwhile, because newer ones came.
        if not passed_over or checkpoint.saved_steps(folder) == steps:
            skipped += passed_over
            if damage is not None:
                raise damage
            return saved


def open_split(saved: SavedRun, folder: Path, loaded: Manifest, split: str, world: World) -> Source:
    """Opens a split of a data set whose examples the run's model can be given.

    Raises:
        DataError: CONFIG when its images or labels are others than the run's, or it has no such
            split or no example in it; INTEGRITY when it is damaged.
    """
    check_fits(saved, folder, loaded)
    only = {split: loaded.split(split, folder)}
    # Labels as long as the run's longest, since the model's are.
    seen = dataclasses.replace(loaded, splits=only, label=saved.manifest.label)
    check_own_hashes(folder, seen, local_rank=world.local_rank, local_size=world.local_size)
    source = open_source(folder, seen, split, budget=saved.config.data.memory_budget * 2**30)
    run.check_not_empty("--split", split, source, folder)
    return source


def check_fits(saved: SavedRun, folder: Path, loaded: Manifest) -> None:
    """Raises CONFIG unless a data set has the run's images and labels."""
    own, other = saved.manifest, loaded
    fix = "name another data set with --data"
    if own.label and other.label:
        run.check_charset(own.label.charset, other.label.charset, saved.folder, fix=fix)
    sizes = [f"{m.image.width}x{m.image.height}x{m.image.channels}" for m in (own, other)]
    if sizes[0] != sizes[1]:
        raise DataError(CONFIG, folder, f"images of {sizes[1]}, the run's are {sizes[0]}", fix=fix)
    if own.classes != other.classes:
        raise DataError(CONFIG, folder, "its classes are not the run's", fix=fix)
    if own.label and other.label:
        low, high = own.label.min_length, own.label.max_length
        if not low <= other.label.min_length <= other.label.max_length <= high:
            raise DataError(
                CONFIG, folder,
                f"labels of {other.label.min_length} to {other.label.max_length} characters, the "
                f"run's have {low} to {high}",
                fix=fix,
            )  # fmt: skip
