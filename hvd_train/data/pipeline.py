"""Prepares the next batches in a thread while the current one computes."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hvd_train.data.source import Batch

DEPTH = 2


@dataclass(slots=True)
class InputWait:
    """Seconds that the training loop waited for input, summed over batches."""

    seconds: float = field(default=0.0)


def prefetch(prepare: Callable[[int], Batch], steps: range, wait: InputWait) -> Iterator[Batch]:
    """Yields the batch of each step, prepared up to 2 ahead in a thread.

    Args:
        prepare: makes this rank's part of the batch of a step.
        steps: the steps to prepare, in order.
        wait: adds up the time that the consumer waited.

    Raises:
        DataError: what reading raised, at the step where it happened.
    """
    ready: queue.Queue[Batch | Exception] = queue.Queue(maxsize=DEPTH)
    closed = threading.Event()

    def put(item: Batch | Exception) -> None:
        while not closed.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def read() -> None:
        try:
            for step in steps:
                if closed.is_set():
                    return
                put(prepare(step))
        except Exception as error:  # handed over and raised in the training loop
            put(error)

    reader = threading.Thread(target=read, name="input", daemon=True)
    reader.start()
    try:
        for _ in steps:
            start = time.perf_counter()
            item = ready.get()
            wait.seconds += time.perf_counter() - start
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        closed.set()
        reader.join()
