"""Measures what TensorBoard's images and histograms cost, on and off in turns within one run.

    mpirun -np 2 python benchmarks/summaries.py --data datasets/cifar10

Blocks of as many steps as lie between two summaries alternate with blocks without; the summary is
taken as in training, by rank 0 while the others wait. Rank 0 prints both rates, their ratio in each
pair, and the time of a summary itself beside that of its block, which noise touches less.
"""

import argparse
import time

from harness import add_save, report, scratch, summary
from own_loop import open_loop

from hvd_train import dist
from hvd_train.data import pipeline
from hvd_train.metric_writer import MetricWriter, open_writer
from hvd_train.summaries import Summaries

WARM_UP = 10


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    add_save(parser)
    arguments = parser.parse_args()
    world, settings, trainer, loop = open_loop(arguments.data, prog="summaries.py")
    every, looked = settings.run.summary_every, Summaries(trainer.task_model)
    steps = range(WARM_UP + 2 * every * arguments.rounds)
    batches = pipeline.prefetch(loop.own_batch, steps, pipeline.InputWait())
    own_seconds: list[float] = []

    def seconds_of_block(count: int, writer: MetricWriter | None) -> float:
        start = time.perf_counter()
        for step in range(count):
            batch = next(batches)
            trainer.step(batch, rate=0.01, decay=0.9)
            if writer is not None and step == count - 1:
                begun = time.perf_counter()
                with dist.agreed(world):
                    if world.is_chief:
                        looked.write(0, batch, writer)
                own_seconds.append(time.perf_counter() - begun)
        return time.perf_counter() - start

    with (
        scratch() as folder,
        open_writer(folder, is_chief=world.is_chief, step=0, total_steps=len(steps)) as writer,
    ):
        seconds_of_block(WARM_UP, writer)  # traces
        first = own_seconds.pop()
        pairs = [
            (seconds_of_block(every, writer), seconds_of_block(every, None))
            for _ in range(arguments.rounds)
        ]
    if world.is_chief:
        shares = [100 * own / on for own, (on, _) in zip(own_seconds, pairs, strict=True)]
        lines = [
            f"A summary every {every} steps, {world.size} ranks; the first, which traces, took "
            f"{first:.2f} s.\n",
            summary("seconds of a block with it", [on for on, _ in pairs]),
            summary("seconds of a block without", [off for _, off in pairs]),
            summary("with / without (target 1.01)", [on / off for on, off in pairs]),
            summary("the summary alone, ms", [1000 * own for own in own_seconds]),
            summary("the summary alone, % of its block (target 1)", shares),
        ]
        report(lines, save=arguments.save)


if __name__ == "__main__":
    main()
