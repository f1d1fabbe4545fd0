"""What a run will take, told before it starts: `--plan`. Nothing is written."""

import contextlib
import datetime
import math
import resource
import time
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from data_tools.errors import to_stdout
from hvd_train import dist, optim
from hvd_train.config import OptimConfig, TrainConfig
from hvd_train.data import pipeline
from hvd_train.data.sharding import even_split
from hvd_train.data.source import Batch, MemorySource, Source
from hvd_train.dist import World
from hvd_train.run import Data
from hvd_train.trainer import Trainer

TIMED_STEPS = 10
"""After a first one, in which TensorFlow compiles."""
RATES = 11
"""Lines of the curve of the rate."""
BAR = 40
"""Characters of the highest rate."""
MIB = 2**20


def tell(
    prepare: Callable[[int], Batch],
    trainer: Trainer,
    config: TrainConfig,
    data: Data,
    world: World,
    *,
    total_steps: int,
) -> None:
    """Prints the plan of a run on the chief; a collective.

    The steps that it times change the weights, so the run can't go on from here.

    Args:
        prepare: makes this rank's part of the batch of a step.
        trainer: of the run.
        config: its settings, the batch resolved.
        data: its data set.
        world: the ranks.
        total_steps: of the whole run.
    """
    seconds = seconds_a_step(prepare, trainer, config, world)
    peaks = dist.allgather_json(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    if not world.is_chief:
        return
    batch = config.optim.global_batch
    assert batch is not None
    share = -(-len(even_split(batch, rank=0, size=world.size)) // config.optim.accumulate)
    model = trainer.task_model.model
    lines = [
        f"model: {model.name}, {model.count_params():,} parameters",
        "rate by epoch:",
        *rate_curve(config.optim, batch / len(data.train), total_steps),
        describe_memory(trainer, data, share, max(peaks)),
        f"time, estimated from {TIMED_STEPS} steps: {seconds:.3f} s a step, "
        f"{batch / seconds:.0f} examples/sec; {total_steps:,} steps take "
        f"{datetime.timedelta(seconds=round(seconds * total_steps))}, and evaluations and "
        "checkpoints more",
        "nothing is written; without --plan the run starts",
    ]
    to_stdout("\n".join(lines))


def seconds_a_step(
    prepare: Callable[[int], Batch], trainer: Trainer, config: TrainConfig, world: World
) -> float:
    """Trains a few steps as the run would, and returns the time of one in seconds."""
    steps = range(1 + TIMED_STEPS)
    batches = pipeline.prefetch(
        prepare, steps, pipeline.InputWait(), threads=config.data.input_threads
    )
    # So low that no weight runs away, whatever the schedule.
    rate = 1e-3 * optim.scaled_lr(config.optim)
    start = 0.0
    for step in steps:
        with dist.agreed(world):
            batch = next(batches)
        trainer.step(batch, rate=rate, decay=optim.ema_decay(config.optim.ema_decay, step))
        if step == 0:
            start = time.perf_counter()
    return (time.perf_counter() - start) / TIMED_STEPS


def rate_curve(config: OptimConfig, step_epochs: float, total_steps: int) -> list[str]:
    """Draws the learning rate of steps spread evenly over the run, a line each."""
    steps = sorted({round(i * (total_steps - 1) / (RATES - 1)) for i in range(RATES)})
    rates = [
        optim.learning_rate(
            config, epoch=step * step_epochs, step_epochs=step_epochs,
            total_epochs=total_steps * step_epochs,
        )
        for step in steps
    ]  # fmt: skip
    highest = max(rates)
    return [
        f"{step * step_epochs:8.2f} {rate:11.5g} {'#' * round(BAR * rate / highest)}".rstrip()
        for step, rate in zip(steps, rates, strict=True)
    ]


def describe_memory(trainer: Trainer, data: Data, share: int, peak: int) -> str:
    """Says what a rank needs memory for, by sizes, and what it has really taken.

    Args:
        trainer: of the run.
        data: its data set.
        share: examples that a rank works on at a time.
        peak: what a rank has held at most, in MiB.
    """
    state = trainer.snapshot(0, {})
    kept = sum(
        array.nbytes
        for group in (state.weights, state.optimizer, state.ema)
        for array in group.values()
    )
    model = trainer.task_model.model
    gradients = sum(array_bytes(v.shape, v.dtype) for v in model.trainable_variables)
    parts = {
        "data set": sum(map(held_bytes, (data.train, data.validation, data.test))),
        "weights, optimizer and averages": kept,
        "gradients": gradients,
        f"activations of {share} examples": share * activation_bytes(model),
    }
    told = ", ".join(f"{size / MIB:.0f} MiB {name}" for name, size in parts.items())
    return f"memory a rank, estimated: {told}; these steps took up to {peak} MiB in all"


def held_bytes(source: Source | None) -> int:
    """Returns the bytes of a split held in memory; 0 if it is read from disk or there is none."""
    return source.nbytes if isinstance(source, MemorySource) else 0


def activation_bytes(model: keras.Model) -> int:
    """Returns the size of what the layers of a model put out for one example, in bytes.

    A layer that isn't part of a functional or sequential model tells no shape and isn't counted.
    """
    size = 0
    for layer in model.layers:
        with contextlib.suppress(AttributeError, ValueError):
            for output in keras.tree.flatten(layer.output):
                size += array_bytes(output.shape[1:], layer.compute_dtype)
    return size


def array_bytes(shape: Sequence[int], dtype: str) -> int:
    """Returns the size of an array in bytes."""
    return math.prod(shape) * int(tf.as_dtype(dtype).size)
