"""Runs one function over many tasks in several processes, results in the order of the tasks.

ProcessPoolExecutor won't do: until Python 3.11.7 and 3.12.1 it hangs when a worker is killed while
a long task is on its way to it, and it can't be left before the tasks that run are done. Here each
worker has a pipe and nothing else is shared, so its end, however it comes, is the pipe's end.
"""

import multiprocessing
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from data_tools import console, interrupts
from data_tools.errors import HOST, DataError

Task = TypeVar("Task")
Result = TypeVar("Result")

SAFE_PATH = "PYTHONSAFEPATH"


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int, title: str
) -> Iterator[Result]:
    """Yields function(task) for each task, in order.

    Args:
        function: a module's function; with one worker it runs in this process.
        tasks: what is passed to it, one after the other.
        workers: number of processes.
        title: what the progress is of.

    Raises:
        DataError: what a task raised, or HOST when a worker process was killed.
    """
    workers = min(workers, len(tasks))
    results: Iterator[Result]
    with ExitStack() as stack:
        if workers > 1:
            # Before the progress bar, which has a thread.
            pipes = stack.enter_context(_started_workers(function, workers))
            results = _hand_out(tasks, pipes)
        else:
            results = map(function, tasks)
        yield from _with_progress(results, len(tasks), title)


@contextmanager
def _started_workers(function: Callable[[Task], Result], count: int) -> Iterator[list[Connection]]:
    """Gives a pipe to each of so many workers, which end with the block.

    A process of one thread is forked, which takes milliseconds. Of several, another might hold a
    lock that nobody would ever open in the new process, so that this one starts anew and imports
    everything again.
    """
    method = "fork" if _has_one_thread() else "spawn"
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        with _safe_path(), _interrupts_held(method):
            for _ in range(count):
                started.append(_start(function, method))
        yield [pipe for _, pipe in started]
    except _WorkerEndedError as error:
        process = next(process for process, pipe in started if pipe is error.pipe)
        process.join(1)  # its pipe has ended, so it is about to
        raise _describe_end(process.exitcode) from error
    finally:
        # After an error what still runs is of no use, and might take minutes.
        for process, pipe in started:
            process.kill()
            process.join()
            pipe.close()


def _has_one_thread() -> bool:
    """Tells whether this process has no thread but this one, of Python's or any library's."""
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - names are enough
    except OSError:  # not Linux
        return False


@contextmanager
def _interrupts_held(method: str) -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back, and keeps them from the processes started meanwhile for good.

    They may reach every process of a terminal or a job, but only the parent shall answer. Blocking
    is what the new processes inherit; it doesn't hold in ours, where numpy's threads take signals.
    """
    if method == "spawn":
        resource_tracker.ensure_running()  # which would unblock them when it starts
    with interrupts.held():
        signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.INTERRUPTS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts.INTERRUPTS)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keeps the current folder off the path of new processes: a signal.py there is not Python's."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _start(function: Callable[[Task], Result], method: str) -> tuple[BaseProcess, Connection]:
    ours, theirs = multiprocessing.Pipe()
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_work, args=(function, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _hand_out(tasks: Sequence[Any], pipes: list[Connection]) -> Iterator[Any]:
    """Gives each worker a task whenever it is free and yields the results in order."""
    left = iter(enumerate(tasks))
    done: dict[int, Any] = {}
    for expected in range(len(tasks)):
        while expected not in done:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                task = next(left, None)
                done.update(_exchange(pipe, task))
                if task is None:
                    pipes.remove(pipe)
        yield done.pop(expected)


def _exchange(pipe: Connection, task: tuple[int, Any] | None) -> dict[int, Any]:
    """Takes a worker's result, by its number, and gives it the next task or None."""
    numbered: dict[int, Any]
    error: Exception | None
    try:
        numbered, error = pipe.recv()
        pipe.send(task)
    except (EOFError, ConnectionError) as end:
        raise _WorkerEndedError(pipe) from end
    if error is not None:
        raise error
    return numbered


class _WorkerEndedError(Exception):
    """A worker ended before its work."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe


def _describe_end(exit_code: int | None) -> DataError:
    """The error of a worker that ended by itself, with an exit code, or by a signal."""
    if exit_code is not None and exit_code >= 0:
        reason, fix = f"a worker process ended with exit code {exit_code}", "see its message above"
    else:
        reason = "a worker process was killed, perhaps for want of memory"
        fix = "free some memory or lower --workers"
    return DataError(HOST, socket.gethostname(), reason, fix=fix)


def _work(function: Callable[[Any], Any], pipe: Connection) -> None:
    """What a worker does: sends the result of a task, at first none, and asks for the next."""
    _end_with_the_parent()
    pipe.send(({}, None))
    while (task := pipe.recv()) is not None:
        number, argument = task
        try:
            result = function(argument)
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send(({}, error))
        else:
            pipe.send(({number: result}, None))


def _end_with_the_parent() -> None:
    """Makes a worker end when its parent is killed, which could not tell it so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _with_progress(results: Iterator[Result], total: int, title: str) -> Iterator[Result]:
    with console.progress(title, total, unit=console.TASKS) as advance:
        for result in results:
            advance(1)
            yield result
