"""Threads and library settings, chosen before TensorFlow and MPI load and never over the user's.

Open MPI waits by spinning, which takes the core from a rank that computes: where ranks fill the
cores, each gets its share of threads and yields its core while it waits.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from data_tools.launch_env import LaunchEnv


def threads_a_rank(cores_in_mask: int, cores_of_host: int, launch: LaunchEnv, bound: bool) -> int:
    """Returns the compute threads of one rank, at least 1.

    Args:
        cores_in_mask: cores that this process may run on (its affinity mask).
        cores_of_host: all cores of the host.
        launch: how many ranks share the host.
        bound: True when the launcher gave each rank a mask of its own; otherwise the ranks of a
            host share one mask.
    """
    if bound:
        return max(1, min(cores_in_mask, cores_of_host // launch.local_size))
    return max(1, cores_in_mask // launch.local_size)


def is_bound(environ: Mapping[str, str] = os.environ) -> bool:
    """Tells whether Open MPI, or Slurm's srun, bound each rank to cores of its own."""
    if "SLURM_STEP_ID" in environ and "OMPI_COMM_WORLD_SIZE" not in environ:
        # A step without masks lets each task use all cores that the job has on the node.
        bound_to = environ.get("SLURM_CPU_BIND_TYPE", "")
        return bound_to.startswith(("mask_cpu", "map_cpu"))
    return environ.get("OMPI_MCA_orte_bound_at_launch") == "1"


def cores_given(environ: Mapping[str, str] = os.environ) -> set[int]:
    """The cores that this process, or the launcher which bound it to some, was given.

    Open MPI counts a host's cores from the first one on, whatever its own mask is (`taskset`).
    """
    own = os.sched_getaffinity(0)
    if not is_bound(environ) or "OMPI_COMM_WORLD_SIZE" not in environ:
        return own
    try:
        return os.sched_getaffinity(os.getppid())
    except OSError:  # it has ended
        return own


def quota_of(cpu_max: str) -> int | None:
    """The cores of whose time a container may use, by its cgroup's `cpu.max`; None without limit.

    Unlike a mask it doesn't keep a process from starting a thread for each core of the host, which
    are then all stopped for a part of each tenth of a second.
    """
    quota, _, period = cpu_max.strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal()):
        return None  # "max", or no such file
    return max(1, -(-int(quota) // int(period)))


def _quota() -> int | None:
    try:
        return quota_of(Path("/sys/fs/cgroup/cpu.max").read_text())
    except (OSError, ValueError):
        return None


def settings(threads: int, cores_in_use: int, launch: LaunchEnv) -> dict[str, str]:
    """Returns the environment variables for a rank of that many threads."""
    chosen = {
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if launch.launcher == "none":
        # One process needs no MPI, whose start would want its daemon on PATH.
        chosen |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    if launch.local_size > 1 and launch.local_size * threads >= cores_in_use:
        chosen["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return chosen


def configure(launch: LaunchEnv, environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Sets what the user left unset and returns all the settings in force.

    Must run before TensorFlow or MPI are imported, since both read their settings once.
    """
    most = _quota() or sys.maxsize
    cores = min(len(os.sched_getaffinity(0)), most)
    bound = is_bound(environ)
    host_cores = min(os.cpu_count() or 1, most)
    threads = threads_a_rank(cores, host_cores, launch, bound)
    for name, value in settings(threads, host_cores if bound else cores, launch).items():
        environ.setdefault(name, value)
    names = settings(threads, 0, launch)
    return {name: environ[name] for name in names if name in environ}
