"""Batches are prepared ahead in threads, in order, and no thread outlives the loop."""

import threading
import time

import numpy as np
import pytest

from data_tools.errors import INTEGRITY, DataError
from hvd_train.data.pipeline import AHEAD, InputWait, prefetch
from hvd_train.data.source import Batch


def batch_of(step: int) -> Batch:
    ids = np.array([step])
    return Batch(ids, np.zeros((1, 1, 1, 1), np.uint8), np.zeros((1, 1), np.int32))


def readers() -> int:
    return sum(thread.name.startswith("input") for thread in threading.enumerate())


@pytest.mark.parametrize("threads", [1, 4])
def test_the_batches_come_in_the_order_of_the_steps(threads: int) -> None:
    batches = prefetch(batch_of, range(3, 40), InputWait(), threads=threads)
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
    batches.close()  # waits for what is being prepared, and drops what isn't yet
    # One was given, one was in the thread's hands, and AHEAD wait for the thread.
    assert prepared == list(range(len(prepared)))
    assert 1 <= len(prepared) <= 2 + AHEAD


def test_several_threads_prepare_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=60)

    def prepare(step: int) -> Batch:
        together.wait()
        return batch_of(step)

    batches = prefetch(prepare, range(9), InputWait(), threads=3)
    assert [int(batch.ids[0]) for batch in batches] == list(range(9))


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
