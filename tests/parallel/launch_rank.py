"""Trains as captcha.py does, on hosts that come and go: `launch_rank.py FOLDER FLAGS...`.

Once each, in turn: before step 8 the hosts shrink to 2 slots, before step 16 rank 1 is killed, and
before step 24 they grow to 4; the chief then waits until it is asked to stop. FOLDER/hosts is what
the hosts script prints. Each process keeps the ids of its batches in FOLDER/ids-*.jsonl. One rank
alone isn't interrupted.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_tools import launch_env
from hvd_train import captcha, stop, threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

from hvd_train.train import Loop

HOSTS = {8: "localhost:2", 24: "localhost:4"}
KILLED_BEFORE = 16


def interrupt(folder: Path, step: int) -> None:
    """Lets happen what is due before a step, unless it has happened."""
    if step not in (*HOSTS, KILLED_BEFORE) or LAUNCH.rank != (step == KILLED_BEFORE):
        return
    try:
        (folder / f"done-{step}").touch(exist_ok=False)
    except FileExistsError:
        return
    if step == KILLED_BEFORE:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "hosts.new").write_text(HOSTS[step])
    (folder / "hosts.new").rename(folder / "hosts")
    while stop.signals().first is None:
        time.sleep(0.01)


def main(folder: Path, flags: list[str]) -> int:
    """Trains, with a look at each batch."""
    real = Loop.own_batch
    with (folder / f"ids-{LAUNCH.size}-{os.getpid()}.jsonl").open("w") as file:

        def own_batch(loop: Loop, step: int) -> Any:
            batch = real(loop, step)
            file.write(json.dumps([step, batch.ids.tolist()]) + "\n")
            file.flush()
            if LAUNCH.size > 1:
                interrupt(folder, step)
            return batch

        Loop.own_batch = own_batch  # type: ignore[method-assign]
        return captcha.main(flags)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
