"""What every peer does alike: its flags, its batch, its clock and its line of JSON.

Knows numpy and nothing of any training library, since each peer runs where its own is installed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 128
"""Examples a rank and step."""
IMAGE = (24, 24, 3)
CLASSES = 10
LEARNING_RATE = 0.1


def parser(description: str | None) -> argparse.ArgumentParser:
    """The flags that all peers have."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--steps", type=int, default=60, help="steps that are timed")
    made.add_argument("--warmup", type=int, default=20, help="steps before them")
    return made


def synthetic_batch(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The one batch that a rank trains on: float32 [128, 24, 24, 3] and int64 [128]."""
    rng = np.random.default_rng(rank)
    images = rng.standard_normal((BATCH, *IMAGE), np.float32)
    return images, rng.integers(0, CLASSES, BATCH)


def train(step: Callable[[], Any], arguments: argparse.Namespace) -> tuple[float, Any]:
    """Runs the warm-up steps, then times the others.

    Returns:
        Steps a second, and what the last step returned.
    """
    for _ in range(arguments.warmup):
        step()
    start = time.perf_counter()
    for _ in range(arguments.steps):
        last = step()
    return arguments.steps / (time.perf_counter() - start), last


def memory_mib(process: int | str = "self") -> tuple[int, int]:
    """The memory that a process holds, and the most that it has held, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    kib = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return int(kib["VmRSS"]) // 1024, int(kib["VmHWM"]) // 1024


def report(images_per_sec: float, loss: float, memory: Sequence[Sequence[int]]) -> None:
    """Prints the line that throughput.py reads; the chief alone calls this.

    Args:
        images_per_sec: of all ranks together.
        loss: of the last step, weight decay included.
        memory: resident and peak memory in MiB, of every rank or of those the chief knows.
    """
    line = {
        "images_per_sec": round(images_per_sec, 2),
        "loss": round(loss, 4),
        "memory_mib": memory,
    }
    print(json.dumps(line), flush=True)
