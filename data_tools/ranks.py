"""Shares a command's tasks over the ranks that mpirun started.

Rank 0 runs the command as if it were alone; the others only do tasks that it gives them, so one
rank alone reads flags, makes folders and prints. What they say is JSON. All ranks must see the same
files under the same names: several hosts need a shared file system.

Nobody waits inside MPI, which would keep a core busy and let no signal through.
"""

import contextlib
import importlib
import json
import signal
import time
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from data_tools import launch_env, wire
from data_tools.errors import CONFIG, RANK, DataError, Kind
from data_tools.launch_env import LaunchEnv

Task = TypeVar("Task")
Result = TypeVar("Result")

_TASKS, _STOP, _RESULT, _ERROR, _STOPPED = range(1, 6)
_POLL_SECONDS = 0.002
_LOOK_SECONDS = 0.1
"""How often a rank that works looks whether another wants it to stop."""

_leading: "list[Leader]" = []
"""The leader of this process while its command runs."""


def run(launch: LaunchEnv, module: str, command: Callable[[], None]) -> None:
    """Runs a command on rank 0, and on the others its tasks; without a launcher just runs it.

    Args:
        launch: what the launcher says.
        module: the command's, imported by all at once.
        command: what rank 0 does.

    Raises:
        DataError: on rank 0 what the command raises, and CONFIG when MPI doesn't bring the ranks
            together.
    """
    if launch.size == 1:
        command()
        return
    try:
        comm = _connect(launch)
    except DataError:
        if launch.rank == 0:  # one line is enough
            raise
        return
    if launch.rank:
        importlib.import_module(module)
        _follow(comm)
        return
    leader = Leader(comm)
    _leading.append(leader)
    try:
        command()
    finally:
        _leading.remove(leader)
        leader.stop()


def leader() -> "Leader | None":
    """Returns the leader of the ranks, on rank 0 of several while its command runs."""
    return _leading[-1] if _leading else None


def _connect(launch: LaunchEnv) -> Any:
    """Starts MPI and returns the communicator of all ranks."""
    if launch.launcher == launch_env.HOROVODRUN_GLOO:
        reason = "it brings no MPI, by which the ranks could share the work"
        raise DataError(CONFIG, launch.launcher, reason, fix="start the command with mpirun")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DataError(
            CONFIG, "mpi4py", f"it doesn't load: {str(error).splitlines()[0]}",
            fix="pip install mpi4py, set MPI4PY_LIBMPI to the libmpi.so of this mpirun, or start "
            "one process, with --workers",
        ) from error  # fmt: skip
    if MPI.COMM_WORLD.size != launch.size:
        raise DataError(
            CONFIG, launch.launcher,
            f"the launcher started {launch.size} processes, mpi4py sees {MPI.COMM_WORLD.size}",
            fix="use the mpirun of the MPI that mpi4py loads, or start one process, with --workers",
        )  # fmt: skip
    return MPI.COMM_WORLD


class _ToldError(BaseException):
    """A message has come that ends what this rank does; no `except Exception` may swallow it."""


