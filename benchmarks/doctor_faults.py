"""Plants faults on hosts one at a time and tells how soon `hvd_train doctor` names each.

The hosts are namespaces of this machine with real sshd (virtual_hosts.py), so it takes root. A host
of another Python, or whose clock is wrong, has a wrapper in place of its interpreter, since the
hosts share one kernel clock; what is absent there is hidden by an empty mount.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import harness
import virtual_hosts
from virtual_hosts import Cluster, Host

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
DATA = "data"
"""Folder of each host's own data set, in Cluster.local."""
# What ip-rule(8) can part by ports, in place of a firewall: nothing from these comes through.
HIGH_PORTS = "ipproto tcp sport 1024-65534"
DOCKER = """
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
"""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault of one host.

    Attributes:
        script: plants it there, run by sh with the words of `variables`.
        kind: of the line that must name it.
        says: what that line says after the host, a regular expression.
        on_host1: plants the rest on the host where the doctor runs.
        slots: of the host.
    """

    script: str
    kind: str
    says: str
    on_host1: str = ""
    slots: int = 1


def wrapper(prelude: str) -> str:
    """Puts a program in place of the interpreter, which runs the probe after other code."""
    return f"""
cp -a $BIN $LOCAL/bin
cat > $LOCAL/bin/wrapper <<'END'
#!/bin/sh
[ "$1" = -uc ] || exec $0.real "$@"
exec $0.real -uc "{prelude}
$2"
END
chmod +x $LOCAL/bin/wrapper
for name in python python3; do
  mv $LOCAL/bin/$name $LOCAL/bin/$name.real 2>/dev/null || continue
  cp $LOCAL/bin/wrapper $LOCAL/bin/$name
done
mount --bind $LOCAL/bin $BIN
"""


def appended(module: str, text: str) -> str:
    """Adds a line to a module of that host."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return f"""
cp {spec.origin} $LOCAL/module.py
echo "{text}" >> $LOCAL/module.py
mount --bind $LOCAL/module.py {spec.origin}
"""


def hidden(package: str) -> str:
    """Leaves a package of that host empty."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return f"mount -t tmpfs tmpfs {spec.submodule_search_locations[0]}"


MAKE_ENV = r"run make env in the same folder there, or copy the environment to the same path"
FAULTS = {
    "refused-key": Planted(
        ": > /etc/ssh/authorized_keys", "HOST",
        r"sshd refuses the key of root; ssh-copy-id refused-key",
    ),
    "key-changed": Planted(
        "true", "HOST",
        r"its ssh host key isn't the one that was known; if it was set up anew: "
        r"ssh-keygen -R key-changed, then ssh key-changed once",
        on_host1="key=$(awk '$1 == \"host1\" {print $3}' /etc/ssh/known_hosts); "
        "sed -i \"s|^\\(key-changed ssh-ed25519 \\).*|\\1$key|\" /etc/ssh/known_hosts",
    ),
    "key-unknown": Planted(
        "true", "HOST",
        r"its ssh host key isn't known here; ssh key-unknown once by hand and accept the key",
        on_host1="sed -i /^key-unknown/d /etc/ssh/known_hosts",
    ),
    "sshd-absent": Planted(
        "echo ListenAddress 127.0.0.1 >> /etc/ssh/sshd_config; kill -HUP $(cat /run/sshd.pid)",
        "HOST", r"no sshd answers; start sshd there, or name its port by --ssh-port",
    ),
    "no-venv": Planted(
        "mount -t tmpfs tmpfs $VENV", "HOST", rf"no {BIN}/python[\d.]* there; {MAKE_ENV}"
    ),
    "other-path": Planted(
        "mount -t tmpfs tmpfs $(dirname $ROOT)", "HOST",
        rf"no folder {ROOT} there; put the project at the same path on all hosts, and start in it",
    ),
    "other-python": Planted(
        wrapper("import sys; sys.version_info = (3, 9, 2, 'final', 0)"), "HOST",
        r"Python 3\.9, host1 has 3\.1\d; "
        r"build the environment there with the same Python: make env PYTHON=\.\.\.",
    ),
    "other-tf": Planted(
        appended("tensorflow", "__version__ = '2.20.0'"), "HOST",
        r"TensorFlow 2\.20\.0, host1 has 2\.21\.0; "
        r"run make env there with the same requirements\.txt",
    ),
    "no-horovod-mpi": Planted(
        appended("horovod.common.basics", "HorovodBasics.mpi_built = lambda self: False"), "HOST",
        r"Horovod was built without MPI; start with horovodrun --gloo, or put mpicxx on PATH there "
        r"and run python tools/build_horovod\.py --rebuild",
    ),
    "horovod-absent": Planted(
        hidden("horovod"), "HOST",
        r"Horovod doesn't load: ModuleNotFoundError: No module named 'horovod.*'; "
        r"run make env there, or python tools/build_horovod\.py",
    ),
    "data-absent": Planted(
        "rm -r $LOCAL/data", "HOST",
        r"no folder .*/data; copy the data set to the same path there, from host1: "
        r"rsync -a (.*)/ data-absent:\1",
    ),
    "data-differs": Planted(
        "echo >> $LOCAL/data/manifest.json", "INTEGRITY",
        r".*/data: another data set than that of host1; copy one of them to all hosts",
    ),
    "data-damaged": Planted(
        ": > $LOCAL/data/shard", "INTEGRITY",
        r".*/data/shard: absent or of another size than the manifest says; "
        r"copy the data set again, then data_tools verify",
    ),
    "disk-full": Planted(
        "mount -o remount,size=90m /tmp", "SPACE", r"/tmp: \d+ MB are free; free some space there"
    ),
    "too-many-slots": Planted(
        "true", "CONFIG",
        r"512 slots but \d+ cores; give it at most (\d+), as in -H too-many-slots:\1", slots=512,
    ),
    "clock-off": Planted(
        wrapper("import time; now = time.time; time.time = lambda: now() + 300"), "HOST",
        r"its clock is (299|300|301) s ahead of that of this host; "
        r"set it by NTP: timedatectl set-ntp true",
    ),
    "blocked-port": Planted(
        f"ip rule add {HIGH_PORTS} to 10.77.0.1 prohibit", "HOST",
        r"it can't reach port \d+ of host1 at 10\.77\.0\.1: permission denied; "
        r"let TCP through between the hosts, on all ports",
    ),
}  # fmt: skip


