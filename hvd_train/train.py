"""Trains and evaluates a task: the same run on any number of ranks. Only the chief writes."""

import contextlib
import resource
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from data_tools.errors import CONFIG, NUMERIC, DataError
from hvd_train import checkpoint, dist, liveness, optim, run
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import TrainConfig
from hvd_train.data import pipeline, sharding
from hvd_train.data.source import Batch, MemorySource
from hvd_train.dist import World
from hvd_train.evaluate import Evaluation, Evaluator
from hvd_train.metric_writer import TRAIN, MetricWriter, open_writer, timestamp
from hvd_train.run import Data, RunFolder
from hvd_train.task import Task
from hvd_train.trainer import Trainer

C = TypeVar("C", bound=TrainConfig)


def train_and_evaluate(task: Task, config: C, given: Collection[str], world: World) -> Evaluation:
    """Trains a task to its last step and evaluates the result once; a collective.

    Args:
        task: what is learnt.
        config: the settings of this call.
        given: the settings that this call names itself, which on resume must not contradict the
            run's own.
        world: the ranks.

    Returns:
        The evaluation of the last checkpoint on the test split.
    """
    folder = config.run.runs_dir / (config.run.name or task.name)
    config, exists = run.settle(config, given, folder, world)
    run.check_ranks_agree(config, world)
    if config.run.deterministic:
        tf.config.experimental.enable_op_determinism()
    data = run.open_data(task, config, world)
    # Each rank starts from other weights; what makes them equal is the broadcast below.
    keras.utils.set_random_seed(config.run.seed + world.rank)
    with dist.agreed(world):
        trainer = Trainer(task.build(config, data.manifest), config)
    dist.check_same(
        world, CONFIG, "model", trainer.shapes(), fix="give every rank the same code and data set"
    )
    with contextlib.ExitStack() as stack:
        held: RunFolder | None = None  # by the chief alone
        with dist.agreed(world):
            if world.is_chief:
                held = stack.enter_context(run.sole_writer(folder, resume=config.run.resume))
        start = restore(trainer, data, folder, world) if exists else 0
        if config.run.resume and not exists and world.is_chief:
            print(f"{folder} has nothing to go on with: starts fresh", flush=True)
        trainer.broadcast()
        if world.is_chief:
            lines = [*run.describe(config, data, world), optim.describe_rate(config.optim)]
            print("\n".join(lines), flush=True)
        loop = Loop(task, config, trainer, data, world)
        with dist.agreed(world):
            if held is not None:
                run.write_settings(held, config)
            writer = stack.enter_context(
                open_writer(
                    folder, is_chief=world.is_chief, step=start, total_steps=loop.total_steps
                )
            )
        return loop.run(held, start, writer)


def restore(trainer: Trainer, data: Data, folder: Path, world: World) -> int:
    """Loads the newest whole checkpoint on the chief and returns its step on every rank."""
    step = 0
    with dist.agreed(world):
        if world.is_chief:
            skipped: list[str] = []
            saved = checkpoint.restore_newest(folder, skipped=skipped)
            if saved is not None:
                run.check_data_state(saved.state, data, folder)
                trainer.load(saved, folder)
                step = saved.step
            from_where = f"goes on from step {step}" if step else "has no checkpoint: starts fresh"
            print("\n".join([*skipped, f"{folder} {from_where}"]), flush=True)
    return int(dist.broadcast_json(step))


