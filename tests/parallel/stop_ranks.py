"""What one rank does for test_stopped_ranks.py: runs that are stopped and gone on with, in turn.

python stop_ranks.py OUT [HANDED] runs under mpirun or alone. A run is in OUT/runs/NAME; what a case
of it printed, and its exit code, in OUT/NAME-RANK.out, .err and .code, and its resume's in
OUT/NAME-resumed-RANK. HANDED is a run of another number of ranks to go on with; with it that is
the only case if there are more than two ranks.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

from bad_ranks import LAUNCH, run_case
from ranks import wrapped
from small_runs import TEST, TRAIN
from small_sets import texts, write_set

from data_tools.charsets import CHARSETS
from hvd_train import checkpoint, dist, liveness, stop
from hvd_train.evaluator import Evaluator
from hvd_train.trainer import Trainer

VALIDATION = 23
STEPS = 30
FLAGS = [
    "--model", "linear", "--global-batch", "10", "--steps", str(STEPS), "--log-every", "1",
    "--validation-split", "validation",
]  # fmt: skip
ON_ONE_TOO = ("mid_epoch", "in_evaluation", "last_step")
"""The interruptions that are tried on one rank too."""
Hook = contextlib.AbstractContextManager[None]


def main(out: Path, handed: Path | None) -> None:
    """Runs the cases."""
    world = dist.init(LAUNCH)
    last = world.size - 1
    if world.is_chief:
        write_set(out / "set", train=texts(TRAIN), test=texts(TEST), validation=texts(VALIDATION))
        write_set(out / "alnum", train=texts(TRAIN), test=texts(TEST), charset=CHARSETS["alnum"])
    dist.broadcast_json(None)

    def run(name: str, *flags: str, report: str = "", hook: Hook | None = None) -> None:
        argv = ["--data", str(out / "set"), "--name", name, *flags]
        with hook or contextlib.nullcontext():
            run_case(out, argv, out / f"{report or name}-{world.rank}")
        dist.broadcast_json(None)

    if handed is not None:
        if world.is_chief:
            shutil.copytree(handed, out / "runs" / "handed")
        dist.broadcast_json(None)
        run("handed", "--resume")
        if world.size > 2:
            return
    run("whole", *FLAGS)
    for name, hook in interruptions(world.rank, last).items():
        if world.size == 1 and name not in ON_ONE_TOO:
            continue
        run(name, *FLAGS, *(["--max-minutes", "1e-9"] if name == "time" else []), hook=hook)
        if name == "mid_epoch" and world.is_chief:
            shutil.copytree(out / "runs" / name, out / "stopped")
        # A checkpoint on the chief's host is enough.
        elsewhere = ["--runs-dir", "elsewhere"] if world.rank else []
        run(name, "--resume", "--max-minutes", "9", *elsewhere, report=f"{name}-resumed")
    if world.size == 1:
        return
    run("saves", *FLAGS, "--steps", "5", "--checkpoint-minutes", "1e-9", hook=own_host())
    judged = [*FLAGS, "--base-lr", "1", "--early-stop", "1", "--keep-best", "--steps", "90"]
    watched = ["--stall-seconds", "77", "--profile", "5:90"]  # a trace that ends with the run
    with recorded_watch(out / f"early-{world.rank}.watch"):
        run("early", *judged, *watched, hook=counted_steps(out / f"early-{world.rank}.steps"))
    with recorded_watch(out / f"early-resumed-{world.rank}.watch"):
        run("early", "--resume", report="early-resumed")
    ctc = ["--global-batch", "10", "--steps", "2", "--eval-every", "0"]
    run("taught", *ctc)
    tuned = [*ctc, "--data", str(out / "alnum"), "--init-from", "runs/taught"]
    run("tuned", *tuned, hook=recorded_start(out / f"tuned-{world.rank}"))
    run("tuned_linear", *tuned, "--model", "linear")


def interruptions(rank: int, last: int) -> dict[str, Hook]:
    """What stops a run, by name: a signal to one rank at a moment, or the time limit."""
    return {
        "mid_epoch": after_step(4, signal.SIGTERM, rank == last),
        # The evaluation after the first epoch is due at the step where it stops.
        "epochs_end": after_step(9, signal.SIGINT, rank == 0),
        "in_evaluation": in_evaluation(signal.SIGUSR1, rank == last),
        "in_save": in_save(14, signal.SIGTERM),
        "last_step": after_step(STEPS - 2, signal.SIGUSR1, True),
        "time": contextlib.nullcontext(),
    }


def get(number: signal.Signals) -> None:
    """Lets this process get a signal and take note of it."""
    os.kill(os.getpid(), number)
    while stop.signals().first is None:
        time.sleep(0.001)


@contextlib.contextmanager
def after_step(step: int, number: signal.Signals, mine: bool) -> Iterator[None]:
    """Sends a signal after a step, once its votes are cast: the run stops after the next."""
    at = iter(range(10**6))

    def then_signal(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if mine and next(at) == step:
            get(number)
        return result

    with wrapped(Trainer, "step", then_signal):
        yield


@contextlib.contextmanager
def in_evaluation(number: signal.Signals, mine: bool) -> Iterator[None]:
    """Sends a signal in the second evaluation."""
    at = iter(range(10**6))

    def then_batches(real: Callable[..., Any], *args: Any) -> Any:
        if mine and next(at) == 1:
            get(number)
        return real(*args)

    with wrapped(Evaluator, "_own_batches", then_batches):
        yield


@contextlib.contextmanager
def in_save(step: int, number: signal.Signals) -> Iterator[None]:
    """Sends a signal while a checkpoint is written; --checkpoint-every is not given, so asks."""

    def saves(real: Callable[..., Any], config: Any, done: int) -> bool:
        return done == step or bool(real(config, done))

    def then_save(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if stop.signals().first is None:
            get(number)
        return real(*args, **kwargs)

    from hvd_train.train import Loop

    with (
        wrapped(Loop, "_checkpoint_falls_on", saves),
        wrapped(checkpoint, "save", then_save),  # type: ignore[arg-type]
    ):
        yield


@contextlib.contextmanager
def own_host() -> Iterator[None]:
    """Lets each rank believe that it is alone on its host, all hosts sharing one disk."""

    def alone(real: Callable[..., dist.World], *args: Any, **kwargs: Any) -> dist.World:
        return dataclasses.replace(real(*args, **kwargs), local_rank=0, local_size=1)

    with wrapped(dist, "init", alone):  # type: ignore[arg-type]
        yield


@contextlib.contextmanager
def counted_steps(path: Path) -> Iterator[None]:
    """Writes how many steps this rank took."""
    steps = 0

    def count(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        return real(*args, **kwargs)

    with wrapped(Trainer, "step", count):
        yield
    path.write_text(json.dumps(steps))


@contextlib.contextmanager
def recorded_watch(path: Path) -> Iterator[None]:
    """Writes the watchdog's limit, and what this rank was at whenever all agreed to go on."""
    limits, doing = list[float](), list[str]()

    def start(real: Callable[..., Any], world: dist.World, seconds: float) -> Any:
        limits.append(seconds)
        return real(world, seconds)

    def agree(real: Callable[..., None], *args: Any) -> None:
        if limits:  # the watchdog has started
            doing.append(liveness.main.doing)
        real(*args)

    with (
        wrapped(dist, "start_watch", start),  # type: ignore[arg-type]
        wrapped(dist, "agree", agree),  # type: ignore[arg-type]
    ):
        yield
    path.write_text(json.dumps({"limits": limits, "doing": doing}))


@contextlib.contextmanager
def recorded_start(folder: Path) -> Iterator[None]:
    """Saves what this rank holds once all ranks hold the chief's variables."""

    def then_record(real: Callable[..., None], trainer: Trainer) -> None:
        real(trainer)
        folder.mkdir()
        checkpoint.save(folder, trainer.snapshot(0, {}), keep=1)

    with wrapped(Trainer, "broadcast", then_record):
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
