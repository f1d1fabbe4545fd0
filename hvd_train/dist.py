"""The ranks and what they say to each other; the only module that imports Horovod.

Every function that communicates is a collective: all ranks must call it, in the same order. So none
stands inside `if world.is_chief`, and work that may fail on one rank runs inside `agreed()`.
"""

import dataclasses
import json
import os
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import horovod
import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from data_tools import launch_env
from data_tools.errors import (
    CONFIG,
    EXIT_CODES,
    HOST,
    RANK,
    DataError,
    Kind,
    from_os_error,
    to_stderr,
)
from data_tools.launch_env import LaunchEnv
from hvd_train import gpus, heartbeat, liveness, probe, watchdog
from hvd_train.watchdog import Watch


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """This process among all ranks of the run, and among those of its host."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    debug: bool = False
    """Show the traceback of an error that is agreed on."""

    @property
    def is_chief(self) -> bool:
        """Rank 0: the one that writes."""
        return self.rank == 0


def init(
    launch: LaunchEnv,
    *,
    meet_seconds: float = probe.MEET_SECONDS,
    debug: bool = False,
    log_devices: bool = False,
) -> World:
    """Starts Horovod and takes this rank's GPU, if the host has any.

    Args:
        launch: how the launcher started this process.
        meet_seconds: how long the chief waits for ranks on other hosts; 0 is for ever.
        debug: show the traceback of an error that is agreed on.
        log_devices: let TensorFlow say on which device each operation of this rank runs.

    Raises:
        DataError: CONFIG when Horovod doesn't see the processes that the launcher started, or when
            the host has fewer GPUs than ranks.
    """
    if log_devices:  # before the first operation, or it has no effect
        tf.debugging.set_log_device_placement(True)
    gloo = os.environ.get("HOROVOD_CONTROLLER") == "gloo"
    if gloo and launch.size > 1 and launch.launcher != launch_env.HOROVODRUN_GLOO:
        # Told to use Gloo, Horovod doesn't ask MPI, and fails later inside MPI.
        raise launcher_mismatch(launch, 1)
    with _giving_up(launch, meet_seconds):
        hvd.init()
    world = World(
        rank=hvd.rank(), size=hvd.size(), local_rank=hvd.local_rank(), local_size=hvd.local_size(),
        debug=debug,
    )  # fmt: skip
    if world.size != launch.size:
        raise launcher_mismatch(launch, world.size)
    visible = tf.config.list_physical_devices("GPU")
    seen = allgather_json(gpus.identities(len(visible), launch.host))
    with agreed(world):
        if visible:
            gpu = visible[gpus.choose(seen, world.rank, launch)]
            tf.config.set_visible_devices(gpu, "GPU")
            tf.config.experimental.set_memory_growth(gpu, True)
    return world


@contextmanager
def _giving_up(launch: LaunchEnv, seconds: float) -> Iterator[None]:
    """Ends the chief with HOST, and so the run, if it can't get through to the other hosts.

    MPI connects to each address of a host that seems to be in a network of this one's, and waits
    for ever where two hosts have the same: Docker gives 172.17.0.1 to docker0 on all.
    """
    limit = max(probe.MEET_SECONDS, seconds)
    timer = threading.Timer(limit, _give_up, [limit])
    timer.daemon = True
    if seconds and launch.rank == 0 and launch.local_size < launch.size:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> None:
    interfaces = [" ".join(pair) for pair in probe.interfaces()]
    DataError(
        HOST, socket.gethostname(),
        f"the ranks of the other hosts can't be reached for {seconds:g} s; this host's networks: "
        f"{', '.join(interfaces)}",
        fix="name the one that the hosts share, such as eth0: mpirun --mca btl_tcp_if_include "
        "eth0, or horovodrun --network-interfaces eth0",
    ).print()  # fmt: skip
    os._exit(EXIT_CODES[HOST])  # the main thread waits in C code for ever


def launcher_mismatch(launch: LaunchEnv, size: int) -> DataError:
    """The error of ranks that Horovod doesn't bring together."""
    fix = "use horovodrun, or a Horovod that was built for this MPI"
    if launch.launcher in launch_env.PROCESS_MANAGERS.values():
        fix = "Open MPI wants srun --mpi=pmix, MPICH --mpi=pmi2"
    return DataError(
        CONFIG, launch.launcher,
        f"the launcher started {launch.size} processes, Horovod sees {size}",
        fix=f"unset HOROVOD_CONTROLLER, {fix}",
    )  # fmt: skip


