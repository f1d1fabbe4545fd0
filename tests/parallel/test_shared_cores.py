"""Jobs of one host keep to the cores that each was given, and take no more threads than those."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

SHOW = """
import os
from data_tools import launch_env
from hvd_train import start, threads
launch = launch_env.read()
lines = start.describe(launch, threads.configure(launch))
print("\\n".join([f"cores {sorted(os.sched_getaffinity(0))}", *lines]), flush=True)
"""
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
ENV = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    **dict.fromkeys(THREADS), "OMPI_MCA_mpi_yield_when_idle": None,
}  # fmt: skip


@pytest.fixture
def on_core(run_cli: Callable[..., Any]) -> Callable[[int, Sequence[object]], str]:
    """`on_core(core, launcher)` shows the cores and settings of a job that was given one core."""

    def show(core: int, launcher: Sequence[object]) -> str:
        command = ["taskset", "-c", core, *launcher, sys.executable, "-c", SHOW]
        done = run_cli(command, env=ENV)
        assert done.rc == 0, done.stderr
        return str(done.stdout)

    return show


@pytest.fixture
def cores() -> list[int]:
    """The first and the last core that this process may use."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("two jobs with a core each need two cores")
    return [found[0], found[-1]]


ONE_THREAD = " ".join(f"{name}=1" for name in THREADS)


def test_two_jobs_by_mpirun_keep_to_the_core_that_each_was_given(
    on_core: Callable[..., str], cores: list[int]
) -> None:
    for core in cores:
        shown = on_core(core, ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", 2])
        assert shown.count(f"cores [{core}]\n") == 2
        assert shown.count(f"ranks: 2, 2 on this host, launcher Open MPI; {ONE_THREAD} ") == 2
        assert shown.count("OMPI_MCA_mpi_yield_when_idle=1\n") == 2
        assert "warning" not in shown


def test_two_jobs_of_one_process_keep_to_the_core_that_each_was_given(
    on_core: Callable[..., str], cores: list[int]
) -> None:
    for core in cores:
        shown = on_core(core, [])
        assert shown.startswith(f"cores [{core}]\nranks: 1, 1 on this host, launcher none; ")
        assert ONE_THREAD in shown


def test_a_rank_that_mpirun_bound_to_a_core_that_it_was_not_given_says_so(
    on_core: Callable[..., str], cores: list[int]
) -> None:
    shown = on_core(cores[1], ["mpirun", "--bind-to", "core", "-np", 1])
    assert shown.endswith(
        f"\nwarning: Open MPI bound this rank to core {cores[0]}, but was itself given {cores[1]}: "
        "mpirun --bind-to none keeps to it\n"
    )
