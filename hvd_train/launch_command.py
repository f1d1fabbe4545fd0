"""Commands that start ranks: what their words ask for, what their messages mean, and good ones."""

import itertools
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_tools.errors import CONFIG, HOST, RANK, DataError
from hvd_train import hosts as host_lists
from hvd_train.diagnosis import Network
from hvd_train.hosts import Slots

HOST_FLAGS = ("-H", "--hosts", "--host", "-host")
HOSTFILE_FLAGS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
SIZE_FLAGS = ("-np", "--np", "-n", "--num-proc")
_PROGRAM = re.compile(r"(.*/)?(python[\d.]*|hvd_train|data_tools|[^/]+\.py)")


def split_by_spaces(first: str, others: Sequence[str]) -> DataError | None:
    """The error of hosts that spaces part, if the words after -H's look like hosts too."""
    more = []
    for word in others:
        if not re.fullmatch(r"[^\s:/=-][^\s:/=]*:\d+,?", word):
            break
        more.append(word)
    if not more:
        return None
    joined = ",".join(word.strip(",") for word in (first, *more))
    return DataError(CONFIG, "-H", "spaces part the hosts", fix=f"write -H {joined}")


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A launcher with its flags, without the program.

    Attributes:
        words: as they were given.
        size: ranks that they ask for, if they say so.
        hosts: that they name.
    """

    words: tuple[str, ...]
    size: int | None
    hosts: Slots | None


def parse(words: Sequence[str]) -> LaunchCommand:
    """Reads the words of `horovodrun -np 8 -H host1:4,host2:4 python hvd_train/cifar.py`.

    Raises:
        DataError: CONFIG when it can't start what it asks for: then the fix is the right command.
    """
    end = next((i for i, word in enumerate(words) if i and _PROGRAM.fullmatch(word)), len(words))
    words = tuple(words[:end])
    size, hosts, slots = None, None, None
    for at, (flag, value) in enumerate(itertools.pairwise(words)):
        if flag in SIZE_FLAGS and value.isdigit():
            size, size_at = int(value), at + 1
        elif flag in HOST_FLAGS:
            if fault := split_by_spaces(value, words[at + 2 :]):
                raise fault
            hosts = host_lists.read_list(value)
            slots = sum(hosts.values())
        elif flag in HOSTFILE_FLAGS:
            hosts = host_lists.read_file(Path(value))
    # Of a file Open MPI takes a host without a number to have as many slots as cores.
    if size and slots and size > slots and "--oversubscribe" not in words:
        fewer = [*words[:size_at], str(slots), *words[size_at + 1 :]]
        raise DataError(
            CONFIG, words[size_at - 1], f"{size} ranks but {slots} slots",
            fix=f"give the hosts more slots, or start {shlex.join(fewer)}",
        )  # fmt: skip
    return LaunchCommand(words, size, hosts)


MESSAGES = (
    ("not enough slots available", CONFIG, "there are more ranks than slots",
     "start fewer, give hosts more slots as in -H host1:4, or mpirun --oversubscribe"),
    ("Requested more processes", CONFIG, "there are more ranks than slots",
     "start fewer, or give hosts more slots as in -H host1:4"),
    ("attempt to run as root", CONFIG, "Open MPI refuses root",
     "use an ordinary user; in a container set OMPI_ALLOW_RUN_AS_ROOT=1 and "
     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    ("could not connect to some hosts via ssh", HOST, "it can't reach a host by ssh",
     "hvd_train doctor -H HOST:SLOTS,... tells why"),
    ("ORTE was unable to reliably start", HOST, "its daemon doesn't start on a host",
     "hvd_train doctor -H HOST:SLOTS,... tells why; use mpirun by its absolute path"),
    ("Unable to find a set of common task-to-task", HOST, "the hosts have no network in common",
     "name the interface: horovodrun --network-interfaces eth0"),
    ("No module named 'distutils'", CONFIG, "horovodrun needs setuptools on this Python",
     "pip install setuptools"),
    ("doesn't have MPI support", CONFIG, "Horovod was built without MPI",
     "start with horovodrun --gloo, or run python tools/build_horovod.py --rebuild"),
)  # fmt: skip
"""Words of launchers, and what they mean: these faults come before any rank runs."""


def explain(launcher: str, code: int | None, output: str) -> DataError:
    """The error of a launcher that started no rank.

    Args:
        launcher: its name.
        code: its exit code, None when it didn't end.
        output: all that it wrote.
    """
    for sign, kind, reason, fix in MESSAGES:
        if sign in output:
            return DataError(kind, launcher, reason, fix=fix)
    said = [line for line in output.splitlines() if re.search(r"\w", line)] or ["nothing"]
    ended = "it didn't end" if code is None else f"it ended with {code}"
    return DataError(
        RANK, launcher, f"no rank reported, {ended} and said {said[-1].strip()!r}",
        fix="see what it wrote above",
    )  # fmt: skip


def recommended(
    hosts: Slots,
    *,
    ssh_port: int | None,
    network: Network | None,
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """The commands that start a training on these hosts.

    Args:
        hosts: where.
        ssh_port: of sshd, if it isn't the usual one.
        network: to use, where there is a choice.
        environ: of the shell that they are for.
    """
    ranks = ["-np", str(sum(hosts.values())), *host_lists.for_horovodrun(hosts).split()]
    horovodrun, mpirun = ["horovodrun", *ranks], ["mpirun", *ranks, "-x", "PATH"]
    if ssh_port:
        horovodrun += ["-p", str(ssh_port)]
        mpirun += ["--mca", "plm_rsh_args", f"-p {ssh_port}"]
    if network is not None:
        horovodrun += ["--network-interfaces", ",".join(dict.fromkeys(network.interfaces))]
        for layer in ("btl", "oob"):
            mpirun += ["--mca", f"{layer}_tcp_if_include", network.name]
    own = Path(sys.prefix, "bin")
    is_active = environ.get("PATH", "").split(os.pathsep)[0] == str(own)
    activate = [] if is_active else [f". {shlex.quote(str(own / 'activate'))}"]
    program = ["python", "hvd_train/cifar.py"]
    return [*activate, shlex.join([*horovodrun, *program]), shlex.join([*mpirun, *program])]
