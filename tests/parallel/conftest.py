"""Data sets of exact sizes by the real converter, and what real ranks wrote about themselves."""

import csv
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_cifar import write_cifar10
from small_runs import TEST, TRAIN, Ran, once

from data_tools import manifest, tfrecord


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory, run_cli: Callable[..., Any]) -> Path:
    """A folder of data sets: captcha and, of the same pictures, alnum, fewer and no_test; cifar10.

    `alnum` has another charset, `fewer` one example less, `no_test` an empty test split. `cifar10`
    has random pixels and classes.
    """
    folder = tmp_path_factory.mktemp("sets")
    images = folder / "images"

    def convert(out: str, labels: Path, *flags: str) -> None:
        command = ["data_tools", "captcha-to-tfrecord", images, labels, folder / out, *flags]
        done = run_cli([*command, "--workers", "1"])
        assert done.rc == 0, done.stderr

    done = run_cli(["data_tools", "make-captcha", images, "--count", "240"])
    assert done.rc == 0, done.stderr
    convert("all", images / "labels.csv", "--split", "train=0.6,test=0.4")
    rows = rows_by_split(folder / "all", images)
    exact = write_rows(folder / "exact.csv", rows["train"][:TRAIN] + rows["test"][:TEST])
    convert("captcha", exact, "--split", "train=0.6,test=0.4")
    convert("alnum", exact, "--split", "train=0.6,test=0.4", "--charset", "alnum")
    fewer = write_rows(folder / "fewer.csv", rows["train"][:TRAIN] + rows["test"][: TEST - 1])
    convert("fewer", fewer, "--split", "train=0.6,test=0.4")
    train_only = write_rows(folder / "train.csv", rows["train"][:TRAIN])
    convert("no_test", train_only, "--split", "train=0.6,test=0.4")
    classes = np.random.default_rng(0).integers(0, 10, TRAIN + TEST).tolist()
    files = {"data_batch_1.bin": classes[:TRAIN], "test_batch.bin": classes[TRAIN:]}
    binary = write_cifar10(folder / "binary", files)
    done = run_cli(["data_tools", "cifar-to-tfrecord", binary, folder / "cifar10"])
    assert done.rc == 0, done.stderr
    for name in ("captcha", "cifar10"):
        splits = manifest.load(folder / name).splits
        assert {split: own.examples for split, own in splits.items()} == {
            "train": TRAIN, "test": TEST,
        }  # fmt: skip
    return folder


def rows_by_split(data: Path, images: Path) -> dict[str, list[list[str]]]:
    """The rows of labels.csv whose pictures came into each split."""
    row_of = {}
    with (images / "labels.csv").open(newline="") as file:
        for row in csv.reader(file):
            row_of[hashlib.sha256((images / f"{row[0]}.jpg").read_bytes()).digest()] = row
    return {
        name: [
            row_of[hashlib.sha256(tfrecord.decode_example(record)["image"][0]).digest()]
            for shard in split.shards
            for _, record in tfrecord.read_records(data / shard.file)
        ]
        for name, split in manifest.load(data).splits.items()
    }


def write_rows(path: Path, rows: list[list[str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="session")
def ran(
    sets: Path,
    tmp_path_factory: pytest.TempPathFactory,
    run_cli: Callable[..., Any],
    mpirun: Callable[..., Any],
) -> Callable[[int], Ran]:
    """`ran(size)` starts ranks.py on so many ranks, once a session; one rank without mpirun."""
    folders: dict[int, Path] = {}

    def start(size: int) -> Ran:
        if size > 1:
            found(1)  # whose run is gone on with
        folders[size] = out = tmp_path_factory.mktemp(f"ranks-{size}")
        script = Path(__file__).parent / "ranks.py"
        command = ["python", script, sets, out, folders[1]]
        done = run_cli(command, timeout=300) if size == 1 else mpirun(size, command, timeout=400)
        assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
        files = [out / f"rank-{rank}" for rank in range(size)]
        return Ran(
            out,
            done.stdout,
            [json.loads(file.with_suffix(".json").read_text()) for file in files],
            [dict(np.load(file.with_suffix(".npz"))) for file in files],
        )

    found = once(start)
    return found
