"""The environments were recorded with Horovod 0.28.1, Open MPI 4.1.8 and 5.0.8, MPICH 5.0.2 and
Slurm 22.05.

Left out are only paths and addresses, from which no rank is read.
"""

import socket

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
    "PMIX_HOSTNAME": "vm",
    "PMIX_NAMESPACE": "8781825",
    "PMIX_RANK": "1",
    "PMIX_VERSION": "3.2.5a1",
}
# mpirun -np 2 of Open MPI 5, rank 1
MPIRUN_5 = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_MCA_num_procs": "2",
    "OMPI_NUM_APP_CTX": "1",
    "OMPI_TOOL_NAME": "mpirun",
    "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_VERSION": "5.0.8",
    "OMPI_WORLD_LOCAL_SIZE": "2",
    "OMPI_WORLD_SIZE": "2",
    "PMIX_HOSTNAME": "vm",
    "PMIX_NAMESPACE": "prterun-vm-28688@1",
    "PMIX_RANK": "1",
    "PMIX_VERSION": "5.0.8a1",
    "PRTE_LAUNCHED": "1",
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
# srun --mpi=none -n2, task 1
SRUN = {
    "SLURMD_NODENAME": "vm",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_GTIDS": "0,1",
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NODELIST": "vm",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2",
}
# what --mpi=pmix and --mpi=pmi2 add to it
PMIX = {
    "PMIX_HOSTNAME": "vm",
    "PMIX_NAMESPACE": "slurm.pmix.1.0",
    "PMIX_RANK": "1",
    "PMIX_VERSION": "4.2.2rc2",
    "SLURM_MPI_TYPE": "pmix",
    "SLURM_PMIX_MAPPING_SERV": "(vector,(0,1,2))",
}
PMI2 = {"PMI_FD": "13", "PMI_JOBID": "2.0", "PMI_RANK": "1", "PMI_SIZE": "2"}
# sbatch --ntasks=2, the script itself
SBATCH = {
    name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP_")
} | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "launcher", "host"),
    [
        (HOROVODRUN_GLOO, "horovodrun --gloo", "localhost"),
        (MPIRUN, "Open MPI", "vm"),
        (MPIRUN_5, "Open MPI", "vm"),
        (MPICH, "MPICH", "localhost"),
        (SRUN | PMIX, "srun (PMIx)", "vm"),
        (SRUN | PMI2, "srun (PMI2)", "vm"),
        # mpirun and mpiexec inside sbatch start their daemons as one task a host.
        (SRUN | PMIX | MPIRUN, "Open MPI", "vm"),
        (SRUN | PMI2 | MPICH, "MPICH", "localhost"),
    ],
)
def test_each_launcher_is_read(environ: dict[str, str], launcher: str, host: str) -> None:
    assert launch_env.read(environ) == LaunchEnv(
        launcher=launcher, rank=1, size=2, local_rank=1, local_size=2, host=host
    )


def test_the_host_is_this_one_where_the_launcher_tells_none() -> None:
    environ = {name: value for name, value in MPIRUN.items() if name != "PMIX_HOSTNAME"}
    assert launch_env.read(environ).host == socket.gethostname() == ALONE.host


def test_tasks_of_srun_on_two_hosts_are_counted_by_host() -> None:
    environ = SRUN | PMIX | {
        "SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5", "SLURM_LOCALID": "1",
        "SLURM_GTIDS": "3,4", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "3,2",
        "SLURMD_NODENAME": "host2",
    }  # fmt: skip
    assert launch_env.read(environ) == LaunchEnv(
        launcher="srun (PMIx)", rank=4, size=5, local_rank=1, local_size=2, host="host2"
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
        SBATCH,
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


@pytest.mark.parametrize("environ", [{"PMIX_RANK": "3"}, {"PMI_RANK": "0"}])
def test_ranks_of_an_unknown_launcher_do_not_take_themselves_for_the_only_one(
    environ: dict[str, str],
) -> None:
    with pytest.raises(DataError) as caught:
        launch_env.read(environ)
    assert str(caught.value) == (
        f"error: CONFIG: launcher: one that isn't known here started this process: "
        f"{next(iter(environ))} is set; start the ranks with horovodrun, mpirun or srun"
    )


def test_tasks_of_srun_that_could_not_find_each_other_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        launch_env.read(SRUN)
    assert str(caught.value) == (
        "error: CONFIG: srun: its 2 tasks have no PMIx, by which they would find each other; "
        "srun --mpi=pmix, or mpirun inside salloc or sbatch; srun --mpi=list tells which there are"
    )


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE"),
        ({"SLURM_STEP_NUM_TASKS": "two"}, "SLURM_STEP_NUM_TASKS"),
        (SRUN | PMIX | {"SLURM_PROCID": "two"}, "SLURM_PROCID"),
    ],
)
def test_a_variable_that_is_no_number_is_named(environ: dict[str, str], name: str) -> None:
    with pytest.raises(DataError) as caught:
        launch_env.read(environ)
    assert str(caught.value) == (
        f"error: CONFIG: {name}: 'two' is not a whole number; "
        "unset it, or start the ranks with horovodrun or mpirun"
    )
