"""Every contestant of benchmarks/throughput.py runs, for a few steps; nothing is compared."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import throughput

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


def test_our_own_rate_is_read_from_our_runs(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    printed = smoke(run_cli, "--data", cifar_set(tmp_path, run_cli), "--only", *OURS)
    assert "| figure | median | min..max | target |" in printed
    for name in OURS:
        assert f"round 1, {name}: " in printed


def cifar_set(folder: Path, run_cli: Callable[..., Any]) -> Path:
    """A data set of random pictures in CIFAR-10's layout: a label, then 32x32 of each colour."""
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", 300), ("test_batch.bin", 20)):
        records = rng.integers(0, 256, (count, 1 + 3 * 32 * 32), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    done = run_cli(["data_tools", "cifar-to-tfrecord", folder, folder / "set"])
    assert done.rc == 0, done.stderr
    return folder / "set"