def horovod_version() -> str:
    """The version of the Horovod that carries the collectives."""
    return str(horovod.__version__)


def allgather_json(value: Any) -> list[Any]:
    """Returns every rank's value, by rank. JSON, so nothing that arrives is ever executed."""
    liveness.arrive()
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = hvd.allgather(tf.constant([len(data)], tf.int64)).numpy()
    joined = hvd.allgather(tf.constant(data)).numpy().tobytes()
    stops = np.cumsum(lengths)
    return [
        json.loads(joined[stop - length : stop])
        for stop, length in zip(stops, lengths, strict=True)
    ]


def broadcast_json(value: Any) -> Any:
    """Returns the chief's value on every rank."""
    return allgather_json(value)[0]


def agree(world: World, error: DataError | None) -> None:
    """Ends the run on all ranks if one of them has an error, which that rank alone reports.

    Raises:
        DataError: the error itself, when this is the only rank.
        SystemExit: with the error's exit code, on every rank, once the line is written.
    """
    if world.size == 1:
        if error is not None:
            raise error
        return
    codes = allgather_json(None if error is None else EXIT_CODES[error.kind])
    failed = [rank for rank, code in enumerate(codes) if code is not None]
    if not failed:
        return
    if world.rank == failed[0] and error is not None:
        if world.debug:
            to_stderr("".join(traceback.format_exception(error)).rstrip())
        error.print()
    # A launcher ends the other ranks as soon as one exits: none may before the line is written.
    allgather_json(None)
    raise SystemExit(codes[failed[0]])


@contextmanager
def agreed(world: World) -> Iterator[None]:
    """Runs a block without collectives; if it fails on one rank, all ranks stop after it."""
    fault: DataError | None = None
    try:
        yield
    except DataError as error:
        fault = error
    except OSError as error:
        fault = from_os_error(error, "this rank")
    except Exception as error:
        if world.size == 1:
            raise
        # A bug of ours: its traceback, and a line with which the other ranks stop too.
        to_stderr(traceback.format_exc().rstrip())
        fault = DataError(
            RANK, f"rank {world.rank}", f"{type(error).__name__}: {error}",
            fix="see the traceback above; this is a fault of the program",
        )  # fmt: skip
    agree(world, fault and on_this_host(fault, world))


def on_this_host(fault: DataError, world: World) -> DataError:
    """Names this host where the ranks are on several: a path alone doesn't tell which."""
    host = socket.gethostname()
    if world.local_size == world.size or fault.where.startswith(("--", host)):
        return fault
    where = (host, fault.where, fault.reason)
    return DataError(fault.kind, *where, fix=fault.fix, faults=fault.faults)


def check_same(world: World, kind: Kind, what: str, value: Any, *, fix: str) -> None:
    """Stops all ranks unless they all hold the same value; the chief names who differs."""
    hosts_and_values = allgather_json([socket.gethostname(), value])
    reference = hosts_and_values[0][1]
    others = [
        f"rank {rank} on {host} has {_difference(reference, other)}"
        for rank, (host, other) in enumerate(hosts_and_values)
        if other != reference
    ]
    fault = None
    if others and world.is_chief:
        fault = DataError(kind, what, f"{others[0]}", fix=fix, faults=others[1:])
    agree(world, fault)


