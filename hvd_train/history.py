"""What a run has measured so far: the lines of its metrics.jsonl, and its result."""

import datetime
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_tools.errors import INPUT, DataError, os_errors
from hvd_train import results, run
from hvd_train.metric_writer import METRICS_FILE, TRAIN
from hvd_train.saved_run import SavedRun

Line = dict[str, Any]
ELAPSED = "elapsed_sec"
"""What `read_lines` adds to a line: seconds of training since the start of the first step."""


def read_lines(folder: Path) -> list[Line]:
    """Reads the whole lines of a run's metrics.jsonl, which may still be written.

    A line that isn't as the run writes them is left out.

    Raises:
        DataError: INPUT when there is none.
    """
    path = folder / METRICS_FILE
    with os_errors(path):
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [line for line in map(_parse, text.splitlines()) if line is not None]
    if not lines:
        raise DataError(
            INPUT, folder, "the run has measured nothing yet", fix="wait for its first step"
        )
    return [
        {**line, ELAPSED: seconds} for line, seconds in zip(lines, _elapsed(lines), strict=True)
    ]


def of_split(lines: Sequence[Line], split: str, *names: str) -> list[Line]:
    """The lines of a split, or of the training steps, that have all of these numbers."""
    return [line for line in lines if line["split"] == split and line.keys() >= {*names}]


def evaluated_splits(lines: Sequence[Line]) -> list[str]:
    """The splits that were evaluated, in the order in which they first were."""
    return list(dict.fromkeys(line["split"] for line in lines if line["split"] != TRAIN))


def steps_done(lines: Sequence[Line]) -> int:
    """Updates done; a training line bears the number of the one that it precedes."""
    done: int = max(line["step"] + (line["split"] == TRAIN) for line in lines)
    return done


def total_steps(saved: SavedRun) -> int:
    """Updates of the whole run."""
    return run.steps_of(saved.config, _train_examples(saved))


def epoch(saved: SavedRun, step: int) -> float:
    """Passes over the training split after so many updates."""
    batch = saved.config.optim.global_batch
    assert batch is not None
    return step * batch / _train_examples(saved)


def _train_examples(saved: SavedRun) -> int:
    return saved.manifest.split(saved.config.data.train_split, saved.folder).examples


def examples_per_sec(lines: Sequence[Line]) -> float | None:
    """The median rate of the training lines; the first counts only if it is all there is."""
    rates = [line["examples_per_sec"] for line in of_split(lines, TRAIN, "examples_per_sec")]
    return statistics.median(rates[1:] or rates) if rates else None


def duration(seconds: float) -> str:
    """As "89 s", "12 min 5 s" or "3 h 20 min"; without a place to break the line."""
    whole = round(seconds)
    if whole < 120:
        text = f"{whole} s"
    elif whole < 7200:
        text = f"{whole // 60} min {whole % 60} s"
    else:
        text = f"{whole // 3600} h {whole % 3600 // 60} min"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def result_of(folder: Path, lines: Sequence[Line]) -> Line:
    """What eval.json says; nothing where there is none, or it is of before the run went on."""
    found = results.read(folder)
    return found if found and found["step"] >= steps_done(lines) else {}


def _parse(text: str) -> Line | None:
    try:
        line: Line = json.loads(text)
        step, split, time = line.pop("step"), line.pop("split"), line.pop("time")
        numbers = {name: float(value) for name, value in line.items()}
        has_zone = datetime.datetime.fromisoformat(time).tzinfo is not None
        if has_zone or not (isinstance(step, int) and isinstance(split, str)):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if not all(map(math.isfinite, numbers.values())):
        return None
    return {"step": step, "split": split, "time": time, **numbers}


def _elapsed(lines: Sequence[Line]) -> list[float]:
    """Seconds of training up to each line, without the pauses before a run went on.

    The wait for input is summed up from the start of a process: where it falls, a new one went on,
    and what lay between counts as long as that one's first step.
    """
    times = [datetime.datetime.fromisoformat(line["time"]) for line in lines]
    gaps = [0.0] * len(lines)
    for place in range(1, len(lines)):
        gaps[place] = max((times[place] - times[place - 1]).total_seconds(), 0.0)
    last, waited = -1, math.inf  # of the training lines
    for place, line in enumerate(lines):
        if line["split"] == TRAIN:
            wait = line.get("input_wait_sec", 0.0)
            if wait < waited:
                gaps[last + 1 : place + 1] = [0.0] * (place - last)
                gaps[place] = line.get("sec_per_batch", 0.0)
            last, waited = place, wait
    return list(itertools.accumulate(gaps))
