"""Trains and evaluates a task: the same run on any number of ranks. Only the chief writes."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import keras
import numpy as np
import tensorflow as tf

from data_tools.errors import CONFIG, NUMERIC, DataError, os_errors, to_stdout
from hvd_train import checkpoint, dist, liveness, optim, plan, results, resume, run, stop, timing
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import TrainConfig, profiled_steps
from hvd_train.data import pipeline, sharding
from hvd_train.data.source import Batch, MemorySource
from hvd_train.dist import World
from hvd_train.evaluator import Evaluation, Evaluator, label_names
from hvd_train.metric_writer import TENSORBOARD, TRAIN, MetricWriter, open_writer
from hvd_train.profiler import Profiler, check_steps
from hvd_train.resume import Progress
from hvd_train.run import Data, RunFolder
from hvd_train.stop import Best, Requests, Stop
from hvd_train.summaries import Summaries, confusion_value
from hvd_train.task import Task
from hvd_train.timing import Clock, TimeSplit
from hvd_train.trainer import StepResult, Trainer

C = TypeVar("C", bound=TrainConfig)


def train_and_evaluate(
    task: Task, config: C, given: Collection[str], world: World
) -> Evaluation | None:
    """Trains a task to its last step and evaluates the result once; a collective.

    Args:
        task: what is learnt.
        config: the settings of this call.
        given: the settings that this call names itself, which on resume must not contradict the
            run's own.
        world: the ranks.

    Returns:
        The evaluation of the last checkpoint on the test split; None after `--plan`.
    """
    folder = config.run.runs_dir / (config.run.name or task.name)
    config, exists = run.settle(config, given, folder, world)
    with dist.watched(world, config.run.stall_seconds):  # a resumed run has its own limit
        return _train_and_evaluate(task, config, folder, world, exists=exists)


def _train_and_evaluate(
    task: Task, config: C, folder: Path, world: World, *, exists: bool
) -> Evaluation | None:
    run.check_ranks_agree(config, world)
    if config.run.deterministic:
        tf.config.experimental.enable_op_determinism()
    data = run.open_data(task, config, world)
    with dist.agreed(world):
        check_steps(
            profiled_steps(config.run.profile), range(run.steps_of(config, len(data.train)))
        )
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
            if world.is_chief and not config.run.plan:
                held = stack.enter_context(run.sole_writer(folder, resume=config.run.resume))
        progress = resume.start(trainer, data, folder, config, world, exists=exists)
        if world.is_chief:
            lines = [*run.describe(config, data, world), optim.describe_rate(config.optim)]
            to_stdout("\n".join(lines))
        loop = Loop(task, config, trainer, data, world, progress)
        if config.run.plan:
            total = loop.total_steps
            plan.tell(loop.own_batch, trainer, config, data, world, total_steps=total)
            return None
        with dist.agreed(world):
            if held is not None:
                results.forget_after(folder, progress.step)
                run.write_settings(held, config)
                run.write_manifest(held, data)
            log = folder / "logs" / f"rank-{world.rank}.log" if config.run.log_all_ranks else None
            opened = open_writer(
                folder, is_chief=world.is_chief, step=progress.step, total_steps=loop.total_steps,
                log=log,
            )  # fmt: skip
            writer = stack.enter_context(opened)
        return loop.run(held, writer)


class Loop:
    """The steps of a run, with what is shown, evaluated and saved between them."""

    def __init__(
        self, task: Task, config: TrainConfig, trainer: Trainer, data: Data, world: World,
        progress: Progress,
    ) -> None:  # fmt: skip
        assert config.optim.global_batch is not None
        self._task, self._config, self._trainer = task, config, trainer
        self._data, self._world, self._start = data, world, progress.step
        self._evaluation_is_due, self._best = progress.evaluation_is_due, progress.best
        self._global_batch = config.optim.global_batch
        self.total_steps = run.steps_of(config, len(data.train))
        self._test, self._validation = config.data.test_split, config.data.validation_split
        evaluated = {self._validation: data.validation, self._test: data.test}
        self._evaluators = {
            split: Evaluator(trainer.task_model, source, data.manifest, world)
            for split, source in evaluated.items()
            if split is not None and source is not None
        }
        self._result: Evaluation | None = None
        self._requests = Requests(config.run, stop.signals(), is_chief=world.is_chief)
        self._input_wait = pipeline.InputWait()
        self._clock = Clock()
        self._summaries = self._open_summaries()
        self._smoothed = progress.smoothed
        self._time_split = TimeSplit()

    def _open_summaries(self) -> Summaries | None:
        """Where TensorBoard's images and histograms come from, on the chief, if they are wanted."""
        with dist.agreed(self._world):
            if not (self._world.is_chief and self._config.run.summary_every):
                return None
            summaries = Summaries(self._trainer.task_model)
            if not summaries.shows_activations:
                name = self._trainer.task_model.model.name
                print(f"{name} is not functional or sequential: no activations in TensorBoard")
            return summaries

    def run(self, folder: RunFolder | None, writer: MetricWriter) -> Evaluation:
        """Trains from where it starts to the last step, and evaluates the last checkpoint.

        Raises:
            SystemExit: on all ranks, when one was asked to stop before; a checkpoint is there.
        """
        stop.signals().begin()
        self._requests.restart()
        done, started = self._start, time.perf_counter()
        asked: Stop | None = None
        if self._evaluation_is_due:
            asked = self._evaluate(folder, done, writer)
            self._save(folder, done)
        steps = range(done, done if asked or self._is_over(done) else self.total_steps)
        batches = pipeline.prefetch(
            self.own_batch, steps, self._input_wait, threads=self._config.data.input_threads
        )
        profiler = self._profiler(folder)
        liveness.begin(liveness.FIRST_STEP)
        for step in steps:
            with profiler.step(step):
                votes = self._train(step, self._next(batches), writer)
            asked, to_save = stop.decide(votes)
            done = step + 1
            self._evaluation_is_due = self._is_over(done) or self._evaluation_falls_on(done)
            if self._evaluation_is_due and asked is None:
                asked = self._evaluate(folder, done, writer)
            # After the evaluation, which a run that goes on from here won't do again.
            if asked or to_save or self._is_over(done) or self._checkpoint_falls_on(done):
                self._save(folder, done)
            if asked or self._is_over(done):
                break
        profiler.stop()
        if asked:
            self._leave(asked, done, writer)
        return self._finish(folder, done, time.perf_counter() - started, writer)

    def _finish(
        self, folder: RunFolder | None, done: int, seconds: float, writer: MetricWriter
    ) -> Evaluation:
        """Tells and writes what came of the run."""
        if done > self._start:
            writer.say(
                f"{done - self._start} steps in {seconds:.1f} s, of which "
                f"{self._input_wait.seconds:.1f} s waited for input"
            )
        if self._result is None:
            writer.say(f"all {done} steps are done already")
        evaluation = self._result or self._measure(self._test, lambda: False)
        assert evaluation is not None
        memory = dist.allgather_json(timing.memory_mib())
        split = self._seconds(done - self._start)
        writer.say(timing.describe(split))
        resident, peak = (max(of_ranks) for of_ranks in zip(*memory, strict=True))
        writer.say(f"memory: up to {resident} MiB a rank, {peak} MiB at its peak")
        writer.say(
            f"{self._test}: {evaluation.correct} of {evaluation.examples} right after {done} steps"
        )
        measured = {"memory_mib": memory, "seconds": dist.allgather_json(split)}
        self._write_result(folder, done, evaluation, measured)
        return evaluation

    def _leave(self, asked: Stop, done: int, writer: MetricWriter) -> NoReturn:
        """Ends the run on all ranks before its last step."""
        with dist.agreed(self._world):
            writer.say(
                f"stopped by {asked.reason} after {done} of {self.total_steps} steps; "
                "--resume goes on from there"
            )
        raise SystemExit(asked.code)

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

    def _is_over(self, done: int) -> bool:
        return done >= self.total_steps or self._stops_early(self._best)

    def _stops_early(self, best: Best | None) -> bool:
        patience = self._config.run.early_stop
        return patience is not None and best is not None and best.since >= patience

    def _evaluation_falls_on(self, done: int) -> bool:
        every = self._config.run.eval_every
        return every > 0 and self._epoch(done) // every > self._epoch(done - 1) // every

    def _checkpoint_falls_on(self, done: int) -> bool:
        every = self._config.run.checkpoint_every
        return every is not None and done % every == 0

    def _train(self, step: int, batch: Batch, writer: MetricWriter) -> np.ndarray:
        """Takes a step and returns the votes of all ranks."""
        settings = self._config.optim
        rate = optim.learning_rate(
            settings, epoch=self._epoch(step), step_epochs=self._epoch(1),
            total_epochs=self._epoch(self.total_steps),
        )  # fmt: skip
        decay = optim.ema_decay(settings.ema_decay, step)
        votes = self._requests.votes()
        liveness.arrive()
        result = self._trainer.step(batch, rate=rate, decay=decay, votes=votes)
        liveness.begin(liveness.TRAINING)
        if result.is_finite:
            self._smoothed.update(loss=result.loss, cross_entropy=result.loss - result.penalty)
        self._clock.steps += 1
        if result.skipped:
            writer.say(
                f"step {step} skipped: not finite with a loss scale of {result.loss_scale:g}, "
                "which is halved"
            )
        elif not result.is_finite:
            # Loss and gradient are the same sums on every rank, so all of them come here.
            dist.agree(self._world, result.fault(step))
        if self._is_told(step) or self._is_summarised(step):
            with self._time_split.spent("summaries"):
                self._show(step, batch, result, rate, writer)
            self._clock.restart()
        return result.votes

    def _is_told(self, step: int) -> bool:
        return step % self._config.run.log_every == 0

    def _is_summarised(self, step: int) -> bool:
        every = self._config.run.summary_every
        return every > 0 and step % every == 0

    def _accuracy(self, outputs: np.ndarray, batch: Batch) -> float:
        """The share of the global batch whose whole label is right; a collective."""
        correct = self._trainer.task_model.correct(outputs, batch.labels).sum()
        return float(dist.sum_over_ranks(np.array([correct]))[0]) / self._global_batch

    def _show(
        self, step: int, batch: Batch, result: StepResult, rate: float, writer: MetricWriter
    ) -> None:
        sec_per_batch = self._clock.seconds_a_step()
        shown = {}
        if self._task.shown_each_step:
            shown[self._task.metric] = self._accuracy(result.outputs.numpy(), batch)
        values = {
            "loss": result.loss,
            "cross_entropy": result.loss - result.penalty,
            "weight_penalty": result.penalty,
            **self._smoothed.values(),
            **shown,
            "gradient_norm": result.gradient_norm,
            "learning_rate": rate,
            "epoch": self._epoch(step),
            "examples_per_sec": self._global_batch / sec_per_batch,
            "sec_per_batch": sec_per_batch,
            "input_wait_sec": self._input_wait.seconds,
        }
        speed = f"{values['examples_per_sec']:.1f} examples/sec; {sec_per_batch:.3f} sec/batch"
        words = "".join(f", {self._task.metric_in_words} = {value:.3f}" for value in shown.values())
        with liveness.work("writing summaries"), dist.agreed(self._world):
            if self._is_summarised(step) and self._summaries is not None:
                values |= self._summaries.write(step, batch, writer)
            writer.write(step, TRAIN, values)
            if self._is_told(step):
                writer.advance(step, f"loss = {result.loss:.2f}{words} ({speed})")

    def _evaluate(self, folder: RunFolder | None, done: int, writer: MetricWriter) -> Stop | None:
        """Evaluates on the validation split, if there is one, and at the end on the test split.

        Returns:
            Why to stop, if a rank was asked to meanwhile; the evaluation is due then as before.
        """
        found, best = {}, self._best
        for split in self._evaluators:
            is_last = done >= self.total_steps or self._stops_early(best)
            if self._validation not in (None, split) and not is_last:
                break
            evaluation = self._measure(split, lambda: self._requests.stops)
            if evaluation is None:
                asked, _ = stop.decide(dist.sum_over_ranks(np.array(self._requests.votes())))
                return asked
            found[split] = evaluation
            if split == self._validation:
                best = stop.better(best, done, correct=evaluation.correct, loss=evaluation.loss)
        for split, evaluation in found.items():
            self._report(split, evaluation, done, writer)
        self._best, self._evaluation_is_due = best, False
        self._result = found.get(self._test) if self._is_over(done) else None
        if best is not None and best.step == done and self._config.run.keep_best:
            self._save_best(folder, done)
        if done < self.total_steps and best is not None and self._is_over(done):
            writer.say(f"stops early: no evaluation since step {best.step} was better")
        self._clock.restart()
        return None

    def _measure(self, split: str, stops: Callable[[], bool]) -> Evaluation | None:
        with (
            liveness.work("evaluating"), self._time_split.spent("evaluation"),
            self._trainer.ema.swapped_in(),
        ):  # fmt: skip
            return self._evaluators[split].run(stops)

    def _report(self, split: str, evaluation: Evaluation, done: int, writer: MetricWriter) -> None:
        with liveness.work("writing an evaluation"), dist.agreed(self._world):
            shares = results.measures(evaluation, self._task)
            writer.write(done, split, {"loss": evaluation.loss, **shares})
            if evaluation.confusion is not None and self._world.is_chief:
                names = label_names(self._data.manifest)
                picture = confusion_value(f"{split}/confusion", evaluation.confusion, names)
                writer.show(done, [picture])
            of = "" if split == self._test else f"{split} "
            writer.say(f"{of}{self._task.metric_in_words} = {evaluation.accuracy:.3f}")

    def _profiler(self, folder: RunFolder | None) -> Profiler:
        """What traces the steps that --profile names, into the run's TensorBoard folder."""
        profiled = profiled_steps(self._config.run.profile)
        with dist.agreed(self._world):
            check_steps(profiled, range(self._start, self.total_steps))
        return Profiler(folder.path / TENSORBOARD if folder else None, profiled, self._world)

    def _seconds(self, num_steps: int) -> dict[str, float]:
        """Where this rank's time went, and an estimate of the allreduce's; a collective."""
        seconds = self._time_split.whole(self._input_wait.seconds)
        variables = self._trainer.task_model.model.trainable_variables
        with liveness.work("timing the allreduce"):
            each = timing.allreduce_seconds(
                [variable.value for variable in variables],
                fp16=self._config.optim.compression == "fp16",
            )
        return {**seconds, "allreduce_estimate": num_steps * each}

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """What holds around each save: its own time and limit, and agreement; a collective."""
        with (
            liveness.work("saving a checkpoint"), self._time_split.spent("checkpoints"),
            dist.agreed(self._world),
        ):  # fmt: skip
            yield

    def _save(self, folder: RunFolder | None, done: int) -> None:
        with self._saving():
            if folder is not None:
                snapshot = self._snapshot(folder, done)
                checkpoint.save(folder.path, snapshot, keep=self._config.run.keep_checkpoints)
        self._requests.restart()
        self._clock.restart()

    def _save_best(self, folder: RunFolder | None, done: int) -> None:
        with self._saving():
            if folder is not None:
                snapshot = self._snapshot(folder, done)
                best = folder.path / run.BEST
                with os_errors(best):
                    best.mkdir(exist_ok=True)
                checkpoint.save(best, snapshot, keep=1)

    def _snapshot(self, folder: RunFolder, done: int) -> Checkpoint:
        folder.check_there()
        progress = Progress(done, self._evaluation_is_due, self._best, self._smoothed)
        snapshot = self._trainer.snapshot(done, resume.to_state(progress, self._data))
        check_finite(snapshot)
        return snapshot

    def _write_result(
        self,
        folder: RunFolder | None,
        step: int,
        evaluation: Evaluation,
        measured: dict[str, list[Any]],
    ) -> None:
        record = results.record(
            evaluation, self._task, self._data.manifest, split=self._test,
            weights=results.AVERAGES, data=self._data.digest,
        )  # fmt: skip
        values = {
            **record,
            "ranks": self._world.size,
            "global_batch": self._global_batch,
            "versions": run.versions(),
            **measured,
        }
        if self._best is not None:
            values["best"] = {"split": self._validation, **dataclasses.asdict(self._best)}
        with liveness.work("writing the result"), dist.agreed(self._world):
            if folder is not None:
                folder.check_there()
                results.update(folder.path, lambda old: results.with_figure(old, step, values))


def check_finite(snapshot: Checkpoint) -> None:
    """Raises NUMERIC rather than let broken weights take the place of a good checkpoint."""
    for name, array in {**snapshot.optimizer, **snapshot.weights}.items():
        if not np.all(np.isfinite(array)):
            raise DataError(
                NUMERIC, f"step {snapshot.step - 1}", f"{name} is not finite after the update",
                fix="lower --base-lr; the last checkpoint is kept",
            )  # fmt: skip
