"""Batches are prepared ahead in a thread, in order, and none outlives the loop."""

import threading
import time

import numpy as np
import pytest

from data_tools.errors import INTEGRITY, DataError
from hvd_train.data.pipeline import DEPTH, InputWait, prefetch
from hvd_train.data.source import Batch


def batch_of(step: int) -> Batch:
    ids = np.array([step])
    return Batch(ids, np.zeros((1, 1, 1, 1), np.uint8), np.zeros((1, 1), np.int32))


def readers() -> int:
    return sum(thread.name == "input" for thread in threading.enumerate())


def test_the_batches_come_in_the_order_of_the_steps() -> None:
    batches = prefetch(batch_of, range(3, 40), InputWait())
    assert [int(batch.ids[0]) for batch in batches] == list(range(3, 40))
    assert readers() == 0


def test_no_steps_give_no_batches() -> None:
    assert list(prefetch(batch_of, range(5, 5), InputWait())) == []
    assert readers() == 0


def test_reading_is_ahead_of_the_loop_by_a_bounded_number_of_batches() -> None:
    prepared = []

    def prepare(step: int) -> Batch:
        prepared.append(step)
        return batch_of(step)

    batches = prefetch(prepare, range(100), InputWait())
    next(batches)
    deadline = time.monotonic() + 30
    while len(prepared) < DEPTH + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # time for one too many
    # One is out, DEPTH wait in the queue and one is in the thread's hands.
    assert prepared == list(range(DEPTH + 2))
    batches.close()


def test_a_fault_is_raised_at_its_own_step() -> None:
    fault = DataError(INTEGRITY, "shard", "broken", fix="convert again")

    def prepare(step: int) -> Batch:
        if step == 4:
            raise fault
        return batch_of(step)

    seen = []
    with pytest.raises(DataError) as caught:
        seen.extend(int(batch.ids[0]) for batch in prefetch(prepare, range(9), InputWait()))
    assert caught.value is fault
    assert readers() == 0


def test_the_steps_before_a_fault_are_still_given() -> None:
    def prepare(step: int) -> Batch:
        if step == 4:
            raise ValueError("broken")
        return batch_of(step)

    batches = prefetch(prepare, range(9), InputWait())
    assert [int(next(batches).ids[0]) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="broken"):
        next(batches)


def test_leaving_the_loop_early_ends_the_thread() -> None:
    batches = prefetch(batch_of, range(1000), InputWait())
    next(batches)
    assert readers() == 1
    batches.close()
    assert readers() == 0


def test_the_wait_for_slow_input_is_added_up() -> None:
    def prepare(step: int) -> Batch:
        time.sleep(0.05)
        return batch_of(step)

    wait = InputWait()
    list(prefetch(prepare, range(6), wait))
    assert wait.seconds > 0.2


def test_input_that_is_ready_is_not_waited_for() -> None:
    prepared = []

    def prepare(step: int) -> Batch:
        time.sleep(0.3)
        prepared.append(step)
        return batch_of(step)

    wait = InputWait()
    for batch in prefetch(prepare, range(6), wait):
        while len(prepared) < min(int(batch.ids[0]) + 2, 6):  # the next one is ready
            time.sleep(0.01)
        time.sleep(0.05)
    assert wait.seconds < 6 * 0.3  # the first alone