def _difference(reference: Any, other: Any) -> str:
    """The first place where two values differ, as `other in place of reference`."""
    if isinstance(reference, dict) and isinstance(other, dict):
        for name in sorted(reference.keys() | other.keys()):
            if reference.get(name) != other.get(name):
                return f"{name} = {other.get(name)}, rank 0 has {reference.get(name)}"
    return f"{other}, rank 0 has {reference}"


def broadcast_variables(variables: Sequence[Any]) -> None:
    """Gives every rank the chief's values of Keras or TensorFlow variables."""
    liveness.arrive()
    plain = [v.value if isinstance(v, keras.Variable) else v for v in variables]
    hvd.broadcast_variables(plain, root_rank=0)


def allreduce_sum(tensors: Sequence[Any], *, fp16: bool = False) -> list[Any]:
    """Sums tensors of one dtype over all ranks in one grouped allreduce; works inside tf.function.

    Args:
        tensors: the same shapes on every rank.
        fp16: let them travel, and be summed, as float16: half the bytes, finite up to 65,504.
    """
    compression = hvd.Compression.fp16 if fp16 else hvd.Compression.none
    return list(hvd.grouped_allreduce(list(tensors), op=hvd.Sum, compression=compression))


def sum_over_ranks(values: np.ndarray) -> np.ndarray:
    """Sums a small float64 array over all ranks, outside tf.function."""
    liveness.arrive()
    return np.asarray(hvd.allreduce(tf.constant(values, tf.float64), op=hvd.Sum))


@contextmanager
def watched(world: World, stall_seconds: float) -> Iterator[None]:
    """Ends all ranks with one RANK line if one freezes, ends or hangs in the block; a collective.

    Args:
        world: the ranks.
        stall_seconds: the chief's limit; 0 switches the watchdog off.
    """
    if world.size == 1:
        yield
        return
    watch = start_watch(world, stall_seconds)
    try:
        with peer_failures(watch):
            yield
    except SystemExit:  # the ranks have agreed on it
        if watch is not None:
            watch.close()
        raise
    # After any other exception the others learn of this rank's end when the process is gone, or
    # they might end it before it has told its own error.
    if watch is not None:
        watch.close()


def start_watch(world: World, stall_seconds: float) -> Watch | None:
    """Connects the watchdogs of all ranks; a collective.

    A rank that can't reach the chief goes on unwatched, which the chief says in one line.
    """
    liveness.begin(liveness.STARTING)
    chief, offer = None, None
    if world.is_chief and stall_seconds:
        try:
            chief = watchdog.ChiefWatch(stall_seconds, one_host=world.local_size == world.size)
            offer = dataclasses.asdict(chief.offer)
        except OSError as error:
            to_stderr(f"warning: no watchdog: {error}")
    offer = broadcast_json(offer)
    if offer is None:
        return None
    watch = chief or watchdog.follow(world.rank, heartbeat.Offer(**offer))
    watches = allgather_json([socket.gethostname(), watch is not None])
    unwatched = [f"rank {r} on {host}" for r, (host, is_on) in enumerate(watches) if not is_on]
    if unwatched and world.is_chief:
        to_stderr(
            f"warning: {', '.join(unwatched)} can't reach port {offer['port']} of {offer['host']}: "
            "nobody will notice if it freezes; --stall-seconds 0 does without the watchdog"
        )
    return watch


@contextmanager
def peer_failures(watch: Watch | None = None) -> Iterator[None]:
    """Turns the failure of a collective, whose cause is another rank, into one RANK line.

    Args:
        watch: of this rank, which knows better what has become of the others.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if "Horovod" not in str(error):
            raise
        if watch is not None:
            watch.explain_failure()
        raise DataError(
            RANK, f"rank {hvd.rank()}", "another rank stopped while this one waited for it",
            fix=f"look for that rank's own error above; {liveness.GO_ON}",
        ) from error  # fmt: skip
