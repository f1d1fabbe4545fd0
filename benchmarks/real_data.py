"""Compares training on real records with training on one batch in memory, in our own trainer.

    mpirun -np 2 python benchmarks/real_data.py --data datasets/cifar10

Blocks of steps of both kinds alternate within one run, so that each pair sees the same machine.
Rank 0 prints both rates and the ratio of each pair.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import add_save, report, summary

from data_tools import launch_env
from hvd_train import threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

from hvd_train import config_files, dist, run, train
from hvd_train.config import CifarConfig
from hvd_train.data import pipeline
from hvd_train.data.source import Batch
from hvd_train.resume import Progress
from hvd_train.task import CIFAR
from hvd_train.trainer import Trainer

WARM_UP = 20


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each block")
    add_save(parser)
    arguments = parser.parse_args()
    world = dist.init(LAUNCH)
    settings, _ = config_files.parse_config(
        CifarConfig, ["--data", arguments.data], prog="real_data.py"
    )
    settings = config_files.resolve_batch(settings, world.size)
    data = run.open_data(CIFAR, settings, world)
    trainer = Trainer(CIFAR.build(settings, data.manifest), settings)
    trainer.broadcast()
    loop = train.Loop(CIFAR, settings, trainer, data, world, Progress())
    steps = range(WARM_UP + arguments.rounds * arguments.steps)
    real = pipeline.prefetch(loop.own_batch, steps, pipeline.InputWait())
    synthetic = repeat(loop.own_batch(0))
    images_a_step = settings.optim.batch_size * world.size

    def rate(batches: Iterator[Batch], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            trainer.step(next(batches), rate=0.01, decay=0.9)
        return count * images_a_step / (time.perf_counter() - start)

    rate(real, WARM_UP)
    pairs = [
        (rate(real, arguments.steps), rate(synthetic, arguments.steps))
        for _ in range(arguments.rounds)
    ]
    if world.is_chief:
        lines = [
            summary("real records, images/s", [a for a, _ in pairs]),
            summary("one batch in memory, images/s", [b for _, b in pairs]),
            summary("real / in memory (target 0.98)", [a / b for a, b in pairs]),
        ]
        report(lines, save=arguments.save)


if __name__ == "__main__":
    main()