def make_data(cluster: Cluster) -> None:
    """Gives each host a copy of what looks like a small data set from outside."""
    for host in cluster.hosts:
        folder = host.disk / DATA
        folder.mkdir()
        (folder / "shard").write_bytes(b"12345")
        shards = [{"file": "shard", "bytes": 5}]
        (folder / "manifest.json").write_text(json.dumps({"splits": {"train": {"shards": shards}}}))


def plant(cluster: Cluster, host: Host, fault: Planted) -> None:
    """Plants a fault on a host."""
    variables = f"ROOT={ROOT} VENV={sys.prefix} BIN={BIN} LOCAL={cluster.local}\n"
    host.shell(variables + fault.script)
    if fault.on_host1:
        cluster.hosts[0].shell(fault.on_host1)


def doctor(cluster: Cluster, hosts: str, *flags: str) -> list[str]:
    """The command that runs the doctor on host1."""
    words = ["-H", hosts, "--data", str(cluster.local / DATA), *flags]
    return cluster.hosts[0].command([BIN / "hvd_train", "doctor", *words])


def seconds(name: str, fault: Planted) -> float:
    """Plants one fault and returns how long the doctor took to name it."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        names = ("host1", name)
        with virtual_hosts.cluster(folder / "cluster", names) as cluster:
            make_data(cluster)
            plant(cluster, cluster.hosts[1], fault)
            begin = time.perf_counter()
            ran = subprocess.run(
                doctor(cluster, f"host1:1,{name}:{fault.slots}"), capture_output=True, text=True,
                check=False, env={**os.environ, "HOME": str(folder)}, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            took = time.perf_counter() - begin
    assert ran.returncode and f"{fault.kind}: {name}:" in ran.stderr, ran.stderr
    return took


def main() -> None:
    """Prints the seconds of each fault, their median and the most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAULTS, help="faults to plant")
    harness.add_save(parser)
    args = parser.parse_args()
    if lacks := virtual_hosts.missing():
        parser.error(f"it needs {', '.join(lacks)}")
    took = {}
    for name in args.only or FAULTS:
        took[name] = seconds(name, FAULTS[name])
        print(f"{name:20} {took[name]:5.1f} s", flush=True)
    lines = ["| fault | s |", "|---|---|", *(f"| {n} | {s:.1f} |" for n, s in took.items())]
    lines.append(f"\nmedian {median(took.values()):.1f} s, most {max(took.values()):.1f} s")
    harness.report(lines, save=args.save)


if __name__ == "__main__":
    main()
