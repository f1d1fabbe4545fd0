"""From a command line to the training loop: settings, threads, TensorFlow, ranks, in this order.

TensorFlow, MPI and Horovod read their environment when they load, so nothing above this module's
lazy imports may import them.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from data_tools import launch_env
from data_tools.errors import CONFIG, DataError, run_main, to_stdout
from data_tools.launch_env import LaunchEnv
from hvd_train import config_files, stop, threads, watchdog
from hvd_train.config import RunConfig, TrainConfig

T = TypeVar("T")
DRAWING = ("jinja2", "matplotlib")
"""What the extra `report` installs."""


def main(argv: Sequence[str], *, prog: str, config_type: type[TrainConfig], task_path: str) -> int:
    """Trains as the command line says and returns the exit code.

    Args:
        argv: the flags.
        prog: the command, for help and messages.
        config_type: the task's settings.
        task_path: `module:name` of the Task, imported once the threads are set.
    """
    return run_main(lambda: _train(argv, prog, config_type, task_path), debug="--debug" in argv)


def _train(argv: Sequence[str], prog: str, config_type: type[TrainConfig], task_path: str) -> None:
    (settings, given), world = _start_ranks(
        lambda: config_files.parse_config(config_type, argv, prog=prog), argv,
        logs_devices=lambda parsed: parsed[0].run.log_device_placement,
        stall_seconds=lambda parsed: parsed[0].run.stall_seconds,
    )  # fmt: skip
    task = import_task(task_path)
    train = import_trainer("hvd_train.train")
    train.train_and_evaluate(task, settings, given, world)


def over_ranks(parse: Callable[[], T], argv: Sequence[str], module: str) -> None:
    """Runs `main(command, world)` of a module that needs TensorFlow, on one or many ranks."""
    command, world = _start_ranks(parse, argv)
    import_trainer(module).main(command, world)


def alone(parse: Callable[[], T], prog: str, module: str) -> None:
    """Runs `main(command)` of a module that needs TensorFlow, in one process.

    Raises:
        DataError: CONFIG under a launcher that started several.
    """
    launch = launch_env.read()
    command = parse()
    if launch.size > 1:
        if launch.rank:  # one line is enough
            raise SystemExit(2)
        raise DataError(
            CONFIG, launch.launcher, f"{prog} runs in one process, not in {launch.size} ranks",
            fix="start it without a launcher",
        )  # fmt: skip
    threads.configure(launch)
    import_trainer(module).main(command)


def _start_ranks(
    parse: Callable[[], T],
    argv: Sequence[str],
    logs_devices: Callable[[T], bool] = lambda _: False,
    stall_seconds: Callable[[T], float] = lambda _: RunConfig().stall_seconds,
) -> tuple[T, Any]:
    """Reads the settings, chooses the threads and brings the ranks together; returns the World."""
    stop.signals()  # before the imports, which take long
    launch = launch_env.read()
    if launch.size > 1:
        watchdog.wake_when_orphaned()
    settings, fault = None, None
    try:
        settings = parse()
    except DataError as error:
        # Among several ranks all must hear of it, or the launcher would report the first to exit.
        fault = error
        if launch.size == 1:
            raise
    log_devices = settings is not None and logs_devices(settings) and launch.rank == 0
    if log_devices:
        # TensorFlow tells it as information, which threads.configure would have it keep back.
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    chosen = threads.configure(launch)
    dist = import_trainer("hvd_train.dist")
    seconds = RunConfig().stall_seconds if settings is None else stall_seconds(settings)
    world = dist.init(
        launch, meet_seconds=seconds, debug="--debug" in argv, log_devices=log_devices
    )  # fmt: skip
    dist.agree(world, fault)
    assert settings is not None
    if world.is_chief:
        to_stdout("\n".join(describe(launch, chosen)))
    return settings, world


def import_task(path: str) -> Any:
    """The task at `module:name`, whose module may lie in the working folder.

    Raises:
        DataError: CONFIG when there is no such task.
    """
    module, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.append("")
    try:
        if importlib.util.find_spec(module) is None:  # or TensorFlow would seem to be missing
            raise ImportError(f"No module named {module!r}")
        task = getattr(import_trainer(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(
            CONFIG, "task", f"{path} can't be imported: {error}",
            fix="write it as MODULE:NAME, and start in the folder of that module",
        ) from error  # fmt: skip
    if not isinstance(task, import_trainer("hvd_train.task").Task):
        raise DataError(CONFIG, "task", f"{path} is no Task", fix="name one: docs/your-own.md")
    return task


def import_trainer(module: str) -> Any:
    """Imports a module that needs TensorFlow and Horovod.

    Raises:
        DataError: CONFIG when one of them, or what it draws with, isn't installed or doesn't load.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        lacking = (error.name or "").partition(".")[0]
        if lacking in ("hvd_train", "data_tools"):
            raise
        if lacking in DRAWING:
            raise DataError(
                CONFIG, sys.executable, f"{lacking} isn't installed, which draws reports",
                fix=f"run make env, or pip install {' '.join(DRAWING)}",
            ) from error  # fmt: skip
        raise DataError(
            CONFIG, sys.executable, f"TensorFlow with Horovod doesn't load here: {error}",
            fix="run make env, or python tools/build_horovod.py, and use .venv/bin/python",
        ) from error  # fmt: skip


def describe(launch: LaunchEnv, chosen: dict[str, str]) -> list[str]:
    """Says how the run was started and which settings it computes with."""
    settings = " ".join(f"{name}={value}" for name, value in chosen.items())
    lines = [
        f"ranks: {launch.size}, {launch.local_size} on this host, "
        f"launcher {launch.launcher}; {settings}"
    ]
    mask, given = os.sched_getaffinity(0), threads.cores_given()
    if not mask <= given:
        lines.append(
            f"warning: {launch.launcher} bound this rank to core {_listed(mask)}, but was itself "
            f"given {_listed(given)}: mpirun --bind-to none keeps to it"
        )
    elif threads.is_bound() and len(mask) < (os.cpu_count() or 1) // launch.local_size:
        lines.append(
            f"{launch.launcher} bound this rank to {len(mask)} of {os.cpu_count()} cores: "
            "mpirun --bind-to none lets it use more"
        )
    return lines


def _listed(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))
