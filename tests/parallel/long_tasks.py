"""Ranks share tasks of a minute each, one of which fails at once: `long_tasks.py NUMBER HOW`.

HOW is `error`, `interrupt` or `kill`, in that task; or `early` or `plan`, where before the tasks
rank NUMBER meets an error or finds other tasks; or `long`, where nothing fails or takes time and
results are large. The folder is `set` in the current one.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from data_tools import launch_env, ranks
from data_tools.errors import INPUT, DataError, run_main
from data_tools.ranks import Ranks
from data_tools.writer import atomic_folder

FAILING, HOW = int(sys.argv[1]), sys.argv[2]
FILLER = "x" * 1_000_000
"""More than MPI sends before the other side asks for it."""


def work(numbers: Sequence[int]) -> list[str]:
    """Takes a minute for each, but fails."""
    for number in numbers:
        if number == FAILING and HOW == "interrupt":
            signal.raise_signal(signal.SIGINT)
        if number == FAILING and HOW == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == FAILING and HOW == "error":
            raise DataError(INPUT, f"task {number}", "refused", fix="none")
        if HOW != "long":
            time.sleep(60)
    return [f"{number}{FILLER}" for number in numbers]


def main(ranks: Ranks) -> None:
    """What all ranks do."""
    if HOW == "early" and ranks.rank == FAILING:
        raise DataError(INPUT, "x" * 100_000, "refused", fix="none")
    found = ranks.rank if HOW == "plan" and ranks.rank == FAILING else -1
    with atomic_folder(Path("set"), rank=ranks.rank):
        done = ranks.share(
            range(6), work, plan=[found, FILLER], to_json=lambda text: text,
            from_json=lambda text: text,
        )  # fmt: skip
        if ranks.rank == 0:
            print([int(text.removesuffix(FILLER)) for text in done], flush=True)


if __name__ == "__main__":
    sys.exit(run_main(lambda: ranks.run(launch_env.read(), main)))
