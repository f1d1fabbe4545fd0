"""Several hosts on one machine: Linux namespaces on a bridge, each with its own sshd.

A host has a network, a name, processes, /etc/hosts, /etc/ssh, /tmp and /dev/shm of its own, and a
folder `local` that stands for its own disk; it shares the cores and all other files. No namespace
has a name, and each ends with the process that made it, however that ends: nothing is left to be
removed. It takes root, iproute2 and openssh-server.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SSHD = "/usr/sbin/sshd"
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "ssh", "ssh-keygen", SSHD)
NAMES = ("host1", "host2")
# Open MPI takes all cores for each host's own, and would bind a rank of each to the first. There a
# rank that polls for messages has kept another host's from running for half a minute and more.
UNBOUND = {"OMPI_MCA_hwloc_base_binding_policy": "none"}
DIES_WITH_US = ("setpriv", "--pdeathsig", "SIGKILL")
SWITCH = "ip link add switch type bridge && ip link set switch up && echo ready && exec sleep inf"
# Arguments: the host's name, its folder, what is mounted as `local`, and the folders under /tmp
# that stay visible. As the first process of the host it also reaps what others leave.
HOST = f"""
set -e
name=$1 folder=$2 local=$3; shift 3
mkdir "$folder/tmp"
mount -t tmpfs tmpfs "$folder/tmp"
chmod 1777 "$folder/tmp"
for kept in "$@"; do
  mkdir -p "$folder/tmp${{kept#/tmp}}"
  mount --bind "$kept" "$folder/tmp${{kept#/tmp}}"
done
mount --move "$folder/tmp" /tmp
mount --bind "$folder/disk" "$local"
mount --bind "$folder/ssh" /etc/ssh
mount --bind "$folder/hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /run/sshd
hostname "$name"
ip link set lo up
{SSHD} -D -e -f /etc/ssh/sshd_config 2> "$folder/sshd.log" &
echo ready
wait
"""
SSH_CONFIG = """
IdentityFile /etc/ssh/key
UserKnownHostsFile /etc/ssh/known_hosts
GlobalKnownHostsFile /dev/null
"""
SSHD_CONFIG = """
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/authorized_keys
StrictModes no
UsePAM no
"""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a host.

    Attributes:
        pid: as the machine counts it.
        args: its command line.
        environ: its environment, unsplit.
    """

    pid: int
    args: list[str]
    environ: bytes

    @property
    def rank(self) -> int | None:
        """Which rank of a training it is, if it is one."""
        if not any(arg.startswith("hvd_train/") for arg in self.args[1:2]):
            return None
        for name in (b"HOROVOD_RANK=", b"OMPI_COMM_WORLD_RANK="):
            for variable in self.environ.split(b"\0"):
                if variable.startswith(name):
                    return int(variable.removeprefix(name))
        return None


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a cluster.

    Attributes:
        name: its host name.
        address: its IPv4 address.
        folder: of what is its own: `disk`, seen as Cluster.local, `ssh`, seen as /etc/ssh, `hosts`,
            seen as /etc/hosts, and sshd.log.
        init: the process whose end is the host's.
        switch: the process in whose network the other end of its cable is.
    """

    name: str
    address: str
    folder: Path
    init: int
    switch: int

    @property
    def disk(self) -> Path:
        """What the host sees as Cluster.local."""
        return self.folder / "disk"

    def command(self, args: Sequence[object], *, cwd: Path = ROOT) -> list[str]:
        """The command that runs a command in this host."""
        return [*_enter(self.init, "-m", "-u", "-i", "-n", "-p"), "env", "-C", str(cwd),
                *map(str, args)]  # fmt: skip

    def shell(self, script: str) -> str:
        """Runs a short script in this host and returns what it prints."""
        return _run(self.command(["sh", "-ec", script]))

    def processes(self) -> list[Process]:
        """What runs in this host, but for its first process, sshd and the sessions of sshd."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if not (folder / "ns" / "pid").samefile(f"/proc/{self.init}/ns/pid"):
                    continue
                args = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                process = Process(int(folder.name), args, (folder / "environ").read_bytes())
                if args and process.pid != self.init and not args[0].startswith("sshd: "):
                    found.append(process)
        return found

    def ranks(self) -> dict[int, int]:
        """The process of each rank that trains here."""
        return {p.rank: p.pid for p in self.processes() if p.rank is not None}

    def unplug(self) -> None:
        """Pulls the cable; nobody is told."""
        _run([*_enter(self.switch, "-n"), "ip", "link", "set", self.name, "down"])

    def plug(self) -> None:
        """Puts the cable back."""
        _run([*_enter(self.switch, "-n"), "ip", "link", "set", self.name, "up"])

    def limit_rate(self, rate: str) -> None:
        """Lets so much through the cable a second each way, such as 100mbit."""
        limit = f"root tbf rate {rate} burst 64kb latency 50ms".split()
        for process, device in ((self.switch, self.name), (self.init, "eth0")):
            _run([*_enter(process, "-n"), "tc", "qdisc", "replace", "dev", device, *limit])

    def vanish(self) -> None:
        """Ends the host as a power failure would: nobody is told."""
        self.unplug()
        os.kill(self.init, 9)


