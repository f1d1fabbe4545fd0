"""A run folder is opened without its data set, while a trainer may write to it."""

import dataclasses
import itertools
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saved_runs import STEPS, write_run

from data_tools.errors import DataError
from hvd_train import checkpoint, results, saved_run
from hvd_train.checkpoint import Checkpoint
from hvd_train.evaluate import has_ended, new_checkpoint
from hvd_train.saved_run import SavedRun, newest, newest_if_any, open_run
from hvd_train.task import CAPTCHA, CIFAR
from hvd_train.weights import by_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checkpoint]:
    folder = tmp_path_factory.mktemp("made")
    return folder, write_run(folder)


@pytest.fixture
def folder(made: tuple[Path, Checkpoint], tmp_path: Path) -> Path:
    """A copy of the run, away from its data set."""
    return shutil.copytree(made[0] / "runs" / "a", tmp_path / "a")


def refusal(call: Any) -> str:
    with pytest.raises(DataError) as caught:
        call()
    return str(caught.value)


def test_what_a_run_was_is_read_from_its_folder(folder: Path) -> None:
    found = open_run(folder)
    assert found.task is CAPTCHA
    assert (found.config.optim.global_batch, found.config.optim.steps) == (10, STEPS)
    assert found.manifest.splits["train"].examples == 25
    own = dataclasses.replace(CAPTCHA, name="own")
    assert open_run(folder, own).task is own


@pytest.mark.parametrize("averaged", [True, False])
def test_the_model_gets_the_weights_or_their_averages(
    folder: Path, made: tuple[Path, Checkpoint], averaged: bool
) -> None:
    found = open_run(folder)
    model = found.build()
    found.load(model, newest(found, skipped=[]), averaged=averaged)
    wanted = made[1].ema if averaged else made[1].weights
    values = {name: v.numpy() for name, v in by_path(model.model.variables).items()}
    assert values.keys() == made[1].weights.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(values[name], array)


def test_a_folder_that_is_no_run_is_one_line(folder: Path, tmp_path: Path) -> None:
    assert refusal(lambda: open_run(tmp_path / "gone")) == (
        f"error: INPUT: {tmp_path / 'gone'}: no such folder; name one such as runs/captcha"
    )
    for name in ("manifest.json", "config.yaml"):
        (folder / name).unlink()
        assert refusal(lambda: open_run(folder)) == (
            f"error: INPUT: {folder}: no {name}, so no run was started in it by this version; "
            "name a folder such as runs/captcha"
        )


def test_a_run_of_another_task_is_one_line(folder: Path) -> None:
    assert refusal(lambda: open_run(folder, CIFAR)) == (
        f"error: CONFIG: {folder / 'config.yaml'}: it doesn't name the settings of this version: "
        "batch_norm, cutout, image_size, init_stddev, mixup; "
        "--task MODULE:NAME if the run is of your own task, else "
        "go on with the version that the run was started with, or start one with --name"
    )


@pytest.mark.parametrize("name", ["", "checkpoints"])
def test_a_folder_that_others_can_write_to_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    path.chmod(0o757)
    assert refusal(lambda: open_run(folder)) == (
        f"error: CONFIG: {path}: other users can write to the folder; "
        f"check what is in it, then: chmod o-w {path}"
    )


def damage(folder: Path, step: int) -> str:
    path = checkpoint.folder_of(folder, step)
    (path / "weights.npz").write_bytes(b"broken")
    return (
        f"skipped {path}: the checkpoint is damaged "
        "(weights.npz has another SHA-256 than state.json says)"
    )


def save(folder: Path, saved: Checkpoint, step: int, *, keep: int = 9) -> None:
    checkpoint.save(folder, dataclasses.replace(saved, step=step), keep=keep)


def test_the_newest_whole_checkpoint_is_read(folder: Path, made: tuple[Path, Checkpoint]) -> None:
    found = open_run(folder)
    save(folder, made[1], 20)
    assert newest(found, skipped=[]).step == 20
    lines, skipped = [damage(folder, 20)], list[str]()
    assert newest(found, skipped=skipped).step == 10
    assert skipped == lines
    lines.append(damage(folder, 10))
    with pytest.raises(DataError) as caught:
        newest(found, skipped=[])
    assert caught.value.report().splitlines() == [
        *lines,
        f"error: INTEGRITY: {folder / 'checkpoints'}: no checkpoint is whole; "
        "start a new run with --name, or bring back a copy",
    ]


def test_a_run_without_a_checkpoint_has_none_yet(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    found = open_run(folder)
    assert newest_if_any(found, skipped=[]) is None
    assert refusal(lambda: newest(found, skipped=[])) == (
        f"error: INPUT: {folder}: it has no checkpoint; "
        "wait for its first (--checkpoint-minutes), or train again if it has ended"
    )


def test_a_checkpoint_of_another_data_set_than_the_folder_says_is_damage(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"name": "captcha"', '"name": "other"'))
    found = open_run(folder)
    assert refusal(lambda: newest(found, skipped=[])) == (
        f"error: INTEGRITY: {path}: it isn't that of the checkpoint's data set; "
        "bring back a copy: it is the data set's own file of that name"
    )


def test_checkpoints_that_are_removed_while_they_are_read_are_no_damage(
    folder: Path, made: tuple[Path, Checkpoint]
) -> None:
    found, done, saved = open_run(folder), threading.Event(), made[1]

    def train() -> None:
        for step in itertools.count(11):
            save(folder, saved, step, keep=1)
            if done.is_set():
                return

    writer = threading.Thread(target=train)
    writer.start()
    try:
        steps, skipped = list[int](), list[str]()
        while len(set(steps)) < 20 and writer.is_alive():
            steps.append(newest(found, skipped=skipped).step)
    finally:
        done.set()
        writer.join()
    assert steps == sorted(steps)
    assert len(set(steps)) == 20
    assert skipped == []


# What --watch looks at


def steps_of_new(found: SavedRun, evaluated: set[int], skipped: list[str]) -> int | None:
    new = new_checkpoint(found, evaluated, skipped)
    return None if new is None else new.step


def test_a_checkpoint_is_new_until_it_was_evaluated(
    folder: Path, made: tuple[Path, Checkpoint]
) -> None:
    found = open_run(folder)
    assert steps_of_new(found, set(), []) == 10
    assert steps_of_new(found, {10}, []) is None
    save(folder, made[1], 20)
    assert steps_of_new(found, {10}, []) == 20
    line, skipped = damage(folder, 20), list[str]()
    assert steps_of_new(found, {10}, skipped) is None
    assert skipped == [line]
    assert steps_of_new(found, set(), []) == 10
    shutil.rmtree(folder / "checkpoints")
    assert steps_of_new(found, set(), []) is None


def test_a_run_has_ended_at_its_last_step_or_where_its_trainer_says(
    folder: Path, made: tuple[Path, Checkpoint]
) -> None:
    found = open_run(folder)
    assert not has_ended(found, set())
    assert not has_ended(found, {10})
    assert has_ended(found, {10, STEPS})
    figure = {"accuracy": 0.5}
    results.update(folder, lambda before: results.with_figure(before, 10, figure))
    assert not has_ended(found, {10})
    figure = {"seconds": []}
    results.update(folder, lambda before: results.with_figure(before, 10, figure))
    assert has_ended(found, {10})
    # A run that goes on after it was stopped early at another step than it says.
    save(folder, made[1], 20)
    assert not has_ended(found, {10})
    assert saved_run.newest(found, skipped=[]).step == 20
