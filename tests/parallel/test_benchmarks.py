"""Every contestant of benchmarks/throughput.py runs, for a few steps; nothing is compared."""

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import throughput

ROOT = throughput.ROOT
# One of each script, and the other launcher and the flag in one of Horovod's; PyTorch is no part of
# the environment, and trains where somebody has added it.
PEERS = [
    "horovod", "horovod-tuned-gloo", "multi-worker-mirrored", "parameter-server", "keras-fit",
    *(["pytorch-ddp"] if importlib.util.find_spec("torch") else []),
]  # fmt: skip
OURS = [name for name, contestant in throughput.CONTESTANTS.items() if contestant.peer is None]
# Only tests allow root silently.
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def smoke(run_cli: Callable[..., Any], *flags: object) -> str:
    command = ["python", ROOT / "benchmarks" / "throughput.py", "--smoke", *flags]
    done = run_cli(command, env=ALLOW_ROOT if os.geteuid() == 0 else {}, timeout=300)
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout)


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_trains_and_its_rate_is_read(name: str, run_cli: Callable[..., Any]) -> None:
    printed = smoke(run_cli, "--only", name)
    assert f"round 1, {name}: " in printed
    assert f"| {throughput.CONTESTANTS[name].title} | " in printed


def test_the_roof_is_measured(run_cli: Callable[..., Any]) -> None:
    assert "| sgemm, one process a core, GFLOP/s | " in smoke(run_cli, "--only", "sgemm")


def test_our_own_rate_is_read_from_our_runs(data: Path, run_cli: Callable[..., Any]) -> None:
    printed = smoke(run_cli, "--data", data, "--only", *OURS)
    assert "| figure | median | min..max | target |" in printed
    for name in OURS:
        assert f"round 1, {name}: " in printed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, run_cli: Callable[..., Any]) -> Path:
    return cifar_set(tmp_path_factory.mktemp("cifar"), run_cli)


def script(run_cli: Callable[..., Any], name: str, *flags: object) -> str:
    done = run_cli(
        ["python", ROOT / "benchmarks" / name, *flags],
        env=ALLOW_ROOT if os.geteuid() == 0 else {}, timeout=300,
    )  # fmt: skip
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(done.stdout)


def test_the_input_pipelines_are_compared(run_cli: Callable[..., Any]) -> None:
    printed = script(run_cli, "input_pipeline.py", "--rounds", 1, "--images", 300, "--seconds", 0.1)
    assert "ours / the tutorial's (target 10): " in printed


def test_real_data_is_compared_with_synthetic(data: Path, mpirun: Callable[..., Any]) -> None:
    command = ["python", ROOT / "benchmarks" / "real_data.py", "--data", data]
    done = mpirun(2, [*command, "--rounds", 1, "--steps", 2])
    assert done.rc == 0, done.stderr
    assert "real / in memory (target 0.98): " in done.stdout


def test_a_start_is_timed(data: Path, run_cli: Callable[..., Any]) -> None:
    assert "ratio (target 2.0): " in script(run_cli, "startup.py", "--data", data, "--rounds", 1)


def test_the_tutorials_exercise_is_drawn(data: Path, run_cli: Callable[..., Any]) -> None:
    printed = script(run_cli, "one_and_two.py", "--data", data, "--smoke")
    assert "1 x 128: " in printed
    assert "2 x 64: " in printed


@pytest.mark.parametrize("recipe", ["tutorial", "undistorted"])
def test_a_recipe_trains(recipe: str, run_cli: Callable[..., Any]) -> None:
    assert f"| {recipe} | 2 ranks on " in script(run_cli, "cifar_accuracy.py", recipe, "--smoke")


def test_captchas_train_by_the_readmes_commands(run_cli: Callable[..., Any]) -> None:
    assert "| smoke | 2 ranks on " in script(run_cli, "captcha_accuracy.py", "smoke")


def test_memory_is_compared(data: Path, run_cli: Callable[..., Any]) -> None:
    printed = script(
        run_cli, "memory.py", "--data", data, "--steps", 2, "--only", "ours", "keras-fit"
    )
    assert len([line for line in printed.splitlines() if line.startswith("| ours, mpirun | ")]) == 1


def test_the_growth_of_memory_is_told_for_each_rank(run_cli: Callable[..., Any]) -> None:
    printed = script(run_cli, "memory_slope.py", "--steps", 100, "--warm-up", 20, "--images", 120)
    for rank in range(2):
        assert re.search(
            rf"- rank {rank}: -?\d+\.\d+ MiB per 1,000 steps .* over 80 steps, ", printed
        )


def test_conversions_are_timed_and_weighed(run_cli: Callable[..., Any]) -> None:
    printed = script(
        run_cli, "convert.py", "--rounds", 1, "--images", 600, "--captchas", 40,
        "--rows", 1000, 2000,
    )  # fmt: skip
    for line in (
        "ours / copy (target 1.0 or less): ", "tf.train.Example / ours (target 3): ",
        "TFDS / ours: ", "rate of one process / Pillow's (target 0.8): ",
        "one process / 2 workers (target 1.7): ",
        "one process / 2 ranks (target 1.7): ", "captchas of 8x8: ", "CIFAR-10 images: ",
    ):  # fmt: skip
        assert f"- {line}" in printed


def cifar_set(folder: Path, run_cli: Callable[..., Any]) -> Path:
    """A data set of random pictures in CIFAR-10's layout: a label, then 32x32 of each colour."""
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", 300), ("test_batch.bin", 20)):
        records = rng.integers(0, 256, (count, 1 + 3 * 32 * 32), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    done = run_cli(
        ["data_tools", "cifar-to-tfrecord", *sorted(folder.glob("*.bin")), folder / "set"]
    )
    assert done.rc == 0, done.stderr
    return folder / "set"
