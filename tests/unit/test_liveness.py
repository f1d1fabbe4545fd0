"""Who keeps the others waiting too long, by times that the tests set."""

import pytest

from hvd_train import liveness
from hvd_train.liveness import FIRST_STEP, STARTING, TRAINING, Peer, judge

LIMIT = 120.0
NOW = 1_000_000.0


def peer(
    rank: int, *, arrived: int = 7, doing: str = TRAINING, heard: float = 0, moved: float = 0
) -> Peer:
    """A rank that was last heard and last moved so many seconds ago."""
    return Peer(
        rank=rank, host=f"host{rank}", pid=rank + 40, heard=NOW - heard, moved=NOW - moved,
        arrived=arrived, doing=doing,
    )  # fmt: skip


def verdict(*peers: Peer) -> str:
    error = judge(peers, NOW, LIMIT)
    return "" if error is None else str(error)


def hangs(rank: int, doing: str, seconds: int) -> str:
    return (
        f"error: RANK: rank {rank} on host{rank}: process {rank + 40} lives, but is {doing} for "
        f"{seconds} s while others wait; see whether its disk answers; --resume goes on from the "
        "last checkpoint, if there is one; --stall-seconds sets the limit"
    )


def test_ranks_that_are_heard_and_move_are_not_at_fault() -> None:
    assert verdict(peer(0), peer(1, arrived=8), peer(2)) == ""


@pytest.mark.parametrize("doing", [STARTING, FIRST_STEP, TRAINING, "evaluating"])
def test_a_rank_that_is_silent_beyond_the_limit_is_named_whatever_it_does(doing: str) -> None:
    assert verdict(peer(0), peer(1, doing=doing, heard=119)) == ""
    assert verdict(peer(0), peer(1, doing=doing, heard=121)) == (
        "error: RANK: rank 1 on host1: process 41 is silent for 120 s; see whether it is stopped, "
        "its host out of memory or cut off; --resume goes on from the last checkpoint, if there is "
        "one; --stall-seconds sets the limit"
    )


def test_a_rank_that_hangs_while_others_wait_is_named() -> None:
    waiting = peer(0, arrived=8, moved=121)
    assert verdict(waiting, peer(1, moved=119)) == ""
    assert verdict(waiting, peer(1, moved=121)) == hangs(1, "training", 120)


def test_the_chief_that_hangs_is_named_too() -> None:
    assert verdict(peer(0, moved=300), peer(1, arrived=8, moved=300)) == hangs(0, "training", 120)


def test_a_rank_is_not_at_fault_before_the_others_have_waited_as_long() -> None:
    assert verdict(peer(0, arrived=8, moved=10), peer(1, moved=1000)) == ""


@pytest.mark.parametrize("doing", [FIRST_STEP, "evaluating", "saving a checkpoint"])
def test_work_that_is_known_to_be_long_has_ten_times_the_limit(doing: str) -> None:
    waiting = peer(0, arrived=8, moved=5000)
    assert verdict(waiting, peer(1, doing=doing, moved=1199)) == ""
    assert verdict(waiting, peer(1, doing=doing, moved=1201)) == hangs(1, doing, 1200)


def test_before_the_first_step_a_rank_may_download_as_long_as_it_needs() -> None:
    waiting = peer(1, arrived=8, doing=STARTING, moved=1e5)
    assert verdict(peer(0, doing=STARTING, moved=1e5), waiting) == ""


def test_ranks_that_all_hang_in_one_step_are_ended_after_ten_times_the_limit() -> None:
    assert verdict(peer(0, moved=1199), peer(1, moved=5000)) == ""
    assert verdict(peer(0, moved=1201), peer(1, moved=5000)) == (
        "error: RANK: ranks 0 to 1: all live, but none has ended its step for 1200 s; see whether "
        "the network between the hosts works; --resume goes on from the last checkpoint, if there "
        "is one; --stall-seconds sets the limit"
    )


@pytest.mark.parametrize("doing", [STARTING, FIRST_STEP, "evaluating"])
def test_ranks_that_all_do_long_work_together_are_left_alone(doing: str) -> None:
    assert verdict(*(peer(rank, doing=doing, moved=1e5) for rank in range(3))) == ""


def test_a_sign_of_life_is_no_move_but_a_collective_or_other_work_is() -> None:
    found = peer(0, moved=500, heard=500)
    found.tell(7, TRAINING, NOW)
    assert (found.heard, found.moved) == (NOW, NOW - 500)
    found.tell(8, TRAINING, NOW + 1)
    assert (found.heard, found.moved) == (NOW + 1, NOW + 1)
    found.tell(8, "evaluating", NOW + 2)
    assert (found.arrived, found.doing, found.moved) == (8, "evaluating", NOW + 2)


def test_seconds_in_which_nobody_listened_are_not_counted() -> None:
    found = peer(1, heard=500, moved=500)
    found.forgive(499)
    assert verdict(peer(0), found) == ""


def test_work_in_a_block_is_told_until_its_end_even_by_an_error() -> None:
    liveness.begin(TRAINING)
    with pytest.raises(ZeroDivisionError), liveness.work("evaluating"):
        assert liveness.main.doing == "evaluating"
        _ = 1 / 0
    assert liveness.main.doing == TRAINING
