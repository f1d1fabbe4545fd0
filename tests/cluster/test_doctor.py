"""`hvd_train doctor` over real sshd: what it says of hosts with a fault each, and of good ones.

Rows of the failure cases: B63, B64, B65, B67, B69, B70, B75 (slots).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import doctor_faults
import pytest
import virtual_hosts
from doctor_faults import DOCKER, FAULTS, Planted
from spying import SECRET, spied
from virtual_hosts import Cluster

RunOn = Callable[..., Any]
LIMIT = 180
"""Seconds, of several faults at once; benchmarks/doctor_faults.py tells how long each takes."""
TOGETHER = 4
"""Hosts with a fault that are looked at together: all of them share this machine's cores."""
GATEWAY = """
ip addr add 10.99.0.1/24 dev eth0
others=$(grep -v apart /etc/hosts)
printf '%s\n10.99.0.9 apart\n' "$others" > /etc/hosts
"""
# Its only way to host1 is through ssh on the gateway.
APART = """
ip addr flush dev eth0; ip addr add 10.99.0.9/24 dev eth0
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """host1, a host for each fault, and two whose networks differ."""
    if lacks := virtual_hosts.missing():
        pytest.skip(f"hosts of our own need {', '.join(lacks)}")
    folder = tmp_path_factory.mktemp("doctor") / "cluster"
    with virtual_hosts.cluster(folder, ("host1", *FAULTS, "gateway", "apart")) as made:
        doctor_faults.make_data(made)
        *hosts, gateway, apart = made.hosts
        for host, fault in zip(hosts[1:], FAULTS.values(), strict=True):
            doctor_faults.plant(made, host, fault)
        gateway.shell(GATEWAY)
        apart.shell(APART + DOCKER)
        hosts[0].shell(
            DOCKER + "printf 'Host apart\\n ProxyJump gateway\\n' >> /etc/ssh/ssh_config"
        )
        yield made


@pytest.fixture(scope="module")
def examined(faulty: Cluster, run_on: RunOn) -> dict[tuple[str, ...], Any]:
    """What the doctor says of host1, an unknown host and some faults at once, by their names."""
    data = faulty.local / doctor_faults.DATA
    found = {}
    for names in zip_longest(*[iter(FAULTS)] * TOGETHER):
        named = tuple(name for name in names if name)
        hosts = ",".join(f"{name}:{FAULTS[name].slots}" for name in named)
        words = ["hvd_train", "doctor", "-H", f"host1:1,{hosts},no-such-host:1", "--data", data]
        found[named] = run_on(faulty.hosts[0], words, timeout=LIMIT)
        assert not found[named].left
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_host_is_named_with_its_fix(examined: Any, name: str) -> None:
    fault: Planted = FAULTS[name]
    wanted = re.compile(f"{fault.kind}: {name}(?::|: ){fault.says}")
    said = next(done.stderr for names, done in examined.items() if name in names)
    lines = [line for line in said.splitlines() if f": {name}:" in line]
    assert [line for line in lines if wanted.fullmatch(line)], lines


def test_an_unknown_host_is_named(examined: Any) -> None:
    line = (
        "HOST: no-such-host: no host of that name is known here; "
        "correct the name, or add it to DNS or /etc/hosts"
    )
    assert all(line in done.stderr.splitlines() for done in examined.values())


def test_the_last_line_counts_and_a_table_shows_whoever_answers(examined: Any) -> None:
    silent = {"refused-key", "key-changed", "key-unknown", "sshd-absent", "no-venv"}
    for names, done in examined.items():
        assert done.rc == 6
        lines = done.stderr.splitlines()
        # One fault each and the unknown host; of the blocked port one more, from the other side.
        count = len(names) + 1 + ("blocked-port" in names)
        assert lines[count:] == [
            f"error: HOST: doctor: {count} faults; mend the first, which may be the cause of "
            "others, then start the doctor again"
        ]
        shown = [line.split()[0] for line in done.stdout.splitlines()]
        assert shown == ["host", "host1", *(name for name in names if name not in silent)]
        assert "start training" not in done.stdout


def test_networks_that_have_only_an_address_of_docker_in_common_are_told_apart(
    faulty: Cluster, run_on: RunOn
) -> None:
    words = ["hvd_train", "doctor", "-H", "host1:1,gateway:1,apart:1"]
    done = run_on(faulty.hosts[0], words, timeout=LIMIT)
    assert (done.rc, done.stderr) == (
        6,
        "error: HOST: apart, host1: no network in common: "
        "apart has eth0 10.99.0.9/24, docker0 172.17.0.1/16; "
        "host1 has eth0 10.77.0.1/24, docker0 172.17.0.1/16; "
        "connect both to one network; an address that both have is of no use\n",
    )


def test_a_wrong_port_of_sshd_is_named_with_the_right_one(faulty: Cluster, run_on: RunOn) -> None:
    words = ["hvd_train", "doctor", "-H", "gateway:1", "--ssh-port", "2222"]
    done = run_on(faulty.hosts[0], words, timeout=LIMIT)
    assert done.rc == 6
    assert done.stderr == (
        "error: HOST: gateway: no sshd on port 2222, but on 22; leave out --ssh-port\n"
    )


def test_good_hosts_get_commands_that_start_ranks_on_both(cluster: Cluster, run_on: RunOn) -> None:
    host1 = cluster.hosts[0]
    for host in cluster.hosts:
        host.shell(DOCKER)
    done = run_on(host1, ["hvd_train", "doctor", "-H", "host1:1,host2:1"], timeout=LIMIT)
    assert (done.rc, done.stderr) == (0, "")
    *_, horovodrun, mpirun = (line.strip() for line in done.stdout.splitlines())
    assert horovodrun == (
        'env -i PATH="$PATH" HOME="$HOME" horovodrun -np 2 -H host1:1,host2:1 '
        "--network-interfaces eth0 python hvd_train/cifar.py"
    )
    assert mpirun == (
        "mpirun -np 2 -H host1:1,host2:1 -x PATH --mca btl_tcp_if_include 10.77.0.0/24 "
        "--mca oob_tcp_if_include 10.77.0.0/24 python hvd_train/cifar.py"
    )
    script = f"hvd_train doctor -- {horovodrun}"
    env = {"AWS_SECRET_ACCESS_KEY": SECRET}
    with spied(host1, cluster.hosts[1]) as (_, leaks):
        done = run_on(host1, ["bash", "-c", script], env=env, timeout=LIMIT)
    assert leaks == set()
    assert (done.rc, done.stderr) == (0, "")
    assert done.stdout.endswith("\nno faults: 2 ranks came together\n")
    assert ranks(done.stdout.splitlines()[-5:-2]) == [["host1", "0"], ["host2", "1"]]
    under_mpirun = mpirun.replace("python hvd_train/cifar.py", "hvd_train doctor").split()
    done = run_on(host1, under_mpirun, timeout=LIMIT)
    assert (done.rc, done.stderr) == (0, "")
    assert ranks(done.stdout.splitlines()) == [["host1", "0"], ["host2", "1"]]
    assert cluster.left(10) == []


def ranks(table: Sequence[str]) -> list[list[str]]:
    """The first two columns of a table of ranks."""
    head, *rows = [line.split()[:2] for line in table]
    assert head == ["host", "rank"]
    return rows
