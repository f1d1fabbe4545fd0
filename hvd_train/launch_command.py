"""Commands that start ranks: what their words ask for, what their messages mean, and good ones."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_tools.errors import CONFIG, HOST, RANK, DataError, Kind
from hvd_train import hosts as host_lists
from hvd_train.diagnosis import Network
from hvd_train.hosts import Slots

HOST_FLAGS = ("-H", "--hosts", "--host", "-host")
HOSTFILE_FLAGS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
HYDRA_HOST_FLAGS = ("-hosts",)
"""Of MPICH and Intel MPI, which start more ranks on a host than it has slots."""
SIZE_FLAGS = ("-np", "--np", "-n", "--num-proc", "--ntasks")
LAUNCHER = re.compile(r"(.*/)?(horovodrun|mpirun|mpiexec|orterun|prterun|srun|jsrun)([.-]\w+)*")
PROGRAM = re.compile(r"(.*/)?python[\d.]*|.+\.py")
"""What a launcher starts."""
MPIRUN = (
    # Open MPI
    "H N am app bind-to c cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank debugger "
    "default-hostfile hnp host hostfile launch-agent machinefile map-by max-restarts max-vm-size "
    "n np npernode npersocket ompi-server output-filename path personality ppr prefix "
    "preload-files rank-by rankfile report-events report-pid report-uri rf stdin timeout tune wd "
    "wdir x xml-file xterm "
    # MPICH and Intel MPI
    "f hosts ppn perhost genvlist envlist iface rmk launcher launcher-exec bootstrap "
    "bootstrap-exec bootstrap-exec-args outfile-pattern errfile-pattern"
)
WITH_VALUE = {
    "horovodrun": "np num-proc p ssh-port i ssh-identity-file H hosts hostfile start-timeout "
    "network-interfaces network-interface output-filename config-file fusion-threshold-mb "
    "cycle-time-ms cache-capacity autotune-log-file autotune-warmup-samples "
    "autotune-steps-per-sample autotune-bayes-opt-max-samples autotune-gaussian-process-noise "
    "min-np min-num-proc max-np max-num-proc slots-per-host elastic-timeout reset-limit "
    "timeline-filename stall-check-warning-time-seconds stall-check-shutdown-time-seconds "
    "mpi-args binding-args num-nccl-streams thread-affinity gloo-timeout-seconds log-level "
    "host-discovery-script",
    "srun": "n ntasks N nodes w nodelist x exclude p partition A account q qos t time J job-name "
    "c cpus-per-task D chdir i input o output e error C constraint G gpus d dependency "
    "ntasks-per-node gpus-per-task gpus-per-node mem mem-per-cpu gres mpi export jobid "
    "distribution m",
}
"""Flags that take a word, without their dashes; those of other launchers are MPIRUN's."""
WITH_TWO_VALUES = (
    "mca", "gmca", "pmca", "prtemca", "pmixmca", "genv", "env", "blacklist-cooldown-range"
)  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class _Flag:
    """A flag of a launcher, its value if it takes one, and the place of the word with the value."""

    name: str
    value: str
    at: int


def _flags(words: Sequence[str], launcher: int) -> Iterator[_Flag]:
    """The flags after the launcher, until a word that is neither a flag nor a flag's value."""
    known = LAUNCHER.fullmatch(words[launcher])
    with_value = WITH_VALUE.get(known[2] if known else "", MPIRUN).split()
    at = launcher + 1
    while at < len(words) and re.match(r"-{1,2}\w", words[at]):
        name, equals, value = words[at].partition("=")
        bare = name.lstrip("-")
        if not equals and (bare in with_value or bare in WITH_TWO_VALUES):
            at += 1 + (bare in WITH_TWO_VALUES)
            value = words[at] if at < len(words) else ""
        yield _Flag(name, value, at)
        at += 1


