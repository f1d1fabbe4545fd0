"""What a command tells on the way and at its end: progress, and its result as lines or as JSON."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from data_tools import launch_env
from data_tools.errors import to_stderr

Advance = Callable[[int], None]
"""Is called with how much has been done since the last call."""

BAR_SECONDS, LINE_SECONDS = 0.1, 30.0
"""How often a bar is redrawn, and a line written where there is no terminal."""
BYTES, TASKS = "bytes", "tasks"
_MEGA = 1_000_000


def print_result(lines: Sequence[str], facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints what a command found or made: lines for people, or the same facts as JSON."""
    print(json.dumps(facts, indent=1) if as_json else "\n".join(lines))


@contextlib.contextmanager
def progress(title: str, total: int, *, unit: str = BYTES, done: int = 0) -> Iterator[Advance]:
    """Shows how much of a work is done, its rate and the time left, while the block runs.

    On a terminal that is a bar, which goes when the work is done; elsewhere a line on standard
    error every half a minute, under mpirun of rank 0, for its part of the work.

    Args:
        title: the work, such as "verifying".
        total: how much there is to do.
        unit: BYTES or TASKS.
        done: how much was done before.

    Yields:
        A function to call with what has been done since the last call.
    """
    begin, first = time.monotonic(), done

    def text(now: int) -> str:
        seconds = max(time.monotonic() - begin, 1e-9)
        return describe(now, total, (now - first) / seconds, unit)

    if launch_env.shows_bars():
        with _bar(title, total, text) as show:
            show(done)
            yield _Meter(done, BAR_SECONDS, show).advance
    elif launch_env.is_first_rank():
        yield _Meter(done, LINE_SECONDS, lambda now: to_stderr(f"{title}: {text(now)}")).advance
    else:
        yield lambda _: None


def describe(done: int, total: int, rate: float, unit: str) -> str:
    """As "120.5 of 480.0 MB, 60.2 MB/s, 6 s left"."""
    left = f"{(total - done) / rate:.0f} s left" if rate else "-"
    if unit == BYTES:
        mega = (done / _MEGA, total / _MEGA, rate / _MEGA)
        return "{:.1f} of {:.1f} MB, {:.1f} MB/s, ".format(*mega) + left
    return f"{done} of {total}, {rate:.3g}/s, {left}"


class _Meter:
    """Adds up what is done, and shows the sum no more often than every so many seconds."""

    def __init__(self, done: int, seconds: float, show: Callable[[int], None]) -> None:
        self._done = done
        self._seconds = seconds
        self._show = show
        self._next = time.monotonic() + seconds

    def advance(self, amount: int) -> None:
        """Adds the amount."""
        self._done += amount
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._seconds
            self._show(self._done)


@contextlib.contextmanager
def _bar(title: str, total: int, text: Callable[[int], str]) -> Iterator[Callable[[int], None]]:
    """Draws a bar; gives a function to call with how much is done in all."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task(title, total=total, text="")
        yield lambda now: bar.update(task, completed=now, text=text(now))
