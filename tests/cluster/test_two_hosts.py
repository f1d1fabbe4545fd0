"""Runs over two hosts by each launcher, as the README starts them, and what differs between hosts.

Rows of the failure cases: B50, B63, B69, B71.
"""

import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spying import SECRET, spied
from virtual_hosts import Cluster, Host

from data_tools import manifest

ROOT = Path(__file__).resolve().parents[2]
ODD = {"BASH_FUNC_which%%": "() { eval /usr/bin/which; }", "dotted.name": "1"}
"""An exported function of bash, and a variable that a shell can't name."""
STEPS = 20
# A bridge with a member, as where containers run, of the same address on every host.
DOCKER = """
ip link add docker0 type bridge
ip link add veth0 type veth peer name veth1
ip link set veth0 master docker0
for device in veth0 veth1 docker0; do ip link set $device up; done
ip addr add 172.17.0.1/16 dev docker0
"""


@pytest.fixture(scope="session")
def captchas(tmp_path_factory: pytest.TempPathFactory, run_cli: Callable[..., Any]) -> Path:
    """A small data set."""
    folder = tmp_path_factory.mktemp("captchas")
    images, data = folder / "images", folder / "data"
    for command in (
        ["make-captcha", images, "--count", 100],
        ["captcha-to-tfrecord", images, images / "labels.csv", data, "--workers", 1],
    ):
        done = run_cli(["data_tools", *command])
        assert done.rc == 0, done.stderr
    return data


@pytest.fixture
def hosts(cluster: Cluster, captchas: Path) -> tuple[Host, Host]:
    """host1 and host2, each with its own copy of the data set."""
    for host in cluster.hosts:
        shutil.copytree(captchas, host.disk / "captcha")
    host1, host2 = cluster.hosts
    return host1, host2


def documented(file: str, pattern: str) -> str:
    """A command of the documentation, up to `python ...`, for 2 x 2 ranks in place of 2 x 4."""
    (command,) = set(re.findall(rf"`?({pattern}) python hvd_train/", (ROOT / file).read_text()))
    return str(command).replace("-np 8", "-np 4").replace("1:4,host2:4", "1:2,host2:2")


def flags(cluster: Cluster) -> list[object]:
    return [
        "python", "hvd_train/captcha.py", "--data", cluster.local / "captcha", "--runs-dir",
        cluster.local / "runs", "--model", "linear", "--global-batch", 8, "--steps", STEPS,
        "--log-every", 1, "--eval-every", 0, "--stall-seconds", 30,
    ]  # fmt: skip


def error_lines(done: Any) -> list[str]:
    """The error lines in what a launcher passed on, without the rank that it puts before."""
    return re.findall(r"^(?:\[[\d,]+\]<stderr>: ?)?(error:.*?)\r?$", done.stderr, re.MULTILINE)


def losses(host: Host) -> list[float]:
    lines = (host.disk / "runs" / "captcha" / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if line["split"] == "train"]


def check_trained(done: Any, cluster: Cluster) -> None:
    """One run of four ranks has trained to its end, written by the chief alone, with nothing left.

    Its first loss is every launcher's.
    """
    host1, host2 = cluster.hosts
    assert done.rc == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert cluster.left(10) == []
    run = host1.disk / "runs" / "captcha"
    assert json.loads((run / "eval.json").read_text())["ranks"] == 4
    assert "ranks: 4, 2 on this host, " in done.stdout
    assert len(list((run / "tensorboard").iterdir())) == 1
    assert not (host2.disk / "runs").exists()
    assert len(losses(host1)) == STEPS
    assert error_lines(done) == []
    assert "warning: rank" not in done.stderr, "a rank is unwatched"


def test_mpirun_trains_over_two_hosts_and_tells_the_other_no_secret(
    cluster: Cluster, hosts: tuple[Host, Host], run_on: Callable[..., Any]
) -> None:
    command = documented("README.md", r"mpirun -np 8 --hostfile [^`]*").split()
    hostfile = command.index("--hostfile") + 1
    text = (ROOT / command[hostfile]).read_text()
    command[hostfile] = str(cluster.folder / "hosts")
    (cluster.folder / "hosts").write_text(text.replace("slots=4", "slots=2"))
    env = {"AWS_SECRET_ACCESS_KEY": SECRET, **ODD}
    with spied(*hosts) as (ranks, leaks):
        done = run_on(hosts[0], [*command, *flags(cluster)], env=env, timeout=240)
    check_trained(done, cluster)
    assert ranks == {0, 1, 2, 3}
    assert leaks == set()
    assert SECRET not in done.stdout + done.stderr


