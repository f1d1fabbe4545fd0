"""Trains as captcha.py does, but one rank comes to harm: `hurt_rank.py RANK WHAT FLAGS...`.

WHAT is one of: stop and kill (the signal, before step 20), raise and hang (while it reads the batch
of step 20), stop_tracing (stopped while the first step is traced). Each rank prints its process.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_tools import launch_env
from hvd_train import captcha, threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

from hvd_train.train import Loop
from hvd_train.trainer import Trainer

STEP = 20


def main(rank: int, what: str, flags: list[str]) -> int:
    """Trains, with a method of this rank replaced by one that does harm first."""
    print(f"rank {LAUNCH.rank} is process {os.getpid()}", flush=True)
    if rank == LAUNCH.rank:
        if what == "stop_tracing":
            before(Trainer, "_update", lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
        else:
            before(Loop, "own_batch", lambda _, step: step == STEP and HARM[what]())
    return captcha.main(flags)


def fail() -> None:
    """A bug of one rank."""
    raise RuntimeError("a bug of this rank")


HARM: dict[str, Callable[[], None]] = {
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raise": fail,
    "hang": lambda: time.sleep(1000),
}


def before(owner: type, name: str, harm: Callable[..., object]) -> None:
    """Lets a method do harm before it does its work."""
    real = getattr(owner, name)

    def method(*args: Any) -> Any:
        harm(*args)
        return real(*args)

    setattr(owner, name, method)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
