"""The hosts that the other tests here run on."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import virtual_hosts
from virtual_hosts import Cluster

START = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import virtual_hosts
with virtual_hosts.cluster(Path(sys.argv[2])) as made:
    print(*(process for host in made.hosts for process in (host.init, host.switch)), flush=True)
    time.sleep(60)
"""


def test_hosts_have_what_is_their_own_and_reach_each_other_by_ssh(
    cluster: Cluster, run_on: Callable[..., Any]
) -> None:
    host1 = cluster.hosts[0]
    done = run_on(host1, ["ssh", "-o", "BatchMode=yes", "host2", "hostname; touch /tmp/own"])
    assert (done.rc, done.stdout, done.stderr) == (0, "host2\n", "")
    (host1.disk / "file").touch()
    assert [host.shell(f"ls {cluster.local}") for host in cluster.hosts] == ["file\n", ""]
    assert [host.shell("ls /tmp | grep -c own || true") for host in cluster.hosts] == ["0\n", "1\n"]
    assert [host.shell("ls /dev/shm") for host in cluster.hosts] == ["", ""]
    assert cluster.left(10) == []


def test_a_cable_can_be_pulled_and_put_back(cluster: Cluster) -> None:
    host1, host2 = cluster.hosts
    hears = "ssh -o BatchMode=yes -o ConnectTimeout=1 host2 echo yes || echo no"
    heard = [host1.shell(hears)]
    host2.unplug()
    heard.append(host1.shell(hears))
    host2.plug()
    heard.append(host1.shell(hears))
    host2.vanish()
    heard.append(host1.shell(hears))
    assert heard == ["yes\n", "no\n", "yes\n", "no\n"]


def test_nothing_is_left_of_hosts_whose_maker_is_killed(tmp_path: Path) -> None:
    if lacks := virtual_hosts.missing():
        pytest.skip(f"hosts of our own need {', '.join(lacks)}")
    folder = Path(virtual_hosts.__file__).parent
    with subprocess.Popen(
        [sys.executable, "-c", START, folder, tmp_path / "cluster"], stdout=subprocess.PIPE,
        text=True,
    ) as maker:  # fmt: skip
        assert maker.stdout is not None
        made = {Path("/proc", pid) for pid in maker.stdout.readline().split()}
        maker.kill()
    assert len(made) == 3
    deadline = time.monotonic() + 20
    while any(process.exists() for process in made) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(process.exists() for process in made)
    (tmp_path / "cluster" / "local" / "file").touch()  # no mount of a host's is left here
