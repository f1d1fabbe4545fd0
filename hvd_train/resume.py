"""Where a run starts: at its own newest checkpoint, at another run's weights, or as drawn."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_tools.errors import CONFIG, DataError, to_stdout
from hvd_train import checkpoint, dist, run
from hvd_train.config import TrainConfig
from hvd_train.dist import World
from hvd_train.run import Data
from hvd_train.stop import Best
from hvd_train.summaries import Smoothed
from hvd_train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run knows besides its variables; part of each checkpoint.

    Attributes:
        step: updates done.
        evaluation_is_due: whether the run was stopped before the evaluation after this step.
        best: the best evaluation on the validation split, if there was any.
        smoothed: the smoothed losses.
    """

    step: int = 0
    evaluation_is_due: bool = False
    best: Best | None = None
    smoothed: Smoothed = field(default_factory=Smoothed)


def to_state(progress: Progress, data: Data) -> dict[str, Any]:
    """What the state.json of a checkpoint says."""
    return {**run.data_state(data), "progress": dataclasses.asdict(progress)}


def _from_json(values: dict[str, Any]) -> Progress:
    best, smoothed = values["best"], values.get("smoothed", {})  # which older ones lack
    return Progress(
        **{
            **values,
            "best": None if best is None else Best(**best),
            "smoothed": Smoothed(**smoothed),
        }
    )


def start(
    trainer: Trainer, data: Data, folder: Path, config: TrainConfig, world: World, *, exists: bool
) -> Progress:
    """Gives the trainer what the run starts with, on all ranks, and tells it; a collective.

    Args:
        trainer: with its variables as drawn.
        data: of the run.
        folder: the run folder, which only the chief needs to see.
        config: the settings that hold.
        world: the ranks.
        exists: whether there is a run to go on with.

    Raises:
        DataError: CONFIG when a checkpoint is of another data set or model, or there is none to
            start from; INTEGRITY when all are damaged.
    """
    progress, told = Progress(), list[str]()
    with dist.agreed(world):
        if world.is_chief:
            if exists:
                progress, told = _restore(trainer, data, folder)
            elif config.run.resume:
                told = [f"{folder} has nothing to go on with: starts fresh"]
            if not progress.step and config.run.init_from is not None:
                told += _init_from(trainer, config.run.init_from)
            if told:
                to_stdout("\n".join(told))
    trainer.broadcast()
    trainer.draw_apart(world.rank)
    return _from_json(dist.broadcast_json(dataclasses.asdict(progress)))


def _restore(trainer: Trainer, data: Data, folder: Path) -> tuple[Progress, list[str]]:
    """Loads the newest whole checkpoint, if there is any; chief only."""
    skipped: list[str] = []
    saved = checkpoint.restore_newest(folder, skipped=skipped)
    if saved is None:
        return Progress(), [*skipped, f"{folder} has no checkpoint: starts fresh"]
    run.check_data_state(saved.state, data, folder)
    trainer.load(saved, folder)
    told = [*skipped, f"{folder} goes on from step {saved.step}"]
    return _from_json(saved.state["progress"]), told


def _init_from(trainer: Trainer, other: Path) -> list[str]:
    """Takes the averaged weights of another run's newest whole checkpoint; chief only."""
    run.check_not_writable_by_others(other)
    skipped: list[str] = []
    saved = checkpoint.restore_newest(other, skipped=skipped)
    if saved is None:
        raise DataError(
            CONFIG, "--init-from", f"{other} has no checkpoints",
            fix="name the folder of a run that saved some",
        )  # fmt: skip
    drawn = trainer.take_averages(saved, other)
    told = [*skipped, f"starts from the moving averages of {other}, step {saved.step}"]
    if drawn:
        told.append(f"drawn anew, since they have another shape there: {', '.join(drawn)}")
    return told