def parse(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> LaunchCommand:
    """Reads the words of `horovodrun -np 8 -H host1:4,host2:4 python hvd_train/cifar.py`.

    Args:
        words: of the command, before whose launcher others may stand, such as `env -i`.
        environ: of the launcher.

    Raises:
        DataError: CONFIG when it can't start what it asks for: then the fix is the right command.
    """
    first = next((i for i, word in enumerate(words) if LAUNCHER.fullmatch(word)), None)
    if first is None:
        if PROGRAM.fullmatch(words[0]):
            raise DataError(
                CONFIG, words[0], "it is no launcher",
                fix="put mpirun, horovodrun or srun before it",
            )  # fmt: skip
        first = 0  # a launcher that isn't known, with Open MPI's flags
    flags = list(_flags(words, first))
    kept = tuple(words[: flags[-1].at + 1 if flags else first + 1])
    size, hosts, slots, of_size = None, Slots(), 0, None
    is_bounded = not _says_oversubscribe(kept, environ)
    for flag in flags:
        if flag.name in SIZE_FLAGS and flag.value.isdigit():
            size, of_size = int(flag.value), flag
        elif flag.value and flag.name in (*HOST_FLAGS, *HYDRA_HOST_FLAGS):
            if fault := split_by_spaces(flag.value, words[flag.at + 1 :]):
                raise fault
            named = re.sub(r":(\*|auto)(?=,|$)", "", flag.value)  # as many slots as cores
            is_bounded &= named == flag.value and flag.name in HOST_FLAGS
            for host, more in host_lists.read_list(named).items():
                hosts[host] = hosts.get(host, 0) + more
                slots += more
        elif flag.name in HOSTFILE_FLAGS:
            hosts = host_lists.read_file(Path(flag.value))
    # Of a file Open MPI takes a host without a number to have as many slots as cores.
    if of_size and size and slots and size > slots and is_bounded:
        fewer = list(kept)
        fewer[of_size.at] = fewer[of_size.at].removesuffix(of_size.value) + str(slots)
        raise DataError(
            CONFIG, of_size.name, f"{size} ranks but {slots} slots",
            fix=f"give the hosts more slots, or start {shlex.join(fewer)}",
        )  # fmt: skip
    return LaunchCommand(kept, size, hosts or None)


def _says_oversubscribe(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a flag or a variable of Open MPI may allow more ranks than slots."""
    settings = [f"{name}={value}" for name, value in environ.items() if "_MCA_" in name]
    return any("oversubscribe" in text.lower() for text in (*words, *settings))


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
    own = re.findall(rf"\berror: ({'|'.join(Kind)}): (.*?): (.*); (.*)", output)
    if own:  # a rank's, before the launcher's about how it ended
        name, where, reason, fix = own[-1]
        return DataError(Kind[name], where, reason, fix=fix)
    for sign, kind, reason, fix in MESSAGES:
        if sign in output:
            return DataError(kind, launcher, reason, fix=fix)
    said = [line for line in output.splitlines() if re.search(r"\w", line)] or ["nothing"]
    ended = "it didn't end" if code is None else f"it ended with {code}"
    return DataError(
        RANK, launcher, f"no rank reported, {ended} and said {said[-1].strip()!r}",
        fix="see what it wrote above",
    )  # fmt: skip


HYDRA = ("HYDRA", "MPICH", "Intel(R) MPI")
"""Words of `mpirun --version` where it isn't Open MPI's."""
KEEPALIVE = "-o ServerAliveInterval=25 -o ServerAliveCountMax=5"
"""What tools/build_horovod.py gives Open MPI for ssh; a port of one's own would replace it."""
SCRIPTS = {"captcha": "hvd_train/captcha.py", "classes": "hvd_train/cifar.py"}
"""By the kind of the data set."""
KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "SSH_AUTH_SOCK")
"""Variables that horovodrun needs; it hands all that it has to the other hosts."""


def mpi_version(search: str | None = None) -> str:
    """What `mpirun --version` says, nothing if there is none.

    Args:
        search: where to look for it, PATH if not given.
    """
    mpirun = shutil.which("mpirun", path=search)
    if mpirun is None:
        return ""
    try:
        done = subprocess.run(
            [mpirun, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def is_hydra(version: str) -> bool:
    """Whether it is the `mpirun` of MPICH or Intel MPI, by what it says of its version."""
    return any(sign in version for sign in HYDRA)


def script_of(data: str | None) -> str | None:
    """The script that trains on a data set, as its manifest says, None if that can't be told.

    Args:
        data: the data set folder, which may be absent here.
    """
    if data is None:
        return None
    try:
        kind = json.loads(Path(data, "manifest.json").read_bytes())["kind"]
        return SCRIPTS.get(kind)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def recommended(
    hosts: Slots,
    *,
    ssh_port: int | None,
    network: Network | None,
    data: str | None = None,
    environ: Mapping[str, str] = os.environ,
    version: str | None = None,
) -> list[str]:
    """The commands that start a training on these hosts; they tell the others no secret.

    Args:
        hosts: where.
        ssh_port: of sshd, if it isn't the usual one.
        network: to use, where there is a choice.
        data: the data set folder to train on, if not the usual one.
        environ: of the shell that they are for.
        version: what `mpirun --version` says there; it is asked if not given.
    """
    own = Path(sys.prefix, "bin")
    path = environ.get("PATH", "")
    if version is None:
        version = mpi_version(f"{own}{os.pathsep}{path}")
    is_active = path.split(os.pathsep)[0] == str(own)
    activate = [] if is_active else [f". {shlex.quote(str(own / 'activate'))}"]
    ranks = ["-np", str(sum(hosts.values()))]
    listed = host_lists.to_list(hosts, "mpirun")
    mpirun = _hydra_flags if is_hydra(version) else _open_mpi_flags
    program = ["python", script_of(data) or SCRIPTS["classes"]]
    if data is not None:  # by a flag: neither command hands a variable on
        program += ["--data", data]
    bare = " ".join(f'{name}="${name}"' for name in KEPT if name in environ or name in KEPT[:2])
    horovodrun = [*ranks, "-H", listed, *_horovodrun_flags(ssh_port, network, version)]
    return [
        *activate,
        f"env -i {bare} {shlex.join(['horovodrun', *horovodrun, *program])}",
        shlex.join(["mpirun", *ranks, *mpirun(listed, ssh_port, network), *program]),
    ]


def _horovodrun_flags(ssh_port: int | None, network: Network | None, version: str) -> list[str]:
    flags = ["-p", str(ssh_port)] if ssh_port else []
    if network is not None:
        flags += ["--network-interfaces", ",".join(dict.fromkeys(network.interfaces))]
    if (major := re.search(r"\(Open MPI\) (\d+)", version)) and int(major[1]) >= 5:
        flags += ["--binding-args=--bind-to none --map-by slot"]
    return flags


def _open_mpi_flags(listed: str, ssh_port: int | None, network: Network | None) -> list[str]:
    flags = ["-H", listed, "-x", "PATH"]
    if ssh_port:
        flags += ["--mca", "plm_rsh_args", f"{KEEPALIVE} -p {ssh_port}"]
    if network is not None:
        for layer in ("btl", "oob"):
            flags += ["--mca", f"{layer}_tcp_if_include", network.name]
    return flags


def _hydra_flags(listed: str, ssh_port: int | None, network: Network | None) -> list[str]:
    flags = ["-hosts", listed, "-genvlist", "PATH"]
    if ssh_port:
        flags += ["-bootstrap", "ssh", "-bootstrap-exec-args", f"-p {ssh_port}"]
    if network is not None and len(set(network.interfaces)) == 1:
        flags += ["-iface", network.interfaces[0]]
    return flags
