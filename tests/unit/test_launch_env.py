"""The environments were recorded with Horovod 0.28.1, Open MPI 4.1.8 and MPICH 5.

Left out are only paths and addresses, from which no rank is read.
"""

import pytest

from data_tools import launch_env
from data_tools.errors import DataError
from data_tools.launch_env import ALONE, LaunchEnv

# horovodrun -np 2 --gloo, rank 1
HOROVODRUN_GLOO = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
    "HOROVOD_CROSS_RANK": "0",
    "HOROVOD_CROSS_SIZE": "1",
    "HOROVOD_GLOO_IFACE": "lo",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "23115",
    "HOROVOD_HOSTNAME": "localhost",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
}
# mpirun -np 2, rank 1; horovodrun -np 2 over MPI gives the same
MPIRUN = {
    "OMPI_APP_CTX_NUM_PROCS": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_FIRST_RANKS": "0",
    "OMPI_MCA_orte_app_num": "0",
    "OMPI_MCA_orte_ess_node_rank": "1",
    "OMPI_MCA_orte_ess_num_procs": "2",
    "OMPI_MCA_orte_num_nodes": "1",
    "OMPI_NUM_APP_CTX": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "PMIX_RANK": "1",
}
# mpiexec -np 2 of MPICH, rank 1
MPICH = {
    "MPI_LOCALNRANKS": "2",
    "MPI_LOCALRANKID": "1",
    "PMI_FD": "11",
    "PMI_HOSTNAME": "localhost",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
}


def test_horovodrun_gloo_is_read() -> None:
    assert launch_env.read(HOROVODRUN_GLOO) == LaunchEnv(
        launcher="horovodrun --gloo", rank=1, size=2, local_rank=1, local_size=2
    )


def test_mpirun_is_read() -> None:
    assert launch_env.read(MPIRUN) == LaunchEnv(
        launcher="Open MPI", rank=1, size=2, local_rank=1, local_size=2
    )


def test_mpich_is_read() -> None:
    assert launch_env.read(MPICH) == LaunchEnv(
        launcher="MPICH", rank=1, size=2, local_rank=1, local_size=2
    )


def test_the_four_numbers_are_not_mixed_up() -> None:
    # Rank 5 of 8 on the second of two hosts with 4 ranks each.
    elsewhere = LaunchEnv(launcher="Open MPI", rank=5, size=8, local_rank=1, local_size=4)
    environ = {
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    }
    assert launch_env.read(environ) == elsewhere


def test_horovodrun_gloo_inside_an_mpi_job_counts_and_not_the_job() -> None:
    environ = {**MPIRUN, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    assert launch_env.read({**environ, **HOROVODRUN_GLOO}).launcher == "horovodrun --gloo"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HOME": "/root", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0", "PMI_RANK": "0"},
        # Settings of a user's shell, set for Horovod and not by a launcher
        {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CYCLE_TIME": "1", "HOROVOD_GLOO_IFACE": "eth0"},
        {"HOROVOD_RANK": "1"},
    ],
)
def test_a_process_without_a_launcher_is_rank_0_of_1(environ: dict[str, str]) -> None:
    assert launch_env.read(environ) == ALONE
    assert LaunchEnv(launcher="none", rank=0, size=1, local_rank=0, local_size=1) == ALONE


def test_the_environment_of_this_process_is_read_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in HOROVODRUN_GLOO.items():
        monkeypatch.setenv(name, value)
    assert launch_env.read().rank == 1


@pytest.mark.parametrize(
    "environ", [{"PMIX_RANK": "3"}, {"PMI_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "8"}]
)
def test_ranks_of_an_unknown_launcher_do_not_take_themselves_for_the_only_one(
    environ: dict[str, str],
) -> None:
    with pytest.raises(DataError) as caught:
        launch_env.read(environ)
    assert str(caught.value) == (
        "error: CONFIG: launcher: srun, or another that isn't known here, started this process; "
        "start the ranks with horovodrun or mpirun, under Slurm inside salloc or sbatch"
    )


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE"),
        ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_a_variable_that_is_no_number_is_named(environ: dict[str, str], name: str) -> None:
    with pytest.raises(DataError) as caught:
        launch_env.read(environ)
    assert str(caught.value) == (
        f"error: CONFIG: {name}: 'two' is not a whole number; "
        "unset it, or start the ranks with horovodrun or mpirun"
    )
