"""Runs one function over many tasks in several processes, results in the order of the tasks."""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from data_tools.errors import HOST, DataError

Task = TypeVar("Task")
Result = TypeVar("Result")


def default_workers() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int, title: str
) -> Iterator[Result]:
    """Yields function(task) for each task, in order.

    Args:
        function: a module's function; with one worker it runs in this process.
        tasks: what is passed to it, one after the other.
        workers: number of processes.
        title: what the progress bar says, on a terminal.

    Raises:
        DataError: what a task raised, or HOST when a worker process was killed.
    """
    if workers == 1 or len(tasks) == 1:
        yield from _with_progress(map(function, tasks), len(tasks), title)
        return
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), mp_context=context, initializer=_leave_interrupts_to_the_parent
    )
    try:
        yield from _with_progress(pool.map(function, tasks), len(tasks), title)
    except BrokenProcessPool as error:
        raise DataError(
            HOST, socket.gethostname(), "a worker process was killed, perhaps for want of memory",
            fix="free some memory or lower --workers",
        ) from error  # fmt: skip
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal; only the parent shall answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _with_progress(results: Iterator[Result], total: int, title: str) -> Iterator[Result]:
    if not sys.stdout.isatty():
        yield from results
        return
    from rich.progress import track

    yield from track(results, description=title, total=total)
