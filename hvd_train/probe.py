"""What one host is like; knows the standard library alone, also that of an older Python.

`hvd_train doctor` sends this file's text to each host and runs it there, since the project may be
absent. Host and doctor then write lines of JSON to each other: what to look at; the facts, with a
port that is open from now on; where the other hosts' ports are; what was reached, and whether
TensorFlow and Horovod load.
"""

from __future__ import annotations

import array
import errno
import fcntl
import hashlib
import ipaddress
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

MARK = "hvd-train doctor: "
"""Stands before the lines of JSON, since a login script may write lines of its own."""
CONNECT_SECONDS = 3.0
LOAD_SECONDS = 90.0
"""How long TensorFlow and Horovod may take to load, from a slow shared disk."""
MEET_SECONDS = 90.0
"""Within which the ranks of all hosts come together, at least: some are longer in loading, and Open
MPI 4.1 sometimes takes a minute for its first connections between hosts."""
GET_ADDRESSES, GET_FLAGS, GET_NETMASK = 0x8912, 0x8913, 0x891B
"""SIOCGIFCONF, SIOCGIFFLAGS and SIOCGIFNETMASK of netdevice(7)."""
NAME_BYTES, ENTRY_BYTES, MOST_ADDRESSES = 16, 40, 1024
"""Of a struct ifreq: its name and all of it; and how many are read."""
UP, LOOPBACK = 0x1, 0x8

LOAD = """
import json
found = {}
try:
    import tensorflow as tf
    found["tensorflow"] = tf.__version__
    found["gpus"] = len(tf.config.list_physical_devices("GPU"))
    import horovod
    import horovod.tensorflow as hvd
    found["horovod"] = horovod.__version__
    found["mpi"], found["gloo"] = bool(hvd.mpi_built()), bool(hvd.gloo_built())
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print()
print(json.dumps(found))
"""


def facts(root: str, folder: str, data: str | None) -> dict[str, Any]:
    """Looks at this host.

    Args:
        root: the folder of the project.
        folder: the one that ranks start in.
        data: the data set folder, if any.
    """
    return {
        "host": socket.gethostname(),
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "missing": [path for path in dict.fromkeys((root, folder)) if not Path(path).is_dir()],
        "code": code_digest(root),
        "cores": [len(os.sched_getaffinity(0)), os.cpu_count() or 1],
        "interfaces": interfaces(),
        "data": data_set(data) if data else None,
        "free": free_bytes([folder, tempfile.gettempdir()]),
        "time": time.time(),  # last, since what comes before takes its time
    }


