"""Where the time and the memory of a run went."""

import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_train import dist

REPEATS = 5


class TimeSplit:
    """Seconds that one rank spent on the parts of a run."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.parts = {"evaluation": 0.0, "checkpoints": 0.0, "summaries": 0.0}

    @contextmanager
    def spent(self, part: str) -> Iterator[None]:
        """Adds the time of the block, and of waiting for the other ranks in it, to a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.parts[part] += time.perf_counter() - start

    def whole(self, input_wait: float) -> dict[str, float]:
        """All parts by name; what no part claims is the computation of the steps."""
        total = time.perf_counter() - self._start
        compute = total - input_wait - sum(self.parts.values())
        return {"total": total, "input_wait": input_wait, "compute": compute, **self.parts}


def describe(seconds: dict[str, float]) -> str:
    """Says a split with its estimate of the allreduce in words."""
    return (
        f"time: compute {seconds['compute']:.1f} s, of it allreduce about "
        f"{seconds['allreduce_estimate']:.1f} s (timed alone, an estimate); "
        f"input wait {seconds['input_wait']:.1f} s, evaluation {seconds['evaluation']:.1f} s, "
        f"checkpoints {seconds['checkpoints']:.1f} s, summaries {seconds['summaries']:.1f} s"
    )


def allreduce_seconds(tensors: Sequence[Any], *, fp16: bool) -> float:
    """Returns the median time of one grouped allreduce of tensors, timed alone; a collective.

    Args:
        tensors: of one type, shaped as the gradients are.
        fp16: whether they travel in 16 bits.
    """
    # With a number at their end, as the loss is in a step; having it means that all are there.
    sent = [*tensors, tf.zeros([], tensors[0].dtype)]
    summed = tf.function(lambda *sent: dist.allreduce_sum(sent, fp16=fp16)[-1])
    times = []
    for _ in range(1 + REPEATS):  # the first traces
        start = time.perf_counter()
        summed(*sent).numpy()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def memory_mib() -> tuple[int, int]:
    """The memory that this process holds, and the most that it has held, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak, peak
    held = pages * resource.getpagesize() // 2**20
    return held, max(held, peak)  # the kernel's own peak may lag behind


class Clock:
    """Time of the steps since it was last restarted."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Starts an interval of no steps."""
        self._start = time.perf_counter()
        self.steps = 0

    def seconds_a_step(self) -> float:
        """The mean time of a step of the interval, in seconds."""
        return (time.perf_counter() - self._start) / max(self.steps, 1)
