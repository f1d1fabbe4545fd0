"""A process that never outlives this one, and what it prints.

A guard beside it, one `sh`, waits at a pipe of which this process has the other end. When that is
closed, however this process ended, SIGKILL included, the guard sends SIGTERM, at which `mpirun`
ends its ranks on all hosts. It does so once: at a second SIGTERM, such as PR_SET_PDEATHSIG sends
for each thread of a parent, `mpirun` would leave without ending them.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from data_tools import interrupts
from data_tools.errors import to_stderr, to_stdout

GUARD = 'read -r pid && { read -r _; kill "$pid"; }'
LISTEN_SECONDS = 0.2
"""After how long lines() comes back when nothing is printed."""
KILL_SECONDS = 30.0
"""How long the child may take after SIGTERM."""


@contextlib.contextmanager
def started(
    command: Sequence[str], *, stderr: int = subprocess.PIPE, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Starts a tied process, its output in pipes; its group gets SIGTERM if the block leaves it.

    It gets a session of its own, so that a terminal's Ctrl-C comes to this process alone.
    """
    guard = subprocess.Popen(
        ["sh", "-c", GUARD], stdin=subprocess.PIPE, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert guard.stdin is not None
    process = None
    try:
        with interrupts.held():  # or nobody would know of what has just been started
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
                start_new_session=True, **options,
            )  # fmt: skip
            os.write(guard.stdin.fileno(), b"%d\n" % process.pid)
        yield process
    finally:
        guard.kill()
        guard.wait()
        guard.stdin.close()
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)


class Tied:
    """A tied process whose output passes through here."""

    def __init__(self, command: Sequence[str]) -> None:
        self._ends = contextlib.ExitStack()
        self._process = self._ends.enter_context(started(command))
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ, Stream(to_stdout))
        self._selector.register(self._process.stderr, selectors.EVENT_READ, Stream(to_stderr))
        self._killed_at = float("inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for _lines in self.lines():
            pass
        for key in list(self._selector.get_map().values()):
            self._close(key)
        self._selector.close()
        self._ends.close()

    @property
    def code(self) -> int:
        """The exit code once it has ended, as a shell has it: 128 and the signal that ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def lines(self) -> Iterator[list[str]]:
        """Passes on what is printed until the process has ended; yields the lines, often none."""
        while self._process.poll() is None:
            if time.monotonic() > self._killed_at:
                self._process.kill()
            yield self._read()[1]
        something = True
        while something:  # not until the streams' end, which a grandchild might keep open
            something, lines = self._read()
            yield lines

    def ask_to_stop(self) -> None:
        """Sends SIGUSR1, which mpirun passes on to all ranks."""
        self._process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """Sends SIGTERM, at which mpirun ends its ranks, and SIGKILL if that doesn't help."""
        if self._killed_at == float("inf"):
            self._killed_at = time.monotonic() + KILL_SECONDS
            self._process.send_signal(signal.SIGTERM)

    def _read(self) -> tuple[bool, list[str]]:
        """Waits for something to be printed; returns whether anything was, and its whole lines."""
        if not self._selector.get_map():
            time.sleep(LISTEN_SECONDS)
            return False, []
        ready = self._selector.select(LISTEN_SECONDS)
        lines: list[str] = []
        for key, _ in ready:
            data = os.read(key.fd, 65536)
            lines += key.data.take(data or b"\n" * bool(key.data.rest))
            if not data:
                self._close(key)
        return bool(ready), lines

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        key.fileobj.close()  # type: ignore[union-attr]


class Stream:
    """Passes on what is printed, line by line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self.rest = b""
        """Of a line of which a part has come."""

    def take(self, data: bytes) -> list[str]:
        """Takes what has come; passes the whole lines on and returns them."""
        *whole, self.rest = (self.rest + data).split(b"\n")
        lines = [line.decode(errors="replace").rstrip("\r") for line in whole]
        for line in lines:
            self._write(line)
        return lines
