"""Ranks share tasks of a minute each, one of which fails at once: `long_tasks.py NUMBER`.

With a second word the rank that has this task is interrupted in place.
"""

import signal
import sys
import time

from data_tools import launch_env, ranks
from data_tools.errors import INPUT, DataError, run_main
from data_tools.workers import run_tasks

FAILING = int(sys.argv[1])


def work(number: int) -> int:
    """Takes a minute, unless it fails."""
    if number == FAILING and sys.argv[2:]:
        signal.raise_signal(signal.SIGINT)
    if number == FAILING:
        raise DataError(INPUT, f"task {number}", "refused", fix="none")
    time.sleep(60)
    return number


def main() -> None:
    """What rank 0 does."""
    list(run_tasks(work, range(6), workers=1, title="testing"))


if __name__ == "__main__":
    sys.exit(run_main(lambda: ranks.run(launch_env.read(), "__main__", main)))
