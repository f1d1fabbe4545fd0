"""A run before its first step: its length, what it tells, and what it refuses to go on with."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import yaml
from small_sets import texts, write_set

from data_tools import manifest
from data_tools.errors import DataError
from hvd_train import config_files, run
from hvd_train.config import CaptchaConfig, OptimConfig, RunConfig
from hvd_train.config_files import resolve_batch
from hvd_train.data.source import open_source
from hvd_train.dist import World

ALONE = World(rank=0, size=1, local_rank=0, local_size=1)


def settings(**optim: Any) -> CaptchaConfig:
    return CaptchaConfig(optim=OptimConfig(**optim))


def world(size: int) -> World:
    return World(rank=0, size=size, local_rank=0, local_size=size)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> run.Data:
    folder = tmp_path_factory.mktemp("run") / "set"
    made = write_set(folder, train=texts(25), test=texts(7))
    train, test = (open_source(folder, made, split, budget=2.0**30) for split in ("train", "test"))
    return run.Data(
        folder=folder, manifest=made, digest=manifest.digest(folder), train=train, test=test
    )


def refusal(call: Any) -> str:
    with pytest.raises(DataError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("optim", "steps"),
    [
        ({"global_batch": 10, "epochs": 2.0}, 5),
        ({"global_batch": 10, "epochs": 1.0}, 3),
        ({"global_batch": 10, "epochs": 0.01}, 1),
        ({"global_batch": 10, "epochs": 2.0, "steps": 400}, 400),
    ],
)
def test_the_run_covers_its_epochs_unless_its_steps_are_given(
    optim: dict[str, Any], steps: int
) -> None:
    assert run.steps_of(settings(**optim), 25) == steps


@pytest.mark.parametrize(("batch", "size"), [(25, 1), (25, 25), (4, 4), (1, 1)])
def test_a_batch_from_one_a_rank_to_the_whole_split_fits(batch: int, size: int) -> None:
    run.check_batch(settings(global_batch=batch), 25, size)


@pytest.mark.parametrize(("batch", "parts", "size"), [(10, 3, 1), (8, 4, 3), (2, 4, 1)])
def test_micro_batches_are_equal_and_hold_an_example_of_each_rank(
    batch: int, parts: int, size: int
) -> None:
    asked = settings(global_batch=batch, accumulate=parts)
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    assert refusal(lambda: run.check_batch(asked, 25, size)) == (
        f"error: CONFIG: --accumulate: {parts} micro-batches of {batch} examples for {ranks}; "
        "let it divide the batch over all ranks, and give each rank an example of each"
    )
    run.check_batch(settings(global_batch=12, accumulate=4), 25, 3)


def test_ten_examples_do_not_fill_64_on_two_ranks() -> None:
    asked = resolve_batch(settings(batch_size=64), 2)
    assert refusal(lambda: run.check_batch(asked, 10, 2)) == (
        "error: CONFIG: --batch-size: a step takes 128 examples over 2 ranks, the split train has "
        "10; lower --batch-size or --global-batch"
    )


@pytest.mark.parametrize(
    ("optim", "size", "batch"),
    [
        (
            {"global_batch": 10, "epochs": 2.0}, 1,
            "10 a step, 10 a rank on 1 rank; 5 steps = 2 epochs",
        ),
        (
            {"global_batch": 10, "epochs": 1.0}, 3,
            "10 a step, 4 or 3 a rank on 3 ranks; 3 steps = 1.2 epochs",
        ),
        (
            {"global_batch": 10, "epochs": 1.0, "accumulate": 2}, 3,
            "10 a step, 4 or 2 a rank on 3 ranks; 3 steps = 1.2 epochs",
        ),
    ],
)  # fmt: skip
def test_the_remainder_policy_and_the_shares_are_told(
    data: run.Data, optim: dict[str, Any], size: int, batch: str
) -> None:
    assert run.describe(settings(**optim), data, world(size)) == [
        f"data: {data.folder}, 25 to train on, 7 to test on, 80x20x3",
        f"batch: {batch}; the order goes on over an epoch's end, so no example is dropped or "
        "repeated",
    ]


def test_float16_without_a_gpu_is_warned_of_in_the_first_line(data: run.Data) -> None:
    slow = dataclasses.replace(settings(global_batch=10), run=RunConfig(dtype="float16"))
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert run.describe(slow, data, world(1))[0] == (
        f"data: {data.folder}, 25 to train on, 7 to test on, 80x20x3"
        if has_gpu
        else "warning: a CPU computes --dtype float16 about 100 times as slowly as float32"
    )


@contextlib.contextmanager
def opened(folder: Path, asked: CaptchaConfig) -> Iterator[run.RunFolder]:
    with run.sole_writer(folder, resume=asked.run.resume) as held:
        run.write_settings(held, asked)
        yield held


def test_the_saved_settings_are_those_of_the_run_with_its_batch(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "name"
    asked = resolve_batch(settings(batch_size=5), 2)
    with opened(folder, asked):
        pass
    assert yaml.safe_load((folder / "config.yaml").read_text()) == config_files.to_save(asked)
    assert config_files.to_save(asked)["global_batch"] == 10


def test_a_run_that_came_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with opened(tmp_path / "run", settings(global_batch=10)):
        pass

    def again() -> None:
        with opened(tmp_path / "run", settings()):
            pass

    assert refusal(again) == (
        f"error: CONFIG: {tmp_path / 'run'}: the run folder exists already; "
        "choose another --name, or go on with --resume"
    )
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["global_batch"] == 10


def going_on(**run_settings: Any) -> CaptchaConfig:
    return dataclasses.replace(
        settings(global_batch=10), run=RunConfig(resume=True, **run_settings)
    )


def test_going_on_writes_the_settings_that_hold_now(tmp_path: Path) -> None:
    with opened(tmp_path / "run", settings(global_batch=10)):
        pass
    with opened(tmp_path / "run", going_on(log_every=3)):
        pass
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["log_every"] == 3


def test_two_never_train_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def join() -> None:
        with opened(folder, going_on(log_every=3)):
            pass

    with opened(folder, settings(global_batch=10)):
        assert refusal(join) == (
            f"error: CONFIG: {folder}: another process is training in it; "
            "wait for it to end, or start a run with another --name"
        )
        assert yaml.safe_load((folder / "config.yaml").read_text())["log_every"] == 10
    join()


def test_a_run_that_fails_before_it_has_written_anything_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run.sole_writer(tmp_path / "run", resume=False):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError), opened(tmp_path / "run", settings()):
        raise ZeroDivisionError
    assert (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("replaced", [True, False])
def test_nothing_is_written_where_the_run_folder_was(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "run"
    with opened(path, settings()) as folder:
        path.rename(tmp_path / "moved")
        if replaced:
            path.mkdir()
        assert refusal(lambda: run.write_settings(folder, settings())) == (
            f"error: INPUT: {path}: the run folder was removed or replaced while the run went on; "
            "start the run again"
        )
    assert not path.exists() or not list(path.iterdir())


def test_a_run_goes_on_with_its_own_data_set_wherever_it_lies(data: run.Data) -> None:
    state = json.loads(json.dumps(run.data_state(data)))
    elsewhere = dataclasses.replace(data, folder=Path("/elsewhere"))
    run.check_data_state(state, elsewhere, Path("run"))


def test_versions_name_all_that_ranks_must_share() -> None:
    found = run.versions()
    assert list(found) == ["python", "hvd-train", "horovod", "tensorflow", "keras", "numpy"]
    assert all(found.values())
