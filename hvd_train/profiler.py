"""Traces steps of the chief for TensorBoard's profile plugin."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from data_tools.errors import CONFIG, DataError
from hvd_train import dist, liveness
from hvd_train.dist import World


def check_steps(steps: range, done: range) -> None:
    """Raises CONFIG unless the steps to trace are among those that are done now."""
    if steps and not (done.start <= steps.start and steps.stop <= done.stop):
        raise DataError(
            CONFIG, "--profile",
            f"{steps.start}:{steps.stop}, the steps done now are {done.start}:{done.stop}",
            fix="choose a range within them",
        )  # fmt: skip


class Profiler:
    """Writes one trace of some steps to `folder/plugins/profile`; the chief alone has a folder."""

    def __init__(self, folder: Path | None, steps: range, world: World) -> None:
        self._folder, self._steps, self._world = folder, steps, world
        self._running = False  # the same on all ranks

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Traces the block if the step is to be; a collective at the first and the last of them."""
        if step not in self._steps:
            yield
            return
        if step == self._steps.start:
            self._start()
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            yield
        if step == self._steps[-1]:
            self.stop()

    def _start(self) -> None:
        self._running = True
        with liveness.work("starting a trace"), dist.agreed(self._world):
            if self._folder is not None:
                tf.profiler.experimental.start(str(self._folder))

    def stop(self) -> None:
        """Writes the trace, if one is being taken; a collective."""
        if not self._running:
            return
        self._running = False
        with liveness.work("writing a trace"), dist.agreed(self._world):
            if self._folder is not None:
                tf.profiler.experimental.stop()
