"""Measures whether a long run's memory grows: the slope of resident memory over 5,000 steps.

    .venv/bin/python benchmarks/memory_slope.py --save              (make memory-slope)

Two ranks under mpirun train `captcha.py --model linear` on drawn captchas, as a user does: with the
default summaries, metrics, checkpoints and evaluations. Each rank notes its resident memory every
20 steps. The slope is that of the least squares line after a warm-up of 1,000 steps.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import BIN, add_save, environment, report

WARM_UP = 1000
EVERY = 20
TARGET = 1.0
"""MiB per 1,000 steps."""


def main() -> None:
    """Makes the data, starts the ranks and tells their slopes; in a rank, trains."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5000, help="after the warm-up")
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # of a rank
    add_save(parser)
    arguments = parser.parse_args()
    if arguments.flags is not None:
        sys.exit(train(arguments.flags))
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), arguments)
    report(tell(measured, arguments.warm_up), save=arguments.save)


def measure(folder: Path, arguments: argparse.Namespace) -> list[np.ndarray]:
    """Returns steps and resident bytes of each rank, int64 [samples, 2]."""
    images, data = folder / "images", folder / "captcha"
    tool = [str(BIN / "data_tools")]
    convert = ["captcha-to-tfrecord", str(images), str(images / "labels.csv"), str(data)]
    for command in (["make-captcha", str(images), "--count", str(arguments.images)], convert):
        subprocess.run([*tool, *command], check=True, stdout=subprocess.DEVNULL)
    command = [
        str(BIN / "mpirun"), "--oversubscribe", "-np", str(arguments.ranks), sys.executable,
        __file__, "--flags", "--model", "linear", "--data", str(data),
        "--steps", str(arguments.warm_up + arguments.steps), "--runs-dir", str(folder),
        "--name", "run",
    ]  # fmt: skip
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL,
        env={**environment(), "MEMORY_SLOPE_FOLDER": str(folder)},
    )  # fmt: skip
    files = sorted(folder.glob("rank-*.json"))
    return [np.array(json.loads(file.read_text()), np.int64) for file in files]


def tell(measured: list[np.ndarray], warm_up: int) -> list[str]:
    """The slope of each rank after the warm-up, in words."""
    lines = []
    for rank, samples in enumerate(measured):
        steps, resident = samples[samples[:, 0] >= warm_up].T
        slope = np.polyfit(steps / 1000, resident / 2**20, 1)[0]
        lines.append(
            f"- rank {rank}: {slope:.3f} MiB per 1,000 steps (target below {TARGET:g}) over "
            f"{steps[-1] - steps[0]} steps, {resident[0] / 2**20:.1f} MiB at step {steps[0]}, "
            f"{resident[-1] / 2**20:.1f} at step {steps[-1]}"
        )
    return lines


def train(flags: list[str]) -> int:
    """Trains on this rank, and writes its memory by step when it is done."""
    from data_tools import launch_env
    from hvd_train import captcha, threads

    launch = launch_env.read()
    threads.configure(launch)
    from hvd_train.trainer import Trainer

    samples: list[tuple[int, int]] = []
    steps, real = 0, Trainer.step

    def step(*args: Any, **rest: Any) -> Any:
        nonlocal steps
        if steps % EVERY == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            samples.append((steps, pages * resource.getpagesize()))
        steps += 1
        return real(*args, **rest)

    Trainer.step = step
    code = captcha.main(flags)
    file = Path(os.environ["MEMORY_SLOPE_FOLDER"], f"rank-{launch.rank}.json")
    file.write_text(json.dumps(samples))
    return code


if __name__ == "__main__":
    main()
