"""A user's own folder of images, converted, trains as it is; so do SVHN's digits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image
from small_cifar import picture
from small_runs import metrics

Commands = Callable[..., Any]


def write_folder(folder: Path, *, classes: int, each: int) -> Path:
    """Pictures of 40x28, neither CIFAR's size nor square, in folders of that many classes."""
    for number in range(classes * each):
        path = folder / f"class {number % classes}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number)).resize((40, 28)).save(path)
    return folder


def convert(run_cli: Commands, *command: object) -> None:
    ran = run_cli(["data_tools", *command])
    assert (ran.rc, ran.stderr) == (0, "")


def check_run(run: Path, classes: int) -> None:
    """Two steps were trained, with a finite loss, and the network tells so many classes apart."""
    steps = {line["step"]: line["loss"] for line in metrics(run) if line["split"] == "train"}
    assert list(steps) == [0, 1]
    assert np.isfinite(list(steps.values())).all()
    with np.load(run / "checkpoints" / "step-00000002" / "weights.npz") as weights:
        assert any(array.shape[-1:] == (classes,) for array in weights.values())


@pytest.mark.parametrize("encoding", ["raw", "original"])
def test_a_folder_of_three_classes_trains_two_steps_on_two_ranks(
    run_cli: Commands, mpirun: Commands, tmp_path: Path, encoding: str
) -> None:
    source = write_folder(tmp_path / "source", classes=3, each=12)
    flags = ("--image-encoding", encoding, "--split", "train=0.7,test=0.3")
    convert(run_cli, "folder-to-tfrecord", source, tmp_path / "set", *flags)
    ran = mpirun(
        2,
        ["python", "hvd_train/cifar.py", "--data", tmp_path / "set", "--steps", 2,
         "--batch-size", 4, "--log-every", 1, "--runs-dir", tmp_path, "--name", "own"],
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    check_run(tmp_path / "own", 3)


def test_svhn_trains_two_steps(run_cli: Commands, tmp_path: Path) -> None:
    digits = tmp_path / "digits-source"
    digits.mkdir()
    for name, count in (("train", 20), ("test", 7)):
        pixels = np.stack([picture(number) for number in range(count)], axis=3)
        labels = (np.arange(count) % 10 + 1)[:, None]
        scipy.io.savemat(digits / f"{name}_32x32.mat", {"X": pixels, "y": labels})
    convert(run_cli, "svhn-to-tfrecord", digits, tmp_path / "set")
    ran = run_cli(
        ["python", "hvd_train/cifar.py", "--data", tmp_path / "set", "--steps", 2,
         "--batch-size", 4, "--log-every", 1, "--runs-dir", tmp_path, "--name", "digits"],
    )  # fmt: skip
    assert ran.rc == 0, ran.stderr
    check_run(tmp_path / "digits", 10)


def test_images_smaller_than_what_the_network_sees_are_told(
    run_cli: Commands, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "source", classes=2, each=6)
    flags = ("--resize", "20x16", "--split", "train=0.5,test=0.5")
    convert(run_cli, "folder-to-tfrecord", source, tmp_path / "set", *flags)
    ran = run_cli(["python", "hvd_train/cifar.py", "--data", tmp_path / "set",
                   "--batch-size", 2, "--runs-dir", tmp_path])  # fmt: skip
    assert ran.rc == 2
    assert ran.error == (
        "error: CONFIG: --image-size: 24, the images are 20x16; use at most 16"
    )  # fmt: skip
