"""When a run stops before its last step: a signal, its time limit, or no better evaluations.

A rank only notes a signal. Its votes travel with the gradients of the next step, so all ranks stop
after the same step, and asking each other costs nothing.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import threading
import time
from dataclasses import dataclass

import numpy as np

from hvd_train.config import RunConfig

UNFINISHED = 143
"""Exit code of a run that was stopped and can go on; 128 + SIGTERM, as shells have it."""
INTERRUPTED = 130
"""The same after Ctrl-C."""
EXIT_CODES = {
    signal.SIGTERM: UNFINISHED, signal.SIGUSR1: UNFINISHED, signal.SIGINT: INTERRUPTED
}  # fmt: skip
BURST_SECONDS = 2.0
"""Launchers and shells send one request as several signals; later ones are impatience."""


class Signals:
    """The signals that this process got.

    A thread takes them, because Python's own handlers run in the main thread, which may wait for
    other ranks for long. Before `begin()` there is nothing to save, and a signal ends the process
    at once; so does one that comes more than BURST_SECONDS after the first.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.started = time.monotonic()
        self._first_time = 0.0
        self._are_noted = False
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Takes signals from now on; for the main thread. Ignored ones (nohup) stay ignored."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        for number in EXIT_CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._take, args=(read,), daemon=True, name="signals").start()

    def _take(self, descriptor: int) -> None:
        while data := os.read(descriptor, 1):
            if data[0] in EXIT_CODES:
                self.note(signal.Signals(data[0]))

    def note(self, number: signal.Signals) -> None:
        """Remembers a signal, or ends the process."""
        with self._lock:
            now = time.monotonic()
            if self._are_noted and self.first is None:
                self.first, self._first_time = number, now
            elif not self._are_noted or now - self._first_time > BURST_SECONDS:
                # Not by an exception: the main thread may never come back from where it waits.
                with contextlib.suppress(OSError):
                    os.write(2, f"ended by {number.name}\n".encode())
                os._exit(EXIT_CODES[number])

    def begin(self) -> None:
        """Only notes signals from now on; the run looks at `first` and stops in order."""
        with self._lock:
            self.first, self._are_noted = None, True


@functools.cache
def signals() -> Signals:
    """This process's signals, listened to from the first call on."""
    found = Signals()
    found.listen()
    return found


@dataclass(frozen=True, slots=True)
class Stop:
    """Why all ranks stop after a step, in words, and with which exit code."""

    reason: str
    code: int


REASONS = (
    *(Stop(number.name, code) for number, code in EXIT_CODES.items()),
    Stop("--max-minutes", UNFINISHED),
)


class Requests:
    """What one rank asks of all at the end of a step: to stop, or to save a checkpoint."""

    def __init__(self, config: RunConfig, signals: Signals, *, is_chief: bool) -> None:
        self._signals = signals
        # The chief's clock alone decides.
        self._stop_at = _later(signals.started, config.max_minutes if is_chief else None)
        self._minutes = config.checkpoint_minutes if is_chief else None
        self.restart()

    def restart(self) -> None:
        """Counts the minutes to the next checkpoint from now."""
        self._save_at = _later(time.monotonic(), self._minutes)

    @property
    def stops(self) -> bool:
        """Whether this rank asks to stop."""
        return self._signals.first is not None or time.monotonic() > self._stop_at

    def votes(self) -> list[float]:
        """One for each of REASONS and one for a checkpoint; 1 asks for it, 0 doesn't."""
        now = time.monotonic()
        signalled = [float(self._signals.first == number) for number in EXIT_CODES]
        return [*signalled, float(now > self._stop_at), float(now > self._save_at)]


def decide(votes: np.ndarray) -> tuple[Stop | None, bool]:
    """Returns why to stop, if at all, and whether to save, from the votes summed over ranks."""
    if not votes.any():
        return None, False
    *for_reasons, for_save = votes
    reasons = [stop for stop, votes in zip(REASONS, for_reasons, strict=True) if votes > 0]
    return (reasons[0] if reasons else None), for_save > 0


def _later(start: float, minutes: float | None) -> float:
    return start + 60 * minutes if minutes else float("inf")


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far on the validation split.

    An evaluation is better if more examples are right, or as many at a lower loss.

    Attributes:
        step: updates done.
        correct: right examples.
        loss: mean loss.
        since: evaluations since then, none of them better.
    """

    step: int
    correct: int
    loss: float
    since: int = 0


def better(best: Best | None, step: int, *, correct: int, loss: float) -> Best:
    """Returns the best evaluation once another has come."""
    if best is None or (correct, -loss) > (best.correct, -best.loss):
        return Best(step, correct, loss)
    return dataclasses.replace(best, since=best.since + 1)
