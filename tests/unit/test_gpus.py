from itertools import pairwise

import pytest

from data_tools.errors import DataError
from data_tools.launch_env import LaunchEnv
from hvd_train import gpus


def launched(local_size: int) -> LaunchEnv:
    return LaunchEnv(
        launcher="Open MPI", rank=0, size=8, local_rank=0, local_size=local_size, host="host1"
    )


def chosen(seen: list[list[str]]) -> list[str]:
    """The GPU that each rank takes."""
    launch = launched(len(seen))
    return [seen[rank][gpus.choose(seen, rank, launch)] for rank in range(len(seen))]


@pytest.mark.parametrize("num_gpus", [4, 8])
def test_ranks_that_see_all_gpus_take_the_one_of_their_local_number(num_gpus: int) -> None:
    host1, host2 = ([f"{host}:{i}" for i in range(num_gpus)] for host in ("host1", "host2"))
    assert chosen([host1] * 4 + [host2] * 4) == [*host1[:4], *host2[:4]]


def test_ranks_that_see_one_gpu_of_their_own_take_it() -> None:
    assert chosen([["a"], ["b"], ["c"], ["d"]]) == ["a", "b", "c", "d"]


def test_ranks_of_two_hosts_in_turn_take_different_gpus_of_each() -> None:
    assert chosen([["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"]]) == ["a", "c", "b", "d"]


def test_ranks_that_see_two_gpus_of_their_own_take_the_first() -> None:
    assert chosen([["a", "b"], ["c", "d"]]) == ["a", "c"]


def test_a_rank_without_gpus_takes_none_from_others() -> None:
    assert gpus.choose([[], ["a"]], 1, launched(2)) == 0


@pytest.mark.parametrize(
    ("seen", "rank"), [([["a", "b"]] * 3, 2), ([["a"]] * 3, 1), ([["a"]] * 3, 2)]
)
def test_a_rank_whose_gpus_are_all_taken_is_refused(seen: list[list[str]], rank: int) -> None:
    with pytest.raises(DataError) as caught:
        gpus.choose(seen, rank, launched(3))
    assert str(caught.value) == (
        f"error: CONFIG: host1: 3 ranks, but rank {rank} sees {len(seen[rank])} GPUs, "
        "which lower ranks take; start one rank a GPU, show each all GPUs or one of its own, "
        "or none: CUDA_VISIBLE_DEVICES=-1"
    )


def test_gpus_have_names_of_their_own_that_all_ranks_of_a_host_find_alike() -> None:
    assert gpus.identities(0, "host1") == []
    # More than any host has, for which there are no UUIDs.
    names = gpus.identities(99, "host1")
    assert names == gpus.identities(99, "host1")
    assert all(one != other for one, other in pairwise(sorted(names)))
    assert not set(names) & set(gpus.identities(99, "host2"))
