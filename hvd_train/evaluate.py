"""Evaluates a run's newest checkpoint, or under --watch each as it comes, on one or many ranks.

hvd_train evaluate runs/captcha
horovodrun -np 2 hvd_train evaluate runs/captcha --watch

The chief alone reads the run folder and writes to it; what it reads it tells the other ranks.
"""

import contextlib
import dataclasses
import time
from collections.abc import Collection, Sequence

import keras
import tensorflow as tf

from data_tools.errors import CONFIG, to_stdout
from data_tools.manifest import Manifest
from hvd_train import checkpoint, dist, liveness, results, run, saved_run, start
from hvd_train.checkpoint import Checkpoint
from hvd_train.dist import World
from hvd_train.evaluator import Evaluation, Evaluator, label_names
from hvd_train.flags import Evaluate
from hvd_train.metric_writer import TENSORBOARD, EventWriter, scalar_values, timestamp
from hvd_train.saved_run import SavedRun
from hvd_train.summaries import confusion_value
from hvd_train.weights import by_path

EVENTS = {results.AVERAGES: "evaluate", results.WEIGHTS: "evaluate-no-ema"}
"""Folders for TensorBoard, which shows both in one chart."""
MOST_ROWS = 20
"""Of the table of classes."""


def main(command: Evaluate, world: World) -> None:
    """Evaluates as the flags say; a collective."""
    own_task, opened = None, None
    with dist.agreed(world):
        own_task = start.import_task(command.task) if command.task else None
    wait_for_run(command, world)
    with dist.agreed(world):
        if world.is_chief:
            opened = saved_run.open_run(command.run, own_task)
    saved = saved_run.share(opened, command.run, own_task, world)
    with dist.watched(world, saved.config.run.stall_seconds):
        run.check_ranks_agree(saved.config, world)
        asked = {k: v for k, v in dataclasses.asdict(command).items() if k not in ("run", "data")}
        dist.check_same(world, CONFIG, "flags", asked, fix="give every rank the same flags")
        keras.utils.set_random_seed(saved.config.run.seed)  # for what own models draw at first
        if saved.config.run.deterministic:
            tf.config.experimental.enable_op_determinism()
        with contextlib.closing(Evaluations(command, saved, world)) as evaluations:
            if command.watch:
                evaluations.follow(command.interval)
            else:
                evaluations.newest()


def wait_for_run(command: Evaluate, world: World) -> None:
    """Under --watch waits until the run has been started, as by a trainer that starts beside us.

    A collective, in which the chief's flags count: that all have the same is checked later.
    """
    is_told = False
    while not dist.broadcast_json(not command.watch or saved_run.is_started(command.run)):
        if world.is_chief and not is_told:
            to_stdout(f"waiting until a run starts in {command.run}")
        is_told = True
        time.sleep(command.interval)


class Evaluations:
    """A run's model and the split to evaluate it on; the methods are collectives."""

    def __init__(self, command: Evaluate, saved: SavedRun, world: World) -> None:
        self._saved, self._world = saved, world
        self._events: dict[str, EventWriter] = {}
        self._kinds = [results.AVERAGES] if command.ema else [results.WEIGHTS]
        if command.both:
            self._kinds = [results.AVERAGES, results.WEIGHTS]
        self._split = command.split or saved.config.data.test_split
        make = saved.task.make_data
        flag = command.data or saved.config.data.data
        folder, loaded, self._digest = run.find_data(saved.task, flag, world, make)
        with dist.agreed(world):
            source = saved_run.open_split(saved, folder, loaded, self._split, world)
        with dist.agreed(world):
            self._model = saved.build()
        shapes = {n: list(v.shape) for n, v in by_path(self._model.model.variables).items()}
        dist.check_same(world, CONFIG, "model", shapes, fix="give every rank the same code")
        self._evaluator = Evaluator(self._model, source, saved.manifest, world)
        other = "" if self._digest == saved.digest else ", another data set than the run's"
        self._tell([f"data: {folder}, {len(source)} examples in {self._split}{other}"])

    def newest(self) -> None:
        """Evaluates the newest checkpoint."""
        found, skipped = None, list[str]()
        with dist.agreed(self._world):
            if self._world.is_chief:
                found = saved_run.newest(self._saved, skipped=skipped)
        self._tell(skipped)
        self._evaluate(found)

    def follow(self, interval: float) -> None:
        """Evaluates each new checkpoint once it is there, up to that of the run's last step.

        Args:
            interval: seconds between two looks.
        """
        evaluated, said, is_told = set[int](), set[str](), False
        liveness.begin(liveness.WAITING)
        while True:
            found, is_over, skipped = None, False, list[str]()
            with dist.agreed(self._world):
                if self._world.is_chief:
                    # Asked first, or the last one might be missed.
                    is_over = has_ended(self._saved, evaluated)
                    found = new_checkpoint(self._saved, evaluated, skipped)
            self._tell([line for line in skipped if line not in said])
            said |= set(skipped)
            is_new, is_over = dist.broadcast_json([found is not None, is_over])
            if is_new:
                evaluated |= {self._evaluate(found)}
            elif is_over:
                return
            else:
                if not is_told:
                    self._tell([f"waiting for the next checkpoint; a look every {interval:g} s"])
                is_told = True
                time.sleep(interval)

    def _evaluate(self, found: Checkpoint | None) -> int:
        """Evaluates a checkpoint, which the chief has; returns its step."""
        step = int(dist.broadcast_json(None if found is None else found.step))
        for weights in self._kinds:
            with dist.agreed(self._world):
                if found is not None:
                    averaged = weights == results.AVERAGES
                    self._saved.load(self._model, found, averaged=averaged)
            dist.broadcast_variables(self._model.model.variables)
            with liveness.work("evaluating"):
                evaluation = self._evaluator.run(lambda: False)
            assert evaluation is not None  # nobody stops it
            with liveness.work("writing an evaluation"), dist.agreed(self._world):
                if self._world.is_chief:
                    self._report(step, weights, evaluation)
        return step

    def _report(self, step: int, weights: str, evaluation: Evaluation) -> None:
        """Says and writes what was found; chief only."""
        saved, split = self._saved, self._split
        now = timestamp()
        lines = [f"{now}: {line}" for line in told(evaluation, saved, split, weights, step)]
        self._tell([*lines, *table(evaluation, saved.manifest)])
        values = scalar_values(
            split, {"loss": evaluation.loss, **results.measures(evaluation, saved.task)}
        )
        if evaluation.confusion is not None:
            names = label_names(saved.manifest)
            values.append(confusion_value(f"{split}/confusion", evaluation.confusion, names))
        if weights not in self._events:
            self._events[weights] = EventWriter(saved.folder / TENSORBOARD / EVENTS[weights])
        self._events[weights].show(step, values)
        record = results.record(
            evaluation, saved.task, saved.manifest, split=split, weights=weights, data=self._digest
        )
        own = (saved.config.data.test_split, results.AVERAGES, saved.digest)
        is_figure = (split, weights, self._digest) == own
        add = results.with_figure if is_figure else results.with_evaluation

        def change(before: results.Values) -> results.Values:
            # Of a later step, which the trainer has come to meanwhile, or which was damaged.
            return before if before.get("step", 0) > step else add(before, step, record)

        kept = results.update(saved.folder, change)["step"]
        if kept != step:
            self._tell([f"{results.FILE} stays that of step {kept}"])

    def close(self) -> None:
        """Closes TensorBoard's files."""
        for events in self._events.values():
            events.close()

    def _tell(self, lines: Sequence[str]) -> None:
        if self._world.is_chief and lines:
            to_stdout("\n".join(lines))


