"""Runs one function over many tasks in several processes, results in the order of the tasks."""

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
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
        min(workers, len(tasks)), mp_context=context, initializer=_end_with_the_parent
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


def _end_with_the_parent() -> None:
    """Makes a worker leave Ctrl-C to its parent, and end when the parent is killed.

    Ctrl-C reaches every process of a terminal; only the parent shall answer. A killed parent says
    nothing: without the thread its workers would wait for tasks for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _with_progress(results: Iterator[Result], total: int, title: str) -> Iterator[Result]:
    if not sys.stdout.isatty():
        yield from results
        return
    from rich.progress import track

    yield from track(results, description=title, total=total)
