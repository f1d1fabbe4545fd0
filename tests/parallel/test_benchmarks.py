"""Every contestant of benchmarks/throughput.py runs, for a few steps; nothing is compared."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import throughput

ROOT = throughput.ROOT
# One of each script, and the other launcher and the flag in one of Horovod's; PyTorch is no part of
# the environment, and trains where somebody has added it.
PEERS = [
    "horovod", "horovod-tuned-gloo", "multi-worker-mirrored", "parameter-server", "keras-fit",
    *(["pytorch-ddp"] if importlib.util.find_spec("torch") else []),
]  # fmt: skip
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
