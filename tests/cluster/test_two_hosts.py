"""Runs over two hosts by each launcher, and what goes wrong between hosts."""

from collections.abc import Callable
from typing import Any

from virtual_hosts import Cluster


def test_hosts_reach_each_other_by_ssh_and_leave_nothing(
    cluster: Cluster, run_on: Callable[..., Any]
) -> None:
    host1, host2 = cluster.hosts
    done = run_on(host1, ["ssh", "-o", "BatchMode=yes", "host2", "hostname; ls /tmp /dev/shm"])
    assert (done.rc, done.stdout.split()[0], done.stderr) == (0, "host2", "")
    assert cluster.left(5) == []
    (host1.disk / "file").touch()
    assert host1.shell(f"ls {cluster.local}") == "file\n"
    assert host2.shell(f"ls {cluster.local}") == ""
