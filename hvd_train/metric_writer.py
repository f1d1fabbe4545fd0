"""Writes what a run measures: lines on the terminal, metrics.jsonl and TensorBoard. Chief only."""

import contextlib
import datetime
import json
import math
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from data_tools import launch_env, tfrecord
from data_tools.durable import write_atomically
from data_tools.errors import DataError, os_errors, to_stderr, to_stdout

METRICS_FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TRAIN = "train"
"""What stands for the split in the lines of training steps."""


class RankLog:
    """What one rank says and measures, in a file of its own; without a path, nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = None
        if path is not None:
            with os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a", encoding="utf-8")
            self.say(f"host {socket.gethostname()}, process {os.getpid()}")

    def say(self, text: str) -> None:
        """Writes a line with the time before it; a log that can't be written ends."""
        if self._file is None:
            return
        try:
            self._file.write(f"{timestamp()}: {text}\n")
            self._file.flush()
        except OSError as error:  # this rank's alone, so that no other waits for it in vain
            to_stderr(f"warning: {self._path}: {error.strerror}; this log goes no further")
            self.close()

    def write(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        """Writes numbers of one step, as this rank has them."""
        numbers = ", ".join(f"{name} = {value:.6g}" for name, value in values.items())
        self.say(f"step {step}, {prefix}: {numbers}")

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with suppress(OSError):  # what it still holds
                self._file.close()
            self._file = None


class EventWriter:
    """Writes a file of events, which TensorBoard shows."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / event_file_name()
        with os_errors(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        self.add(Event(file_version="brain.Event:2"))

    def show(self, step: int, values: Sequence[Summary.Value]) -> None:
        """Writes numbers, images and histograms of one step."""
        self.add(Event(step=step, summary=Summary(value=values)))

    def add(self, event: Event) -> None:
        """Writes an event, which TensorBoard reads as the record of a TFRecord file."""
        event.wall_time = time.time()
        with os_errors(self._path):
            self._file.write(tfrecord.frame(event.SerializeToString()))
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def scalar_values(prefix: str, values: Mapping[str, float]) -> list[Summary.Value]:
    """Numbers for TensorBoard, by `prefix/` and name."""
    scalars = (scalar_pb(f"{prefix}/{name}", value) for name, value in values.items())
    return [value for scalar in scalars for value in scalar.value]


class MetricWriter:
    """Writes each number once, by the same name in metrics.jsonl and in TensorBoard."""

    def __init__(self, run: Path, step: int, progress: Progress | None, log: RankLog) -> None:
        self._path = run / METRICS_FILE
        self._progress = progress
        self._log = log
        with os_errors(self._path):
            self._file = self._path.open("a", encoding="utf-8")
        self._events = EventWriter(run / TENSORBOARD)
        # At this mark TensorBoard drops what it has of `step` and later ones.
        self._events.add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        """Writes numbers of one step.

        Args:
            step: the number of a training step, or of the updates done before an evaluation.
            prefix: "train" for a training step, else the split that was evaluated.
            values: numbers by name; one that isn't finite, which JSON doesn't know, is left out.
        """
        self._log.write(step, prefix, values)
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        line = {"step": step, "split": prefix, "time": timestamp(), **values}
        with os_errors(self._path):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        self.show(step, scalar_values(prefix, values))

    def show(self, step: int, values: Sequence[Summary.Value]) -> None:
        """Writes what TensorBoard alone shows: numbers, images and histograms."""
        self._events.show(step, values)

    def show_graph(self, graph: bytes) -> None:
        """Writes a serialised GraphDef."""
        self._events.add(Event(graph_def=graph))

    def say(self, text: str) -> None:
        """Shows a line with the time before it, above the progress bar if there is one."""
        self._log.say(text)
        self._show_line(text)

    def _show_line(self, text: str) -> None:
        line = f"{timestamp()}: {text}"
        if self._progress is None:
            to_stdout(line)
        else:
            self._progress.console.print(line, markup=False, highlight=False)

    def advance(self, step: int, text: str) -> None:
        """Shows the state of training: a line, or the progress bar's text on a terminal."""
        if self._progress is None:
            self._show_line(f"step {step}, {text}")
        else:
            self._progress.update(self._progress.task_ids[0], completed=step, text=text)

    def close(self) -> None:
        """Flushes and closes the files."""
        self._events.close()
        self._file.close()


class SilentWriter(MetricWriter):
    """What the ranks other than the chief hold: it writes to the rank's own log alone."""

    def __init__(self, log: RankLog) -> None:
        self._log = log

    def write(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        """Writes to the log."""
        self._log.write(step, prefix, values)

    def say(self, text: str) -> None:
        """Says it in the log."""
        self._log.say(text)

    def advance(self, step: int, text: str) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Has nothing to close."""


@contextmanager
def open_writer(
    run: Path, *, is_chief: bool, step: int, total_steps: int, log: Path | None = None
) -> Iterator[MetricWriter]:
    """Opens the run's writer on the chief, a silent one elsewhere.

    Args:
        run: the run folder.
        is_chief: whether this rank writes.
        step: updates already done; what metrics.jsonl says of later ones is taken out, since they
            are done again.
        total_steps: where the progress bar ends.
        log: file for what this rank says and measures, if it keeps one.
    """
    with contextlib.closing(RankLog(log)) as rank_log:
        if not is_chief:
            yield SilentWriter(rank_log)
            return
        with _chiefs_writer(run, step, total_steps, rank_log) as writer:
            yield writer


@contextmanager
def _chiefs_writer(run: Path, step: int, total_steps: int, log: RankLog) -> Iterator[MetricWriter]:
    kept = map(json.loads, forget_lines_after(run / METRICS_FILE, step))
    # TensorBoard drops what was evaluated after `step` updates along with what is done again.
    evaluated = {line["split"] for line in kept if line["step"] == step}
    dropped = evaluations_shown(run / TENSORBOARD, step, evaluated) if evaluated else []
    progress = _progress_bar(step, total_steps) if launch_env.shows_bars() else None
    writer = MetricWriter(run, step, progress, log)
    if dropped:
        writer.show(step, dropped)
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


def evaluations_shown(folder: Path, step: int, splits: Collection[str]) -> list[Summary.Value]:
    """Reads back from the newest event file that has it what was shown of evaluations at a step."""
    prefixes = tuple(f"{split}/" for split in splits)
    for path in sorted(folder.glob("events.out.tfevents.*"), reverse=True):
        found: dict[str, Summary.Value] = {}
        with suppress(DataError):  # at the record that a crash cut
            for _, record in tfrecord.read_records(path):
                event = Event.FromString(record)
                if event.step == step:
                    found |= {v.tag: v for v in event.summary.value if v.tag.startswith(prefixes)}
        if found:
            return list(found.values())
    return []


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