@dataclass(slots=True)
class Cluster:
    """Hosts that reach each other by name.

    Attributes:
        folder: of what is the cluster's own.
        hosts: by number.
    """

    folder: Path
    hosts: list[Host] = field(default_factory=list)

    @property
    def local(self) -> Path:
        """A folder that is each host's own."""
        return self.folder / "local"

    def left(self, seconds: float, *, but: str | None = None) -> list[str]:
        """What still runs on any host after at most so many seconds in which it may end.

        Args:
            seconds: to wait at most.
            but: the name of a program that may stay.
        """
        deadline = time.monotonic() + seconds
        while (found := self._running(but)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _running(self, but: str | None) -> list[str]:
        return [
            f"{host.name}: {' '.join(process.args)[:200]}"
            for host in self.hosts
            for process in host.processes()
            if Path(process.args[0]).name != but
        ]


def missing() -> list[str]:
    """What this machine lacks to be several hosts."""
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None]
    return lacks if os.geteuid() == 0 else ["root", *lacks]


@contextlib.contextmanager
def cluster(
    folder: Path, names: Sequence[str] = NAMES, shared: Sequence[Path] = ()
) -> Iterator[Cluster]:
    """Starts the hosts and ends them, with all that runs there.

    Args:
        folder: a new folder for what is the cluster's own.
        names: of the hosts.
        shared: folders that all hosts see, if they lie under /tmp: others they do anyway.
    """
    made = Cluster(folder)
    made.local.mkdir(parents=True)
    _write_keys(folder, names)
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_ready([*DIES_WITH_US, "unshare", "-n", "sh", "-c", SWITCH]))
        for number, name in enumerate(names, 1):
            host = _host(made, name, number, switch, names, shared)
            made.hosts.append(stack.enter_context(host))
        yield made


@contextlib.contextmanager
def _host(
    made: Cluster,
    name: str,
    number: int,
    switch: int,
    names: Sequence[str],
    shared: Sequence[Path],
) -> Iterator[Host]:
    folder = made.folder / name
    (folder / "disk").mkdir()
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"10.77.0.{i} {n}\n" for i, n in enumerate(names, 1))
    )
    seen = (made.folder, ROOT, Path(sys.prefix), *shared)
    kept = [path for path in seen if path.is_relative_to("/tmp")]
    command = [
        *DIES_WITH_US, "unshare", "-m", "-u", "-i", "-n", "-p", "--mount-proc", "--fork",
        "--kill-child", "sh", "-c", HOST, "sh", name, folder, made.local, *kept,
    ]  # fmt: skip
    with _ready(command) as parent:
        init = int(Path(f"/proc/{parent}/task/{parent}/children").read_text())
        host = Host(name, f"10.77.0.{number}", folder, init, switch)
        cable = f"ip link add {name} type veth peer name eth0 netns {init}"
        _run([*_enter(switch, "-n"), "sh", "-ec", f"{cable}; ip link set {name} master switch up"])
        host.shell(f"ip addr add {host.address}/24 dev eth0; ip link set eth0 up")
        yield host


@contextlib.contextmanager
def _ready(command: Sequence[object]) -> Iterator[int]:
    """Starts a process, waits until it says `ready`, and kills it in the end; returns its id."""
    with subprocess.Popen(
        list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stderr is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(process.stderr.read())
            yield process.pid
        finally:
            process.kill()


def _write_keys(folder: Path, names: Sequence[str]) -> None:
    """Gives each host its own key and the keys of all, and a user's key that opens all."""
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f"]
    _run([*keygen, folder / "key"])
    for name in names:
        (folder / name / "ssh").mkdir(parents=True)
        _run([*keygen, folder / name / "ssh" / "host_key"])
    known = "".join(
        f"{name} {(folder / name / 'ssh' / 'host_key.pub').read_text()}" for name in names
    )
    for name in names:
        ssh = folder / name / "ssh"
        shutil.copy(folder / "key", ssh / "key")
        shutil.copy(folder / "key.pub", ssh / "authorized_keys")
        (ssh / "known_hosts").write_text(known)
        (ssh / "ssh_config").write_text(SSH_CONFIG)
        (ssh / "sshd_config").write_text(SSHD_CONFIG)


def _enter(process: int, *namespaces: str) -> list[str]:
    return ["nsenter", "-t", str(process), *namespaces, "--"]


def _run(command: Sequence[object]) -> str:
    return subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
