"""eval.json, the result of a run: what was found of one checkpoint, by the trainer and by others.

    {"step": 2550,
     "split": "test", "examples": 629, "correct": 594, "accuracy": 0.944, ..., "loss": 0.31,
     "weights": "moving averages", "data": "448d71...", "time": "2026-11-30 20:45:45.927302",
     "ranks": 2, "global_batch": 64, "memory_mib": ..., "seconds": ..., "best": ...,
     "evaluations": [{"split": "train", "examples": 5371, ..., "time": ...}]}

The run's own figure, of its test split by the moving averages, stands at the top, whoever found it
last; what the trainer alone knows (`ranks` to `best`) stays beside it. Evaluations of other splits,
of the weights themselves or of another data set are records of the same form in `evaluations`.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data_tools.durable import lock, write_atomically
from data_tools.errors import os_errors, to_stderr
from data_tools.manifest import Manifest
from hvd_train.evaluator import Evaluation
from hvd_train.metric_writer import timestamp
from hvd_train.task import Task

FILE = "eval.json"
AVERAGES, WEIGHTS = "moving averages", "weights"
"""Whose outputs were evaluated."""
OF_TRAINER = "seconds"
"""What only a trainer writes, once it has ended."""
PARTS_OF_TIME = frozenset({
    "total", "compute", "allreduce_estimate", "input_wait", "evaluation", "checkpoints", "summaries"
})  # fmt: skip
"""What it tells of each rank."""

Values = dict[str, Any]


def record(
    evaluation: Evaluation, task: Task, manifest: Manifest, *, split: str, weights: str, data: str
) -> Values:
    """What eval.json says of one evaluation.

    Args:
        evaluation: the counts.
        task: which names the metric.
        manifest: of the run's data set, for the names of classes.
        split: that was evaluated.
        weights: AVERAGES or WEIGHTS.
        data: digest of the data set.
    """
    return {
        "split": split,
        "examples": evaluation.examples,
        "correct": evaluation.correct,
        **measures(evaluation, task),
        **evaluation.details(manifest),
        # JSON has no other numbers.
        "loss": evaluation.loss if math.isfinite(evaluation.loss) else None,
        "weights": weights,
        "data": data,
        "time": timestamp(),
    }


def measures(evaluation: Evaluation, task: Task) -> dict[str, float]:
    """The shares of right examples, by the name that they have in files."""
    shares = {task.metric: evaluation.accuracy}
    if evaluation.correct_at_5 is not None:
        shares["precision_at_5"] = evaluation.correct_at_5 / evaluation.examples
    return shares


def with_figure(before: Mapping[str, Any], step: int, figure: Mapping[str, Any]) -> Values:
    """The result with the run's own figure; of another step than before, only its own is left."""
    return {**_of_step(before, step), **figure}


def with_evaluation(before: Mapping[str, Any], step: int, other: Mapping[str, Any]) -> Values:
    """The result with another evaluation, in place of one of the same split, weights and data."""
    kept = _of_step(before, step)
    rest = [one for one in kept.get("evaluations", []) if _identity(one) != _identity(other)]
    return {**kept, "evaluations": [*rest, dict(other)]}


def _of_step(before: Mapping[str, Any], step: int) -> Values:
    return dict(before) if before.get("step") == step else {"step": step}


def _identity(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(one.get(name) for name in ("split", "weights", "data"))


def read(run: Path) -> Values:
    """What eval.json says; nothing where there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads((run / FILE).read_bytes())
        return found if _is_result(found) else {}
    return {}


def _is_result(found: Any) -> bool:
    """Whether it has what its readers take for granted."""
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return False
    figure = [("examples", int), ("correct", int), ("split", str), ("weights", str)]
    if "examples" in found and not all(isinstance(found.get(k), of) for k, of in figure):
        return False
    lists = [found.get(name, []) for name in (OF_TRAINER, "evaluations")]
    if not all(isinstance(one, dict) for some in lists for one in _listed(some)):
        return False
    return all(rank.keys() >= PARTS_OF_TIME for rank in lists[0])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def update(run: Path, change: Callable[[Values], Values]) -> Values:
    """Replaces eval.json by what `change` makes of it, one process after the other.

    Returns:
        What eval.json says now.

    Raises:
        DataError: SPACE or INPUT when the disk refuses; the file stays as it is.
    """
    with os_errors(run / FILE), _alone(run):
        before = read(run)
        if not before and (run / FILE).exists():
            to_stderr(f"warning: {run / FILE}: damaged; what it said is lost")
        after = change(before)
        write_atomically(run / FILE, (json.dumps(after, indent=1) + "\n").encode())
        return after


@contextlib.contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Keeps trainer and evaluations from writing at a time, where the file system has locks."""
    descriptor = os.open(run, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def forget_after(run: Path, step: int) -> None:
    """Takes away what was found of a later step than a run goes on from; its trainer only."""
    if read(run).get("step", 0) > step:
        with os_errors(run / FILE):
            (run / FILE).unlink(missing_ok=True)


def trained_to(run: Path) -> int | None:
    """The step at which the run's trainer has ended; None before."""
    found = read(run)
    return found["step"] if OF_TRAINER in found else None
