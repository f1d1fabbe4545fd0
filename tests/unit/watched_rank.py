"""One rank with a watchdog and nothing else: `watched_rank.py FOLDER RANK SIZE LIMIT WHAT`.

All ranks meet through FOLDER; then each does its WHAT. It is started as a process of its own.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hvd_train import liveness, watchdog
from hvd_train.heartbeat import Offer


def main(folder: Path, rank: int, size: int, limit: float, what: str) -> None:
    """Connects, meets the other ranks and does what it is told."""
    watchdog.wake_when_orphaned()
    watch = start(folder, rank, limit)
    assert watch is not None
    meet(folder, rank, size)
    liveness.begin(liveness.TRAINING)
    if what != "hang":
        liveness.arrive()
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "fail":
        watch.explain_failure()
    elif what == "raise":
        raise RuntimeError("a bug of this rank")
    elif what == "close":
        watch.close()
        return
    time.sleep(60)  # in a collective


def start(folder: Path, rank: int, limit: float) -> watchdog.Watch | None:
    """Starts the watchdog of a rank; the offer goes through a file, in place of Horovod."""
    path = folder / "offer.json"
    if rank:
        while not path.exists():
            time.sleep(0.01)
        return watchdog.follow(rank, Offer(**json.loads(path.read_text())))
    watch = watchdog.ChiefWatch(limit, one_host=True)
    path.with_suffix(".new").write_text(json.dumps(dataclasses.asdict(watch.offer)))
    path.with_suffix(".new").rename(path)
    return watch


def meet(folder: Path, rank: int, size: int) -> None:
    """Waits until all ranks are here."""
    (folder / f"{rank}.here").touch()
    while len(list(folder.glob("*.here"))) < size:
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
