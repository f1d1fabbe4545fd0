"""Where each rank's main thread is, and whether one keeps the others waiting too long.

A rank is at fault when

- nothing is heard of it for `limit` seconds: its process is frozen, or its host gone;
- its main thread stays away from a collective to which others have come: it hangs, in I/O perhaps.

Until the first step the second has no limit, since data may be downloaded and hashed; the first
step, evaluations and checkpoints may take ten times as long as the rest of the training loop.
"""

import contextlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from data_tools.errors import RANK, DataError

GO_ON = "--resume goes on from the last checkpoint, if there is one"
"""What to do after a rank has come to harm."""
GENEROUS = 10
"""Times the limit that work takes which is known to be long."""
STARTING, FIRST_STEP, TRAINING = "starting", "at its first step", "training"
WAITING = "waiting for a checkpoint"
PATIENCE = {STARTING: math.inf, WAITING: math.inf, TRAINING: 1.0}
"""Times the limit that the others wait for a main thread at this work; GENEROUS for all other."""


@dataclass(slots=True)
class MainThread:
    """What this process's main thread is at."""

    arrived: int = 0
    doing: str = STARTING


main = MainThread()


def arrive() -> None:
    """Notes that the main thread has come to the next collective."""
    main.arrived += 1


def begin(doing: str) -> None:
    """Notes what the main thread does from now on."""
    main.doing = doing


@contextlib.contextmanager
def work(doing: str) -> Iterator[None]:
    """Notes what the main thread does in the block, such as "saving a checkpoint"."""
    before = main.doing
    begin(doing)
    try:
        yield
    finally:
        begin(before)


@dataclass(slots=True, kw_only=True)
class Peer:
    """What is known of a rank; times are of time.monotonic().

    Attributes:
        rank: its number.
        host: its host's name.
        pid: its process.
        heard: when it last gave a sign of life.
        moved: when its main thread last came to a collective or took up other work.
        arrived: collectives that its main thread has come to.
        doing: what that thread does.
    """

    rank: int
    host: str
    pid: int
    heard: float
    moved: float
    arrived: int = 0
    doing: str = STARTING

    def tell(self, arrived: int, doing: str, now: float) -> None:
        """Takes in a sign of life."""
        self.heard = now
        if (arrived, doing) != (self.arrived, self.doing):
            self.arrived, self.doing, self.moved = arrived, doing, now

    def forgive(self, seconds: float) -> None:
        """Leaves out of account seconds in which nobody listened."""
        self.heard += seconds
        self.moved += seconds

    def fault(self, reason: str, fix: str) -> DataError:
        """The error that names this rank."""
        return DataError(RANK, f"rank {self.rank} on {self.host}", reason, fix=fix)

    def ended(self) -> DataError:
        """The error of a process that is gone."""
        return self.fault(
            f"process {self.pid} ended while the others waited for it",
            "look for that rank's own error above, or in the system's log if it was killed; "
            f"{GO_ON}",
        )

    def silent(self, limit: float) -> DataError:
        """The error of a process that gives no sign of life."""
        return self.fault(
            f"process {self.pid} is silent for {limit:g} s",
            f"see whether it is stopped, its host out of memory or cut off; {GO_ON}; "
            "--stall-seconds sets the limit",
        )

    def hangs(self, seconds: float) -> DataError:
        """The error of a main thread that the others wait for."""
        return self.fault(
            f"process {self.pid} lives, but is {self.doing} for {seconds:g} s while others wait",
            f"see whether its disk answers; {GO_ON}; --stall-seconds sets the limit",
        )


def judge(peers: Collection[Peer], now: float, limit: float) -> DataError | None:
    """Returns the error of the first rank that keeps the others waiting too long, if one does."""
    for peer in peers:
        if now - peer.heard > limit:
            return peer.silent(limit)
    furthest = max(peer.arrived for peer in peers)
    waiting = min(peer.moved for peer in peers if peer.arrived == furthest)
    for peer in peers:
        allowed = limit * PATIENCE.get(peer.doing, GENEROUS)
        if peer.arrived < furthest and now - max(peer.moved, waiting) > allowed:
            return peer.hangs(allowed)
    return stuck_together(peers, now, limit)


def stuck_together(peers: Collection[Peer], now: float, limit: float) -> DataError | None:
    """Returns the error of ranks that all live and wait in one step far too long."""
    seconds = GENEROUS * limit
    if any(peer.doing != TRAINING for peer in peers):
        return None
    if now - max(peer.moved for peer in peers) <= seconds:
        return None
    return DataError(
        RANK, f"ranks 0 to {max(peer.rank for peer in peers)}",
        f"all live, but none has ended its step for {seconds:g} s",
        fix=f"see whether the network between the hosts works; {GO_ON}; --stall-seconds sets the "
        "limit",
    )  # fmt: skip
