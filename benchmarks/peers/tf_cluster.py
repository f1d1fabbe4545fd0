"""Starts the tasks of a TensorFlow cluster on this machine, each told by TF_CONFIG what it is."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

Cluster = Mapping[str, Sequence[str]]


def local_cluster(tasks: Mapping[str, int]) -> dict[str, list[str]]:
    """Gives each task a free port of the loopback: `{"worker": 2}` becomes two addresses."""
    # All are held open until the last is known, so that no two are the same.
    sockets = {job: [socket.socket() for _ in range(count)] for job, count in tasks.items()}
    addresses: dict[str, list[str]] = {}
    for job, opened in sockets.items():
        for one in opened:
            one.bind(("localhost", 0))
        addresses[job] = [f"localhost:{one.getsockname()[1]}" for one in opened]
    for opened in sockets.values():
        for one in opened:
            one.close()
    return addresses


def tf_config(cluster: Cluster, job: str, index: int) -> str:
    """What TF_CONFIG holds for one task."""
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})


def start_task(cluster: Cluster, job: str, index: int) -> subprocess.Popen[bytes]:
    """Runs this same script, with the same flags, as a task of the cluster.

    It says nothing on standard output, which is the chief's.
    """
    return subprocess.Popen(
        [sys.executable, *sys.argv],
        env={**os.environ, "TF_CONFIG": tf_config(cluster, job, index)},
        stdout=subprocess.DEVNULL,
    )