class _Link:
    """Sends and receives JSON without ever blocking inside MPI."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._request: Any = None

    def send(self, rank: int, tag: int, value: Any) -> None:
        self._request = self.comm.Isend(json.dumps(value).encode(), rank, tag)
        self.finish_sending()

    def finish_sending(self) -> None:
        """Waits until the last message is on its way."""
        while self._request is not None and not self._request.Test():
            time.sleep(_POLL_SECONDS)
        self._request = None

    def receive(self, *tags: int) -> tuple[int, int, Any]:
        """Waits for a message with one of the tags; returns its rank, its tag and the value."""
        while True:
            for tag in tags:
                if found := self.look(tag):
                    return found
            time.sleep(_POLL_SECONDS)

    def look(self, tag: int) -> tuple[int, int, Any] | None:
        """Takes a message with the tag, if one has come."""
        from mpi4py import MPI

        status = MPI.Status()
        if not self.comm.Iprobe(MPI.ANY_SOURCE, tag, status):
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        self.comm.Recv(data, status.Get_source(), tag)
        return status.Get_source(), tag, json.loads(data)

    @contextlib.contextmanager
    def watching(self, tag: int) -> Iterator[None]:
        """Raises _ToldError in the block as soon as a message with the tag is there to be taken."""
        from mpi4py import MPI

        def look(*_: object) -> None:
            if self.comm.Iprobe(MPI.ANY_SOURCE, tag):
                raise _ToldError

        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


class Leader:
    """Rank 0, which hands out tasks."""

    def __init__(self, comm: Any) -> None:
        self._link = _Link(comm)
        self._followers = set(range(1, comm.size))

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Returns function(task) for each task; task i is done by rank i modulo their number.

        Raises:
            DataError, OSError: what a task raised on any rank; the other ranks have then stopped.
        """
        size = len(self._followers) + 1
        task_kind, kind = _kinds_of(function)
        done: dict[int, Result] = {}
        try:
            for rank in sorted(self._followers):
                own = [(n, wire.dump(task_kind, tasks[n])) for n in range(rank, len(tasks), size)]
                name = (function.__module__, function.__name__)
                self._link.send(rank, _TASKS, (name, own))
            with self._link.watching(_ERROR):
                for number in range(0, len(tasks), size):
                    done[number] = function(tasks[number])
                while len(done) < len(tasks):
                    _, _, (number, plain) = self._link.receive(_RESULT)
                    done[number] = wire.load(kind, plain)
        except _ToldError:
            rank, _, error = self._link.receive(_ERROR)
            self.stop()
            raise _rebuild(rank, error) from None
        except BaseException:
            self.stop()
            raise
        return [done[number] for number in range(len(tasks))]

    def stop(self) -> None:
        """Ends the other ranks' work; when it returns they write no more."""
        self._link.finish_sending()
        for rank in self._followers:
            self._link.send(rank, _STOP, None)
        while self._followers:
            rank, tag, _ = self._link.receive(_STOPPED, _RESULT, _ERROR)
            if tag == _STOPPED:
                self._followers.remove(rank)


def _follow(comm: Any) -> None:
    """Does the tasks that rank 0 sends until it says stop, or someone interrupts."""
    link = _Link(comm)
    try:
        with link.watching(_STOP):
            while True:
                _, _, (name, tasks) = link.receive(_TASKS)
                _work(link, _function(*name), tasks)
    except _ToldError:
        link.finish_sending()
    except KeyboardInterrupt:
        # Perhaps of this rank alone: rank 0 must hear of it, or it would wait for our results.
        link.finish_sending()
        link.send(0, _ERROR, ("interrupt", []))
    link.receive(_STOP)
    link.send(0, _STOPPED, None)


def _work(link: _Link, function: Callable[[Any], Any], tasks: Sequence[tuple[int, Any]]) -> None:
    task_kind, kind = _kinds_of(function)
    for number, plain in tasks:
        try:
            result = wire.dump(kind, function(wire.load(task_kind, plain)))
        except Exception as error:
            link.send(0, _ERROR, _describe(error))
            return
        link.send(0, _RESULT, (number, result))


def _function(module: str, name: str) -> Callable[[Any], Any]:
    """A function of this package, or of the program that runs."""
    if not module.startswith(wire.PACKAGE) and module != "__main__":
        raise ValueError(f"{module}.{name} is no function of {wire.PACKAGE}*")
    found: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return found


def _kinds_of(function: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The annotations of its one argument and of what it returns."""
    hints = typing.get_type_hints(function)
    result = hints.pop("return")
    (task,) = hints.values()
    return task, result


def _describe(error: Exception) -> Any:
    if isinstance(error, DataError):
        return "data", [error.kind.name, error.where, error.reason, error.fix, error.faults]
    if isinstance(error, OSError):
        return "system", [error.errno, error.strerror, error.filename and str(error.filename)]
    return "fault", ["".join(traceback.format_exception(error))]


def _rebuild(rank: int, described: Any) -> BaseException:
    """The error that another rank has described."""
    what, fields = described
    if what == "interrupt":
        return KeyboardInterrupt()
    if what == "data":
        kind, where, reason, fix, faults = fields
        return DataError(Kind[kind], where, reason, fix=fix, faults=faults)
    if what == "system":
        return OSError(*fields)
    return DataError(
        RANK, f"rank {rank}", fields[0].splitlines()[-1],
        fix="see the traceback above; this is a fault of the program",
        faults=fields[0].splitlines(),
    )  # fmt: skip
