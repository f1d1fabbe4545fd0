"""Rank, size and host as the launcher's environment variables tell them, before MPI is loaded."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from data_tools.errors import CONFIG, DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnv:
    """Where this process stands among those that the launcher started."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int


HOROVODRUN_GLOO = "horovodrun --gloo"
# Variables for rank, size, local rank and local size. horovodrun --gloo comes first: it may itself
# run inside an MPI job.
LAUNCHERS = {
    HOROVODRUN_GLOO: (
        "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}  # fmt: skip
ALONE = LaunchEnv(launcher="none", rank=0, size=1, local_rank=0, local_size=1)
OTHER_LAUNCHERS = ("PMIX_RANK", "PMI_RANK")
SLURM_TASKS = "SLURM_STEP_NUM_TASKS"


def is_first_rank() -> bool:
    """Tells whether this process, of those that the launcher started, is the one that tells."""
    try:
        return read().rank == 0
    except DataError:
        return True


def shows_bars() -> bool:
    """Tells whether standard output is a person's terminal, where a bar can be redrawn.

    Under a launcher it may look like one (mpirun gives each rank one), but is read by the launcher,
    which would pass on a thousand redrawn bars.
    """
    try:
        return sys.stdout.isatty() and read().launcher == "none"
    except DataError:
        return False


def read(environ: Mapping[str, str] = os.environ) -> LaunchEnv:
    """Returns what the launcher says; one process without a launcher is rank 0 of 1.

    Raises:
        DataError: CONFIG under a launcher whose ranks can't be told, where each rank would take
            itself for the only one, or where a variable of the launcher isn't a number.
    """
    for launcher, names in LAUNCHERS.items():
        if all(name in environ for name in names):
            rank, size, local_rank, local_size = (_number(environ, name) for name in names)
            return LaunchEnv(
                launcher=launcher, rank=rank, size=size,
                local_rank=local_rank, local_size=local_size,
            )  # fmt: skip
    unknown = any(name in environ for name in OTHER_LAUNCHERS)
    if SLURM_TASKS in environ:
        unknown = _number(environ, SLURM_TASKS) > 1
    if unknown:
        raise DataError(
            CONFIG, "launcher", "srun, or another that isn't known here, started this process",
            fix="start the ranks with horovodrun or mpirun, under Slurm inside salloc or sbatch",
        )  # fmt: skip
    return ALONE


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise DataError(
            CONFIG, name, f"{environ[name]!r} is not a whole number",
            fix="unset it, or start the ranks with horovodrun or mpirun",
        ) from None  # fmt: skip