def code_digest(root: str) -> str:
    """SHA-256 over the project's modules, of those that are there."""
    digest = hashlib.sha256()
    for package in ("data_tools", "hvd_train"):
        for path in sorted(Path(root, package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def data_set(folder: str) -> dict[str, Any]:
    """The SHA-256 of the manifest and the shards that are absent or have another size."""
    try:
        text = Path(folder, "manifest.json").read_bytes()
        shards = [
            shard for split in json.loads(text)["splits"].values() for shard in split["shards"]
        ]
        wrong = [
            shard["file"]
            for shard in shards
            if _size(Path(folder, shard["file"])) != shard["bytes"]
        ]
    except OSError as error:
        return {"error": _why_unread(folder, error)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": f"manifest.json: {error!r}"}
    return {"digest": hashlib.sha256(text).hexdigest(), "wrong": wrong}


def _why_unread(folder: str, error: OSError) -> str:
    """Why there is no manifest to read."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return f"{error.filename}: {error.strerror}"
    return f"no manifest.json in {folder}" if Path(folder).is_dir() else f"no folder {folder}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def free_bytes(folders: list[str]) -> dict[str, int]:
    """What an ordinary user may still write under each folder that is there."""
    return {path: shutil.disk_usage(path).free for path in folders if Path(path).is_dir()}


def interfaces() -> list[list[str]]:
    """Name and IPv4 address with its prefix length, of each interface that is up.

    Loopback is left out. One interface may have several addresses.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

        def ask(what: int, entry: bytes) -> bytes:
            return fcntl.ioctl(sock.fileno(), what, entry)[NAME_BYTES:]

        for entry in _address_entries(sock):
            flags = struct.unpack_from("H", ask(GET_FLAGS, entry))[0]
            if flags & UP and not flags & LOOPBACK:
                name = entry[:NAME_BYTES].rstrip(b"\0").decode()
                address, netmask = (
                    socket.inet_ntoa(answer[4:8])
                    for answer in (entry[NAME_BYTES:], ask(GET_NETMASK, entry))
                )
                prefix = ipaddress.ip_network("0.0.0.0/" + netmask).prefixlen
                found.append([name, f"{address}/{prefix}"])
    return found


def _address_entries(sock: socket.socket) -> list[bytes]:
    """A struct ifreq for each IPv4 address of this host."""
    room = array.array("B", bytes(MOST_ADDRESSES * ENTRY_BYTES))
    place, _ = room.buffer_info()
    request = struct.pack("iL", len(room), place)  # struct ifconf
    length = struct.unpack_from("i", fcntl.ioctl(sock.fileno(), GET_ADDRESSES, request))[0]
    data = room.tobytes()[:length]
    return [data[at : at + ENTRY_BYTES] for at in range(0, length, ENTRY_BYTES)]


def start_loading(interpreter: str, root: str) -> subprocess.Popen[str]:
    """Starts a process that imports TensorFlow and Horovod, as a rank would."""
    return subprocess.Popen(
        [interpreter, "-c", LOAD], cwd=root, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        universal_newlines=True,
    )  # fmt: skip


def loaded(process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    """What that process found: versions, GPUs, how Horovod was built, or "error", or "late"."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"late": seconds}
    try:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"the interpreter ended with {process.returncode}"}
    return found


def open_port(identity: str) -> socket.socket:
    """Opens a free port on all addresses, which tells who it is to whoever connects."""
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen(64)

    def answer() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:  # the port is closed
                return
            with peer:
                try:
                    peer.sendall(identity.encode())
                except OSError:
                    continue

    threading.Thread(target=answer, daemon=True).start()
    return listener


def reach(peers: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Connects to every address of every other host.

    Args:
        peers: by host its "addresses", its "port" and its "identity".

    Returns:
        By host and address an empty string, or why it can't be reached. An address that two hosts
        have, as of docker0, reaches another than the one meant.
    """
    found: dict[str, dict[str, str]] = {host: {} for host in peers}

    def connect(host: str, address: str) -> None:
        peer, reason = peers[host], ""
        try:
            where = (address, peer["port"])
            with socket.create_connection(where, timeout=CONNECT_SECONDS) as sock:
                # A stranger may write anything, without an end.
                said = sock.makefile(errors="replace").read(len(peer["identity"]) + 1)
                if said != peer["identity"]:
                    reason = "another host answers there"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        found[host][address] = reason

    threads = [
        threading.Thread(target=connect, args=(host, address), daemon=True)
        for host, peer in peers.items()
        for address in peer["addresses"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def tell(value: dict[str, Any]) -> None:
    """Writes a line to the doctor."""
    print(MARK + json.dumps(value), flush=True)


def main() -> None:
    """Looks at this host as the doctor's lines on standard input say."""
    wanted = json.loads(sys.stdin.readline())
    root, interpreter = wanted["root"], wanted["interpreter"]
    has_interpreter = os.access(interpreter, os.X_OK)
    is_whole = has_interpreter and Path(root).is_dir()
    process = start_loading(interpreter, root) if is_whole else None
    identity = secrets.token_hex(8)
    listener = open_port(identity)
    tell({
        "interpreter": has_interpreter, "port": listener.getsockname()[1], "identity": identity,
        **facts(root, wanted["folder"], wanted["data"]),
    })  # fmt: skip
    line = sys.stdin.readline()
    if line:
        reached = reach(json.loads(line))
        load = loaded(process, wanted["load_seconds"]) if process is not None else None
        tell({"load": load, "reached": reached})
        sys.stdin.readline()  # the port stays open until all have looked
    elif process is not None:  # the doctor is gone
        process.kill()


if __name__ == "__main__":
    main()
