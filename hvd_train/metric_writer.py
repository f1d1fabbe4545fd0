"""Writes what a run measures: lines on the terminal, metrics.jsonl and TensorBoard. Chief only."""

import datetime
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from data_tools import launch_env, tfrecord
from data_tools.durable import write_atomically
from data_tools.errors import os_errors

METRICS_FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TRAIN = "train"
"""What stands for the split in the lines of training steps."""


class MetricWriter:
    """Writes each number once, by the same name in metrics.jsonl and in TensorBoard."""

    def __init__(self, run: Path, step: int, progress: Progress | None) -> None:
        self._path = run / METRICS_FILE
        self._progress = progress
        with os_errors(self._path):
            self._file = self._path.open("a", encoding="utf-8")
        self._events = run / TENSORBOARD / event_file_name()
        with os_errors(self._events):
            self._events.parent.mkdir(exist_ok=True)
            self._tensorboard = self._events.open("ab")
        self._add(Event(file_version="brain.Event:2"))
        # At this mark TensorBoard drops what it has of `step` and later ones.
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        """Writes numbers of one step.

        Args:
            step: the number of a training step, or of the updates done before an evaluation.
            prefix: "train" for a training step, else the split that was evaluated.
            values: numbers by name.
        """
        line = {"step": step, "split": prefix, "time": timestamp(), **values}
        with os_errors(self._path):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        self.show(step, prefix, values)

    def show(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        """Writes numbers to TensorBoard alone."""
        for name, value in values.items():
            self._add(Event(step=step, summary=scalar_pb(f"{prefix}/{name}", value)))

    def _add(self, event: Event) -> None:
        """Writes an event, which TensorBoard reads as the record of a TFRecord file."""
        event.wall_time = time.time()
        with os_errors(self._events):
            self._tensorboard.write(tfrecord.frame(event.SerializeToString()))
            self._tensorboard.flush()

    def say(self, text: str) -> None:
        """Shows a line with the time before it, above the progress bar if there is one."""
        line = f"{timestamp()}: {text}"
        if self._progress is None:
            print(line, flush=True)
        else:
            self._progress.console.print(line, markup=False, highlight=False)

    def advance(self, step: int, text: str) -> None:
        """Shows the state of training: a line, or the progress bar's text on a terminal."""
        if self._progress is None:
            self.say(f"step {step}, {text}")
        else:
            self._progress.update(self._progress.task_ids[0], completed=step, text=text)

    def close(self) -> None:
        """Flushes and closes the files."""
        self._tensorboard.close()
        self._file.close()


class SilentWriter(MetricWriter):
    """What the ranks other than the chief hold: it writes nothing."""

    def __init__(self) -> None:
        pass

    def write(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        """Writes nothing."""

    def say(self, text: str) -> None:
        """Says nothing."""

    def advance(self, step: int, text: str) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Has nothing to close."""


@contextmanager
def open_writer(
    run: Path, *, is_chief: bool, step: int, total_steps: int
) -> Iterator[MetricWriter]:
    """Opens the run's writer on the chief, a silent one elsewhere.

    Args:
        run: the run folder.
        is_chief: whether this rank writes.
        step: updates already done; what metrics.jsonl says of later ones is taken out, since they
            are done again.
        total_steps: where the progress bar ends.
    """
    if not is_chief:
        yield SilentWriter()
        return
    kept = forget_lines_after(run / METRICS_FILE, step)
    progress = _progress_bar(step, total_steps) if launch_env.shows_bars() else None
    writer = MetricWriter(run, step, progress)
    for at, prefix, values in map(_parts, kept):
        if at == step:  # an evaluation, which TensorBoard drops with what is done again
            writer.show(at, prefix, values)
    try:
        if progress is None:
            yield writer
        else:
            with progress:
                yield writer
    finally:
        writer.close()


def event_file_name() -> str:
    """A name that TensorBoard takes for a file of events; it reads them in the order of names."""
    return f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.v2"


def timestamp() -> str:
    """The local time as `2026-11-30 20:45:45.927302`, like the tutorial's lines."""
    return datetime.datetime.now().isoformat(sep=" ", timespec="microseconds")


def forget_lines_after(path: Path, step: int) -> list[str]:
    """Takes out of a metrics.jsonl what comes after `step` updates, and a line cut by a crash.

    Returns:
        The lines that stay.
    """
    if not path.exists():
        return []
    with os_errors(path):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if _is_before(line, step)]
        write_atomically(path, "".join(line + "\n" for line in kept).encode())
    return kept


def _parts(line: str) -> tuple[int, str, dict[str, float]]:
    """Step, split and numbers of a line."""
    fields = json.loads(line)
    step, split = fields.pop("step"), fields.pop("split")
    return step, split, {k: v for k, v in fields.items() if isinstance(v, int | float)}


def _is_before(line: str, step: int) -> bool:
    """Tells whether a line was measured within the first `step` updates.

    A training line bears the number of the update that it precedes, an evaluation the number of
    updates done.
    """
    try:
        fields: dict[str, Any] = json.loads(line)
        last = step - 1 if fields["split"] == TRAIN else step
        return bool(fields["step"] <= last)
    except (ValueError, TypeError, KeyError):
        return False


def _progress_bar(step: int, total_steps: int) -> Progress:
    progress = Progress(
        TextColumn("step {task.completed:.0f} of {task.total:.0f}"), BarColumn(),
        TextColumn("{task.fields[text]}"), TimeRemainingColumn(),
    )  # fmt: skip
    progress.add_task("train", total=total_steps, completed=step, text="")
    return progress
