"""Threads and library settings: a share of the cores each, and never over what the user set."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools.launch_env import ALONE, LaunchEnv
from hvd_train import start
from hvd_train.threads import configure, is_bound, quota_of, settings, threads_a_rank


def launched(local_size: int, launcher: str = "Open MPI") -> LaunchEnv:
    return LaunchEnv(
        launcher=launcher, rank=0, size=local_size, local_rank=0, local_size=local_size
    )


@pytest.mark.parametrize(
    ("mask", "host", "ranks", "bound", "threads"),
    [
        (8, 8, 1, False, 8),
        (8, 8, 2, False, 4),
        (8, 8, 3, False, 2),
        (2, 2, 4, False, 1),  # more ranks than cores
        (4, 64, 2, False, 2),  # a container's or taskset's mask, shared by its ranks
        (1, 8, 2, True, 1),  # the launcher gave each rank one core
        (4, 8, 2, True, 4),  # or a socket
        (8, 8, 4, True, 2),  # bound, yet all to the same cores
    ],
)
def test_a_rank_gets_its_share_of_the_cores(
    mask: int, host: int, ranks: int, bound: bool, threads: int
) -> None:
    assert threads_a_rank(mask, host, launched(ranks), bound) == threads


@pytest.mark.parametrize(
    ("environ", "bound"),
    [
        ({}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_bound_at_launch": "1"}, True),
        ({"SLURM_STEP_ID": "0"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_CPU_BIND_TYPE": "none"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_CPU_BIND_TYPE": "mask_cpu:"}, True),
        # mpirun in a job, whose daemons srun has started.
        ({"SLURM_STEP_ID": "0", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "OMPI_COMM_WORLD_SIZE": "2"},
         False),
    ],
)  # fmt: skip
def test_a_launcher_tells_whether_each_rank_has_cores_of_its_own(
    environ: dict[str, str], bound: bool
) -> None:
    assert is_bound(environ) is bound


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None), ("400000 100000\n", 4), ("150000 100000\n", 2),
        ("1000 100000", 1), ("", None), ("400000", None),
    ],
)  # fmt: skip
def test_a_container_s_share_of_time_counts_as_cores(text: str, cores: int | None) -> None:
    assert quota_of(text) == cores


@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 64), st.booleans())
def test_a_rank_has_at_least_one_thread_and_no_more_than_its_mask(
    mask: int, more: int, ranks: int, bound: bool
) -> None:
    assert 1 <= threads_a_rank(mask, mask + more, launched(ranks), bound) <= mask


def test_ranks_that_fill_the_cores_yield_while_they_wait() -> None:
    assert settings(4, 8, launched(2))["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert settings(1, 2, launched(4))["OMPI_MCA_mpi_yield_when_idle"] == "1"


def test_ranks_that_leave_cores_free_do_not_yield() -> None:
    assert "OMPI_MCA_mpi_yield_when_idle" not in settings(1, 8, launched(2))


def test_one_rank_has_nobody_to_yield_to() -> None:
    assert "OMPI_MCA_mpi_yield_when_idle" not in settings(8, 8, launched(1))


def test_only_a_process_without_a_launcher_does_without_mpi() -> None:
    assert settings(2, 2, ALONE)["HOROVOD_CONTROLLER"] == "gloo"
    for launcher in ("Open MPI", "MPICH", "horovodrun --gloo"):
        assert "HOROVOD_CONTROLLER" not in settings(2, 2, launched(1, launcher))


def test_the_threads_reach_tensorflow_and_the_math_library() -> None:
    chosen = settings(3, 12, launched(2))
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    assert [chosen[name] for name in names] == ["3", "3", "3"]
    assert chosen["TF_ENABLE_ONEDNN_OPTS"] == "1"


EVERY_NAME = sorted(set(settings(1, 1, ALONE)) | set(settings(1, 1, launched(2))))


@pytest.mark.parametrize("launch", [ALONE, launched(64)], ids=["alone", "64 ranks"])
@pytest.mark.parametrize("name", EVERY_NAME)
def test_what_the_user_set_is_never_changed(name: str, launch: LaunchEnv) -> None:
    environ = {name: "the user's"}
    configure(launch, environ)
    assert environ[name] == "the user's"


def test_the_settings_told_are_those_in_force_the_users_among_them() -> None:
    environ = {"OMP_NUM_THREADS": "7", "OMPI_MCA_mpi_yield_when_idle": "0", "PATH": "/bin"}
    told = configure(launched(64), environ)
    assert told == {name: value for name, value in environ.items() if name != "PATH"}
    assert (told["OMP_NUM_THREADS"], told["OMPI_MCA_mpi_yield_when_idle"]) == ("7", "0")


def test_an_affinity_mask_bounds_the_threads() -> None:
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        environ: dict[str, str] = {}
        configure(ALONE, environ)
    finally:
        os.sched_setaffinity(0, mask)
    assert environ["TF_NUM_INTRAOP_THREADS"] == "1"


def test_alone_all_cores_of_the_mask_are_used() -> None:
    environ: dict[str, str] = {}
    configure(ALONE, environ)
    assert environ["TF_NUM_INTRAOP_THREADS"] == str(len(os.sched_getaffinity(0)))


def test_the_line_of_the_start_tells_ranks_launcher_and_settings() -> None:
    launch = LaunchEnv(launcher="Open MPI", rank=0, size=8, local_rank=0, local_size=4)
    assert start.describe(launch, {"OMP_NUM_THREADS": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}) == [
        "ranks: 8, 4 on this host, launcher Open MPI; OMP_NUM_THREADS=2 TF_ENABLE_ONEDNN_OPTS=1"
    ]
