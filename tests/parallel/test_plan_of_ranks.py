"""`--plan` tells what a run will take, on all ranks, and writes nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_tools import datasets

ROOT = Path(__file__).resolve().parents[2]

Commands = Callable[..., Any]

PLAN = (
    r"""model: tutorial, 1,756,426 parameters
rate by epoch:
    0\.00  0\.00096689 ##
    0\.40   0\.0048345 #{10}
    0\.79    0\.008702 #{18}
    1\.19     0\.01257 #{26}
    1\.58    0\.016437 #{34}
    1\.98    0\.019531 #{40}
    2\.38    0\.019531 #{40}
    2\.77    0\.019531 #{40}
    3\.17    0\.019531 #{40}
    3\.56    0\.019531 #{40}
    3\.96    0\.019531 #{40}
"""
    r"memory a rank, estimated: 0 MiB data set, 13 MiB weights, optimizer and averages, 7 MiB "
    r"gradients, 4 MiB activations of 5 examples; these steps took up to \d{3,4} MiB in all\n"
    r"time, estimated from 10 steps: \d+\.\d{3} s a step, \d+ examples/sec; 41 steps take "
    r"\d:\d\d:\d\d, and evaluations and checkpoints more\n"
    r"nothing is written; without --plan the run starts\n"
)


def test_a_plan_downloads_no_data_set_but_tells_how_to_make_it(
    run_cli: Commands, tmp_path: Path
) -> None:
    ran = run_cli(
        ["python", ROOT / "hvd_train" / "cifar.py", "--plan"], cwd=tmp_path,
        env={"HVD_TRAIN_DATA": None},
    )  # fmt: skip
    assert ran.rc == 2
    assert ran.error == (
        "error: CONFIG: datasets/cifar10: no data set there; make one: "
        + "; ".join(datasets.HOW_TO_MAKE_CIFAR10)
    )
    assert list(tmp_path.iterdir()) == []


def test_a_plan_on_two_ranks_leaves_no_folder_and_one_that_exists_as_it_is(
    sets: Path, mpirun: Commands, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.yaml").write_text("mine")
    ran = mpirun(
        2,
        ["python", "hvd_train/cifar.py", "--data", sets / "cifar10", "--runs-dir", tmp_path,
         "--name", "there", "--plan", "--global-batch", 10, "--image-size", 32, "--epochs", 4,
         "--base-lr", "0.25", "--schedule", "constant", "--warmup-epochs", 2,
         "--log-device-placement"],
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    assert re.search(rf"^{PLAN}\Z", ran.stdout, re.MULTILINE), ran.stdout[-3000:]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "there", "there/config.yaml",
    ]  # fmt: skip
    assert (tmp_path / "there" / "config.yaml").read_text() == "mine"
    # The chief alone tells where its operations run: each of them once.
    convolution = r"tutorial\w*/conv1\w*/convolution: \(Conv2D\): \S*device:[CG]PU:0"
    assert len(re.findall(convolution, ran.stderr)) == 1
