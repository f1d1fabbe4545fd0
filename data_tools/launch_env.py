"""Rank, size and host as the launcher's environment variables tell them, before MPI is loaded."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from data_tools.errors import CONFIG, DataError

HOST = socket.gethostname()


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEnv:
    """Where this process stands among those that the launcher started."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str = HOST
    """By the launcher's name for it, where it tells one."""


HOROVODRUN_GLOO = "horovodrun --gloo"
# Variables for rank, size, local rank, local size and host. horovodrun --gloo comes first: it may
# itself run inside an MPI job; srun isn't among them, since mpirun starts its daemons with it.
LAUNCHERS = {
    HOROVODRUN_GLOO: (
        "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
        "HOROVOD_HOSTNAME",
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_HOSTNAME"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_HOSTNAME",
    ),
}  # fmt: skip
ALONE = LaunchEnv(launcher="none", rank=0, size=1, local_rank=0, local_size=1)
# By which the ranks find each other, and the launcher's name for each.
PROCESS_MANAGERS = {"PMIX_RANK": "srun (PMIx)", "PMI_RANK": "srun (PMI2)"}
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
    for launcher, (*names, host) in LAUNCHERS.items():
        if all(name in environ for name in names):
            rank, size, local_rank, local_size = (_number(environ, name) for name in names)
            return LaunchEnv(
                launcher=launcher, rank=rank, size=size,
                local_rank=local_rank, local_size=local_size, host=environ.get(host, HOST),
            )  # fmt: skip
    manager = next((name for name in PROCESS_MANAGERS if name in environ), None)
    if SLURM_TASKS in environ:
        return _of_srun(environ, manager)
    if manager is not None:
        raise DataError(
            CONFIG, "launcher", f"one that isn't known here started this process: {manager} is set",
            fix="start the ranks with horovodrun, mpirun or srun",
        )  # fmt: skip
    return ALONE


def _of_srun(environ: Mapping[str, str], manager: str | None) -> LaunchEnv:
    """Where srun put this task, by what each task is told whether or not it has a manager."""
    size = _number(environ, SLURM_TASKS)
    if size == 1:
        return ALONE
    if manager is None:
        raise DataError(
            CONFIG, "srun", f"its {size} tasks have no PMIx, by which they would find each other",
            fix="srun --mpi=pmix, or mpirun inside salloc or sbatch; srun --mpi=list tells which "
            "there are",
        )  # fmt: skip
    return LaunchEnv(
        launcher=PROCESS_MANAGERS[manager], rank=_number(environ, "SLURM_PROCID"), size=size,
        local_rank=_number(environ, "SLURM_LOCALID"),
        # The ranks on this host, joined by commas.
        local_size=len(environ.get("SLURM_GTIDS", "").split(",")),
        host=environ.get("SLURMD_NODENAME", HOST),
    )  # fmt: skip


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        raise DataError(
            CONFIG, name, f"{environ.get(name, '')!r} is not a whole number",
            fix="unset it, or start the ranks with horovodrun or mpirun",
        ) from None  # fmt: skip
