"""Prepares the next batches in threads while the current one computes."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

AHEAD = 1
"""Batches prepared ahead of those that the threads are at."""


@dataclass(slots=True)
class InputWait:
    """Seconds that the training loop waited for input, summed over batches."""

    seconds: float = field(default=0.0)


def prefetch(
    prepare: Callable[[int], T], steps: range, wait: InputWait, *, threads: int = 1
) -> Iterator[T]:
    """Yields the batch of each step, in order, prepared ahead in threads.

    Args:
        prepare: makes this rank's part of the batch of a step; called from several threads.
        steps: the steps to prepare, in order.
        wait: adds up the time that the consumer waited.
        threads: how many batches are prepared at a time.

    Raises:
        DataError: what reading raised, at the step where it happened.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="input")
    left = iter(steps)
    try:
        pending: deque[Future[T]] = deque(
            pool.submit(prepare, step) for step in islice(left, threads + AHEAD)
        )
        while pending:
            start = time.perf_counter()
            batch = pending.popleft().result()
            wait.seconds += time.perf_counter() - start
            pending.extend(pool.submit(prepare, step) for step in islice(left, 1))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)