class Loop:
    """The steps of a run, with what is shown, evaluated and saved between them."""

    def __init__(
        self, task: Task, config: TrainConfig, trainer: Trainer, data: Data, world: World
    ) -> None:
        assert config.optim.global_batch is not None
        self._task, self._config, self._trainer = task, config, trainer
        self._data, self._world = data, world
        self._global_batch = config.optim.global_batch
        self.total_steps = run.steps_of(config, len(data.train))
        self._evaluator = Evaluator(trainer.task_model, data.test, world)
        self._input_wait = pipeline.InputWait()
        self._clock = Clock()

    def run(self, folder: RunFolder | None, start: int, writer: MetricWriter) -> Evaluation:
        """Trains from step `start` to the last, and evaluates the last checkpoint."""
        steps = range(start, self.total_steps)
        batches = pipeline.prefetch(
            self.own_batch, steps, self._input_wait, threads=self._config.data.input_threads
        )
        evaluation, started = None, time.perf_counter()
        liveness.begin(liveness.FIRST_STEP)
        for step in steps:
            self._train(step, self._next(batches), writer)
            done = step + 1
            if self._is_last(done) or self._evaluation_is_due(done):
                evaluation = self._evaluate()
                self._report(evaluation, done, writer)
                self._clock.restart()
            # After the evaluation, which a run that goes on from here won't do again.
            if self._is_last(done) or done % self._config.run.checkpoint_every == 0:
                self._save(folder, done)
                self._clock.restart()
        if evaluation is None:
            writer.say(f"all {self.total_steps} steps are done already")
            evaluation = self._evaluate()
        else:
            writer.say(
                f"{len(steps)} steps in {time.perf_counter() - started:.1f} s, of which "
                f"{self._input_wait.seconds:.1f} s waited for input"
            )
        memory = dist.allgather_json(memory_mib())
        resident, peak = (max(of_ranks) for of_ranks in zip(*memory, strict=True))
        writer.say(f"memory: up to {resident} MiB a rank, {peak} MiB at its peak")
        writer.say(
            f"{self._config.data.test_split}: {evaluation.correct} of {evaluation.examples} right "
            f"after {max(start, self.total_steps)} steps"
        )
        self._write_result(folder, max(start, self.total_steps), evaluation, memory)
        return evaluation

    def _next(self, batches: Iterator[Batch]) -> Batch:
        """Takes the next batch; where reading can fail, all ranks agree that none has."""
        if isinstance(self._data.train, MemorySource):
            return next(batches)
        with dist.agreed(self._world):
            return next(batches)

    def own_batch(self, step: int) -> Batch:
        """Reads this rank's share of the global batch, as the model takes it."""
        data, seed = self._data.train, self._config.run.seed
        ids, epochs = sharding.global_batch(
            step, size=self._global_batch, num_examples=len(data),
            seed=seed, shuffle=self._config.data.shuffle,
        )  # fmt: skip
        own = sharding.own_places(
            len(ids), accumulate=self._config.optim.accumulate,
            rank=self._world.rank, size=self._world.size,
        )  # fmt: skip
        return self._trainer.task_model.train_batch(data, ids[own], epochs[own])

    def _epoch(self, step: int) -> float:
        return step * self._global_batch / len(self._data.train)

    def _is_last(self, done: int) -> bool:
        return done == self.total_steps

    def _evaluation_is_due(self, done: int) -> bool:
        every = self._config.run.eval_every
        return every > 0 and self._epoch(done) // every > self._epoch(done - 1) // every

    def _train(self, step: int, batch: Batch, writer: MetricWriter) -> None:
        settings = self._config.optim
        rate = optim.learning_rate(
            settings, epoch=self._epoch(step), step_epochs=self._epoch(1),
            total_epochs=self._epoch(self.total_steps),
        )  # fmt: skip
        decay = optim.ema_decay(settings.ema_decay, step)
        liveness.arrive()
        result = self._trainer.step(batch, rate=rate, decay=decay)
        liveness.begin(liveness.TRAINING)
        loss = result.loss
        self._clock.steps += 1
        if result.skipped:
            writer.say(
                f"step {step} skipped: not finite with a loss scale of {result.loss_scale:g}, "
                "which is halved"
            )
        elif not result.is_finite:
            # Loss and gradient are the same sums on every rank, so all of them come here.
            dist.agree(self._world, result.fault(step))
        if step % self._config.run.log_every == 0:
            accuracy = self._accuracy(result.outputs, batch) if self._task.shown_each_step else None
            self._show(step, loss, rate, accuracy, writer)

    def _accuracy(self, outputs: np.ndarray, batch: Batch) -> float:
        """The share of the global batch whose whole label is right; a collective."""
        correct = self._trainer.task_model.correct(outputs, batch.labels).sum()
        return float(dist.sum_over_ranks(np.array([correct]))[0]) / self._global_batch

    def _show(
        self, step: int, loss: float, rate: float, accuracy: float | None, writer: MetricWriter
    ) -> None:
        sec_per_batch = self._clock.seconds_a_step()
        shown = {} if accuracy is None else {self._task.metric: accuracy}
        values = {
            "loss": loss,
            **shown,
            "learning_rate": rate,
            "epoch": self._epoch(step),
            "examples_per_sec": self._global_batch / sec_per_batch,
            "sec_per_batch": sec_per_batch,
            "input_wait_sec": self._input_wait.seconds,
        }
        speed = f"{values['examples_per_sec']:.1f} examples/sec; {sec_per_batch:.3f} sec/batch"
        words = "".join(f", {self._task.metric_in_words} = {value:.3f}" for value in shown.values())
        with dist.agreed(self._world):
            writer.write(step, TRAIN, values)
            writer.advance(step, f"loss = {loss:.2f}{words} ({speed})")
        self._clock.restart()

    def _evaluate(self) -> Evaluation:
        with liveness.work("evaluating"), self._trainer.ema.swapped_in():
            return self._evaluator.run()

    def _report(self, evaluation: Evaluation, done: int, writer: MetricWriter) -> None:
        split = self._config.data.test_split
        with dist.agreed(self._world):
            writer.write(
                done, split, {"loss": evaluation.loss, self._task.metric: evaluation.accuracy}
            )
            writer.say(f"{self._task.metric_in_words} = {evaluation.accuracy:.3f}")

    def _save(self, folder: RunFolder | None, done: int) -> None:
        with liveness.work("saving a checkpoint"), dist.agreed(self._world):
            if folder is not None:
                folder.check_there()
                snapshot = self._trainer.snapshot(done, run.data_state(self._data))
                check_finite(snapshot)
                checkpoint.save(folder.path, snapshot, keep=self._config.run.keep_checkpoints)

    def _write_result(
        self, folder: RunFolder | None, step: int, evaluation: Evaluation, memory: list[Any]
    ) -> None:
        values = {
            "step": step,
            "split": self._config.data.test_split,
            "examples": evaluation.examples,
            "correct": evaluation.correct,
            self._task.metric: evaluation.accuracy,
            "loss": evaluation.loss,
            "weights": "moving averages",
            "data": self._data.digest,
            "ranks": self._world.size,
            "global_batch": self._global_batch,
            "memory_mib": memory,
            "time": timestamp(),
        }
        with dist.agreed(self._world):
            if folder is not None:
                run.write_result(folder, values)


def check_finite(snapshot: Checkpoint) -> None:
    """Raises NUMERIC rather than let broken weights take the place of a good checkpoint."""
    for name, array in {**snapshot.optimizer, **snapshot.weights}.items():
        if not np.all(np.isfinite(array)):
            raise DataError(
                NUMERIC, f"step {snapshot.step - 1}", f"{name} is not finite after the update",
                fix="lower --base-lr; the last checkpoint is kept",
            )  # fmt: skip


def memory_mib() -> tuple[int, int]:
    """The memory that this process holds, and the most that it has held, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak, peak
    return pages * resource.getpagesize() // 2**20, peak


class Clock:
    """Time of the steps since it was last restarted."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Starts an interval of no steps."""
        self._start = time.perf_counter()
        self.steps = 0

    def seconds_a_step(self) -> float:
        """The mean time of a step of the interval, in seconds."""
        return (time.perf_counter() - self._start) / max(self.steps, 1)
