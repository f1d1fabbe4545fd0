"""What can be said of ranks without starting any."""

import socket

import pytest
import tensorflow as tf

from data_tools.errors import CONFIG, INTEGRITY, DataError
from hvd_train import dist
from hvd_train.dist import World, agreed, peer_failures


def world(local_rank: int, local_size: int) -> World:
    return World(
        rank=local_rank + 8, size=local_size + 8, local_rank=local_rank, local_size=local_size
    )


ALONE = World(rank=0, size=1, local_rank=0, local_size=1)


def test_only_rank_0_of_all_hosts_is_the_chief() -> None:
    assert ALONE.is_chief
    assert not world(0, 4).is_chief


@pytest.mark.parametrize(
    ("where", "local_size", "shown"),
    [
        ("/data/x", 1, f"{socket.gethostname()}:/data/x"),
        ("/data/x", 2, "/data/x"),
        ("--batch-size", 1, "--batch-size"),
        (f"{socket.gethostname()}:/data", 1, f"{socket.gethostname()}:/data"),
    ],
)
def test_a_path_has_its_host_before_it_where_the_ranks_are_on_several(
    where: str, local_size: int, shown: str
) -> None:
    ranks = World(rank=1, size=2, local_rank=0, local_size=local_size)
    fault = dist.on_this_host(DataError(INTEGRITY, where, "wrong", fix="mend it"), ranks)
    assert str(fault) == f"error: INTEGRITY: {shown}: wrong; mend it"


def test_one_rank_alone_raises_its_own_error() -> None:
    fault = DataError(CONFIG, "flag", "wrong", fix="mend it")
    with pytest.raises(DataError) as caught, agreed(ALONE):
        raise fault
    assert caught.value is fault


def test_an_error_of_the_system_becomes_one_line() -> None:
    with pytest.raises(DataError) as caught, agreed(ALONE):
        open("/nowhere/file")  # noqa: PTH123, SIM115
    assert str(caught.value) == (
        "error: INPUT: /nowhere/file: No such file or directory; "
        "check that the path exists and its permissions"
    )


def test_a_bug_of_a_lone_rank_is_shown_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), agreed(ALONE):
        _ = 1 / 0


def test_an_error_of_tensorflow_alone_is_not_laid_to_another_rank() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError), peer_failures():
        tf.reshape(tf.zeros(3), [2])


def test_a_data_error_passes_through() -> None:
    fault = DataError(INTEGRITY, "shard", "broken", fix="mend it")
    with pytest.raises(DataError) as caught, peer_failures():
        raise fault
    assert caught.value is fault


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1, "epochs": 2}, "seed = 1, rank 0 has 0"),
        ({"seed": 1, "epochs": 3}, "epochs = 3, rank 0 has 2"),
        ({"epochs": 2}, "seed = None, rank 0 has 0"),
        ("text", "text, rank 0 has {'seed': 0, 'epochs': 2}"),
    ],
)
def test_the_first_difference_by_name_is_told(other: object, said: str) -> None:
    assert dist._difference({"seed": 0, "epochs": 2}, other) == said
