"""Compares training on real records with training on one batch in memory, in our own trainer.

    mpirun -np 2 python benchmarks/real_data.py --data datasets/cifar10

Blocks of steps of both kinds alternate within one run, so that each pair sees the same machine.
Rank 0 prints both rates and the ratio of each pair.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import repeat

from harness import add_save, report, summary
from own_loop import open_loop

from hvd_train.data import pipeline
from hvd_train.data.source import Batch

WARM_UP = 20


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of each block")
    add_save(parser)
    arguments = parser.parse_args()
    world, settings, trainer, loop = open_loop(arguments.data, prog="real_data.py")
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