def new_checkpoint(
    saved: SavedRun, evaluated: Collection[int], skipped: list[str]
) -> Checkpoint | None:
    """Reads the newest checkpoint, unless it was evaluated before.

    Args:
        saved: the run.
        evaluated: the steps of those that were.
        skipped: gets a line for each damaged one that was passed over.
    """
    steps = checkpoint.saved_steps(saved.folder)
    if not steps or steps[-1] in evaluated:
        return None
    found = saved_run.newest_if_any(saved, skipped=skipped)
    return None if found is None or found.step in evaluated else found


def has_ended(saved: SavedRun, evaluated: Collection[int]) -> bool:
    """Tells whether no later checkpoint will come, once there is one that was evaluated."""
    if not evaluated:
        return False
    examples = saved.manifest.split(saved.config.data.train_split, saved.folder).examples
    if max(evaluated) >= run.steps_of(saved.config, examples):
        return True
    ended = results.trained_to(saved.folder)  # before the last step, too, under --early-stop
    return ended is not None and checkpoint.saved_steps(saved.folder)[-1:] == [ended]


def told(evaluation: Evaluation, saved: SavedRun, split: str, weights: str, step: int) -> list[str]:
    """The lines of an evaluation, the tutorial's first."""
    of = "" if split == saved.config.data.test_split else f"{split} "
    how = "" if weights == results.AVERAGES else ", without moving averages"
    shares = {saved.task.metric_in_words: evaluation.accuracy}
    if evaluation.correct_at_5 is not None:
        shares["precision @ 5"] = evaluation.correct_at_5 / evaluation.examples
    return [
        *(f"{of}{words} = {share:.3f}{how}" for words, share in shares.items()),
        f"{split}: {evaluation.correct} of {evaluation.examples} right after {step} steps{how}",
    ]


def table(evaluation: Evaluation, manifest: Manifest) -> list[str]:
    """The share of right ones of each class or, of captchas, at each position of the label.

    Where there are many classes, of those with the smallest shares.
    """
    if manifest.classes is None:
        counts = {f"position {n}": own for n, own in enumerate(evaluation.positions, start=1)}
    else:
        rows = evaluation.confusion or []
        counts = {
            name: [sum(row), row[own]]
            for own, (name, row) in enumerate(zip(manifest.classes, rows, strict=False))
        }
    counts = {name: own for name, own in counts.items() if own[0]}
    names = list(counts)
    if len(names) > MOST_ROWS:
        names = sorted(names, key=lambda name: counts[name][1] / counts[name][0])[:MOST_ROWS]
    width = max(map(len, names), default=0)
    lines = [
        f"  {name:{width}}  {right / there:.3f}  {right} of {there}"
        for name, (there, right) in ((name, counts[name]) for name in names)
    ]
    if len(names) < len(counts):
        lines.append(f"  the {len(counts) - len(names)} better ones: see {results.FILE}")
    return lines