def test_horovodrun_trains_over_two_hosts_that_each_have_a_docker0(
    cluster: Cluster, hosts: tuple[Host, Host], run_on: Callable[..., Any]
) -> None:
    for host in hosts:
        host.shell(DOCKER)
    command = documented("README.md", r"(?<=`)horovodrun -np 8 -H host1:4,host2:4")
    done = run_on(hosts[0], [*command.split(), *flags(cluster)], env=ODD, timeout=240)
    check_trained(done, cluster)


def test_horovodrun_over_gloo_trains_over_a_slow_link_and_a_bare_shell_has_no_secret(
    cluster: Cluster, hosts: tuple[Host, Host], run_on: Callable[..., Any]
) -> None:
    for host in hosts:
        host.limit_rate("100mbit")
    command = documented("README.md", r"env -i [^`]*horovodrun [^`]*")
    script = f"exec {command} --gloo {shlex.join(map(str, flags(cluster)))}"
    env = {"AWS_SECRET_ACCESS_KEY": SECRET, **ODD}
    with spied(*hosts) as (ranks, leaks):
        done = run_on(hosts[0], ["bash", "-c", script], env=env, timeout=240)
    check_trained(done, cluster)
    assert ranks == {0, 1, 2, 3}
    assert leaks == set()
    assert SECRET not in done.stdout + done.stderr


def test_mpirun_that_docker0_leads_astray_says_so_and_its_documented_flags_mend_it(
    cluster: Cluster, hosts: tuple[Host, Host], run_on: Callable[..., Any]
) -> None:
    for host in hosts:
        host.shell(DOCKER)
    command = ["mpirun", "-np", 2, "-H", "host1:1,host2:1", "-x", "PATH"]
    done = run_on(hosts[0], [*command, *flags(cluster)], timeout=240)
    assert error_lines(done) == [
        "error: HOST: host1: the ranks of the other hosts can't be reached for 90 s; this host's "
        "networks: eth0 10.77.0.1/24, docker0 172.17.0.1/16; name the one that the hosts "
        "share, such as eth0: mpirun --mca btl_tcp_if_include eth0, or horovodrun "
        "--network-interfaces eth0"
    ]
    assert done.rc != 0
    assert cluster.left(10) == []
    assert list(hosts[0].disk.iterdir()) == [hosts[0].disk / "captcha"]
    mended = done.stderr.partition("such as eth0: mpirun ")[2].partition(",")[0].split()
    done = run_on(hosts[0], [*command, *mended, *flags(cluster)], timeout=240)
    assert done.rc == 0, done.stderr[-3000:]


# What only one host has, or has otherwise


def test_what_is_wrong_with_one_hosts_data_names_the_host_before_anything_is_written(
    cluster: Cluster, hosts: tuple[Host, Host], run_on: Callable[..., Any]
) -> None:
    def fails() -> list[str]:
        command = ["mpirun", "-np", 2, "-H", "host1:1,host2:1", "-x", "PATH", *flags(cluster)]
        done = run_on(hosts[0], command, timeout=240)
        assert done.rc != 0
        assert cluster.left(10) == []
        assert "Traceback" not in done.stderr
        assert not (hosts[0].disk / "runs").exists()
        return error_lines(done)

    data, seen = hosts[1].disk / "captcha", cluster.local / "captcha"
    shard = manifest.load(data).splits["train"].shards[0]
    content = bytearray((data / shard.file).read_bytes())
    content[100] ^= 1
    (data / shard.file).write_bytes(content)
    assert fails() == [
        f"error: INTEGRITY: host2:{seen / shard.file}: SHA-256 "
        f"{hashlib.sha256(content).hexdigest()[:12]}..., the manifest says {shard.sha256[:12]}...; "
        "run data_tools verify to find the record, then convert the data set again"
    ]
    path = data / manifest.FILE_NAME
    path.write_bytes(path.read_bytes() + b" ")
    own, other = manifest.digest(hosts[0].disk / "captcha"), manifest.digest(data)
    assert fails() == [
        f"error: INTEGRITY: data set: rank 1 on host2 has manifest = {other}, rank 0 has {own}; "
        "give every host a copy of the same data set"
    ]
    shutil.rmtree(data)
    assert fails() == [
        f"error: HOST: host2:{seen}: no data set there; the chief's host has one; "
        "copy it from there, to the same path"
    ]


def test_root_is_refused_by_mpirun_and_never_allowed_by_us(
    cluster: Cluster, run_on: Callable[..., Any]
) -> None:
    nobody_allowed = {"OMPI_ALLOW_RUN_AS_ROOT": None, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": None}
    command = ["mpirun", "-np", 1, *flags(cluster)]
    done = run_on(cluster.hosts[0], command, env=nobody_allowed)
    assert done.rc != 0
    assert "mpirun has detected an attempt to run as root" in done.stderr
    assert "`mpirun has detected an attempt to run as root`" in (ROOT / "README.md").read_text()
