"""Shares a command's tasks over the ranks that mpirun started.

Every rank runs the command: it reads the same flags and input, cuts it into the same tasks and does
every size-th of them. Rank 0 alone makes the folder, collects what all have done, and prints. So
all ranks must see the same files under the same names: several hosts need a shared file system.

A rank that fails says why and ends without MPI_Finalize, which to mpirun is the end of the job: the
others get SIGTERM, and rank 0 removes what it has made. The same holds for one that is interrupted
or killed. So nobody waits inside MPI, where no signal gets through (but for MPI's own start, when
there is nothing to remove).
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from data_tools import launch_env
from data_tools.errors import CONFIG, HOST, DataError, Kind, from_os_error
from data_tools.launch_env import LaunchEnv

Task = TypeVar("Task")
Result = TypeVar("Result")

_POLL_SECONDS = 0.002
_LOOK_SECONDS = 0.1


class Ranks:
    """The processes that do a command together: one, unless mpirun started several.

    Attributes:
        rank: of this process, from 0.
        size: how many there are.
    """

    def __init__(self, comm: Any = None) -> None:
        self.rank: int = comm.rank if comm else 0
        self.size: int = comm.size if comm else 1
        self.working = False
        """Whether this rank has begun with its tasks."""
        self._comm = comm

    def share(
        self,
        tasks: Sequence[Task],
        work: Callable[[Sequence[Task]], Iterable[Result]],
        *,
        plan: Any,
        to_json: Callable[[Result], Any],
        from_json: Callable[[Any], Result],
    ) -> list[Result]:
        """Does all tasks, task i on rank i modulo size; all ranks call it.

        Args:
            tasks: the same on all ranks.
            work: does some of the tasks, with results in their order.
            plan: stands for the tasks and is compared, a value of JSON.
            to_json: makes a value of JSON of a result.
            from_json: makes the result of it again.

        Returns:
            On rank 0 the results of all tasks in order. On the others none: their part is done.

        Raises:
            DataError: what `work` raises; on rank 0 also HOST when another rank has other tasks,
                and what stopped another rank before.
        """
        if self.size == 1:
            return list(work(tasks))
        self._agree({"plan": plan, "arguments": sys.argv[1:]})
        self.working = True
        own = tasks[self.rank :: self.size]
        if self.rank:
            with self._stopping_if_told():
                results = [to_json(result) for result in work(own)]
            self._send(0, results)
            return []
        done: list[Any] = [None] * len(tasks)
        others = list(range(1, self.size))
        try:
            done[:: self.size] = [to_json(result) for result in work(own)]
            while others:
                done[others[0] :: self.size] = self._receive(others[0])
                del others[0]
        except (Exception, KeyboardInterrupt):  # at a SystemExit mpirun ends them
            self._stop(others)
            raise
        return [from_json(result) for result in done]

    def tell_and_wait(self, error: DataError) -> NoReturn:
        """On a rank above 0 that can't begin: gives the error to rank 0, which ends the job.

        Most such errors rank 0 meets too, and reports, before it hears of this one.
        """
        fields = [error.kind.name, error.where, error.reason, error.fix, error.faults]
        self._send(0, {"host": socket.gethostname(), "error": fields})
        while True:
            time.sleep(_POLL_SECONDS)

    def _agree(self, plan: dict[str, Any]) -> None:
        """Waits until all ranks are about to begin, with one plan."""
        if self.rank:
            self._send(0, {"host": socket.gethostname(), **plan})
            self._receive(0)
            return
        for rank in range(1, self.size):
            told = self._receive(rank)
            host = told.pop("host")
            if "error" in told:
                kind, where, reason, fix, faults = told["error"]
                faults = [f"rank {rank} on {host}:", *faults]
                raise DataError(Kind[kind], where, reason, fix=fix, faults=faults)
            if told != json.loads(json.dumps(plan)):
                raise DataError(
                    HOST, host, f"rank {rank} finds other input than rank 0",
                    fix="put it on a file system that all hosts share, and leave it as it is "
                    "meanwhile",
                )  # fmt: skip
        for rank in range(1, self.size):
            self._send(rank, None)

    @contextlib.contextmanager
    def _stopping_if_told(self) -> Iterator[None]:
        """On a rank above 0: stands still for good in the block when rank 0 says so."""

        def stop_if_told(*_: object) -> None:
            if self._comm.Iprobe(0):
                self._send(0, None)
                while True:
                    time.sleep(_POLL_SECONDS)

        before = signal.signal(signal.SIGALRM, stop_if_told)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _stop(self, others: Sequence[int]) -> None:
        """On rank 0: returns when the others write no more, so that what they wrote can go."""
        for rank in others:
            self._send(rank, None)
        for rank in others:
            self._receive(rank)  # its answer, or its results, which were on their way

    def _send(self, rank: int, value: Any) -> None:
        message = json.dumps(value).encode()
        _wait(self._comm.Isend(message, rank).Test)

    def _receive(self, rank: int) -> Any:
        from mpi4py import MPI

        status = MPI.Status()
        _wait(lambda: self._comm.Iprobe(rank, status=status))
        message = bytearray(status.Get_count(MPI.BYTE))
        _wait(self._comm.Irecv(message, rank).Test)
        return json.loads(message)


ALONE = Ranks()


def _wait(is_done: Callable[[], bool]) -> None:
    """Waits outside of MPI, where signals get through and no core is kept busy."""
    while not is_done():
        time.sleep(_POLL_SECONDS)


def run(launch: LaunchEnv, command: Callable[[Ranks], None]) -> None:
    """Runs a command on the ranks that the launcher started, or alone.

    Args:
        launch: what the launcher says.
        command: prints and makes folders on rank 0 alone.

    Raises:
        DataError: what the command raises, and CONFIG when MPI doesn't bring the ranks together.
    """
    if launch.size == 1:
        command(ALONE)
        return
    try:
        mpi = _load_mpi(launch)
    except DataError:
        if launch.rank == 0:  # one line is enough
            raise
        return
    # mpirun sends it when another rank has ended, and says so itself. Rank 0 has to remove what is
    # there, so that the others must write no more.
    signal.signal(signal.SIGTERM, _stop_now if launch.rank else _remove_and_stop)
    ranks = Ranks(mpi.COMM_WORLD)
    try:
        if ranks.rank:
            _run_silently(command, ranks)
        else:
            command(ranks)
    except SystemExit as stop:
        if stop.code:
            raise
    mpi.Finalize()


def _stop_now(number: int, _: object) -> NoReturn:
    os._exit(128 + number)


def _remove_and_stop(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _run_silently(command: Callable[[Ranks], None], ranks: Ranks) -> None:
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            command(ranks)
        except (DataError, OSError) as error:
            if ranks.working:
                raise
            ranks.tell_and_wait(from_os_error(error) if isinstance(error, OSError) else error)


def _load_mpi(launch: LaunchEnv) -> Any:
    """Starts MPI, once all ranks do; without its end at the end of this process, see above."""
    if launch.launcher == launch_env.HOROVODRUN_GLOO:
        reason = "it brings no MPI, by which the ranks could share the work"
        raise DataError(CONFIG, launch.launcher, reason, fix="start the command with mpirun")
    try:
        import mpi4py

        mpi4py.rc.finalize = False
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
    return MPI
