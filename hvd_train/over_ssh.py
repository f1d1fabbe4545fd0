"""Probes that run on hosts, here or there over ssh, and what ssh's words mean."""

import contextlib
import functools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

from data_tools.errors import CONFIG, HOST, DataError
from hvd_train import probe
from hvd_train.probe import LOAD_SECONDS

T = TypeVar("T")
REACH_SECONDS = 15.0
"""How long a host may take to show its facts."""
LOOKUP_SECONDS = 5.0
"""How long a name may take to be known here, before it is left to ssh."""
SSH_PORT = 22
PROBE = Path(probe.__file__).read_text(encoding="ascii")
NO_COMMAND = 127
"""How a shell ends that finds no such program."""


Facts = dict[str, Any]
LOST = {"load": {"error": "the connection to the host was lost"}, "reached": {}}


def examine(
    hosts: Sequence[str], ssh_port: int | None, wanted: Facts
) -> tuple[dict[str, Facts], list[DataError]]:
    """Looks at all hosts at the same time, and at the ways between them.

    Args:
        hosts: by the names that ssh knows.
        ssh_port: of their sshd.
        wanted: "root", the project's folder, "folder", the one to start in, "data", a data set or
            None, the "interpreter", and "load_seconds" for it to load TensorFlow.

    Returns:
        By host the facts of `probe.facts` with "load" of `probe.loaded`, "reached" of
        `probe.reach` and "skew"; and the faults of the hosts that it can't look at.
    """
    with ThreadPoolExecutor(len(hosts)) as pool, ExitStack() as stack:
        probes = [stack.enter_context(closing(Probe(host, ssh_port))) for host in hosts]
        answers = pool.map(lambda probe: _or_error(lambda: probe.facts(wanted)), probes)
        known, faults = dict[Probe, Facts](), []
        for probe, answer in zip(probes, answers, strict=True):
            if isinstance(answer, DataError):
                faults.append(answer)
            else:
                known[probe] = answer
        doors = {probe: _door(facts) for probe, facts in known.items()}
        for probe in known:
            probe.send({other.host: door for other, door in doors.items() if other is not probe})
        rest = pool.map(lambda probe: probe.receive(LOAD_SECONDS + REACH_SECONDS), known)
        pairs = zip(known.items(), rest, strict=True)
        return {probe.host: {**facts, **(more or LOST)} for (probe, facts), more in pairs}, faults


def _door(facts: Facts) -> Facts:
    """Where other hosts find the port that a host has opened."""
    addresses = [address.partition("/")[0] for _, address in facts["interfaces"]]
    return {"addresses": addresses, "port": facts["port"], "identity": facts["identity"]}


def _or_error(work: Callable[[], T]) -> T | DataError:
    try:
        return work()
    except DataError as error:
        return error


class Probe:
    """A process that runs probe.py on a host.

    Args:
        host: the name of a host, as ssh knows it.
        ssh_port: of its sshd, None for the one that ssh's own configuration says.

    Raises:
        DataError: CONFIG when there is no ssh here.
    """

    def __init__(self, host: str, ssh_port: int | None) -> None:
        self.host = host
        self._ssh_port = ssh_port
        self._late = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # A session of its own, so that there is no terminal to prompt on.
            self._process = subprocess.Popen(
                command(host, ssh_port), text=True, errors="replace", start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except OSError as error:
            reason = f"it can't be started: {error.strerror}"
            raise DataError(CONFIG, "ssh", reason, fix="install openssh-client") from error

    def facts(self, wanted: Facts) -> Facts:
        """Asks for the facts; adds "skew", the seconds that its clock is ahead of this one.

        Raises:
            DataError: HOST when the host can't be reached, or nothing there can run the probe.
        """
        self.send(wanted, before=PROBE)
        found = self.receive(REACH_SECONDS)
        if found is None:
            raise self._fault(wanted["interpreter"])
        if not found["interpreter"] and not found["missing"]:
            raise no_interpreter(self.host, wanted["interpreter"])
        return {**found, "skew": found["time"] - time.time()}

    def send(self, value: object, *, before: str = "") -> None:
        """Writes a line to the probe, which may be gone."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(f"{before}{json.dumps(value)}\n")
            stdin.flush()

    def receive(self, seconds: float) -> Facts | None:
        """Returns the probe's next answer, None when it ended or took too long."""
        stdout = self._process.stdout
        assert stdout is not None
        timer = threading.Timer(seconds, self._end_late)
        timer.start()
        try:
            for line in stdout:
                _, mark, text = line.partition(probe.MARK)
                if mark and text.endswith("\n"):  # else it ended within the line
                    answer: Facts = json.loads(text)
                    return answer
        finally:
            timer.cancel()
        return None

    def close(self) -> None:
        """Ends the process and what it started here."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        self._process.wait()

    def _end_late(self) -> None:
        self._late = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _fault(self, interpreter: str) -> DataError:
        if self._late:
            return DataError(
                HOST, self.host, f"no answer within {REACH_SECONDS:.0f} s",
                fix=f"see whether it is up and not overloaded: ssh {self.host} true",
            )  # fmt: skip
        code = self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace")
        if code == NO_COMMAND:
            return no_interpreter(self.host, interpreter)
        return ssh_fault(self.host, self._ssh_port, words)


def command(host: str, ssh_port: int | None) -> list[str]:
    """The command that reads probe.py on its standard input and runs it on that host."""
    run = f"import sys;exec(sys.stdin.read({len(PROBE)}))"
    if is_here(host):
        return [sys.executable, "-uc", run]
    python = shlex.quote(sys.executable)
    there = f"test -x {python} && exec {python} -uc '{run}'; exec python3 -uc '{run}'"
    port = ["-p", str(ssh_port)] if ssh_port else []
    options = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    return ["ssh", *options, *port, host, there]


def any_is_here(hosts: Sequence[str]) -> bool:
    """Tells whether one of the names is this machine's; asks for all at once, as some take long."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        return any(pool.map(is_here, hosts))


@functools.cache
def is_here(host: str) -> bool:
    """Tells whether the name is this machine's: only its own addresses can be bound."""
    if host == socket.gethostname():
        return True
    found: list[Any] = []

    def look_up() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            found.extend(socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM))

    thread = threading.Thread(target=look_up, daemon=True)  # which has no time limit of its own
    thread.start()
    thread.join(LOOKUP_SECONDS)
    if not found:
        return False
    family, kind, _, _, address = found[0]
    try:
        with socket.socket(family, kind) as sock:
            sock.bind(address)
    except OSError:
        return False
    return True


def no_interpreter(host: str, interpreter: str) -> DataError:
    """The error of a host that lacks the environment."""
    return DataError(
        HOST, host, f"no {interpreter} there",
        fix="run make env in the same folder there, or copy the environment to the same path",
    )  # fmt: skip


def ssh_fault(host: str, port: int | None, words: str) -> DataError:
    """What ssh's words on standard error mean.

    Args:
        host: whom it was to reach.
        port: that was asked for, if any.
        words: all that it wrote.
    """
    user = re.search(r"(\S+)@\S+: Permission denied", words)
    for sign, reason, fix in (
        ("Could not resolve hostname", "no host of that name is known here",
         "correct the name, or add it to DNS or /etc/hosts"),
        ("IDENTIFICATION HAS CHANGED", "its ssh host key isn't the one that was known",
         f"if it was set up anew: ssh-keygen -R {key_name(host, port)}, then ssh {host} once"),
        ("Host key verification failed", "its ssh host key isn't known here",
         f"ssh {host} once by hand and accept the key"),
        ("Permission denied", f"sshd refuses the key of {user[1] if user else 'this user'}",
         f"ssh-copy-id {host}"),
        ("timed out", "nothing answers there", "see whether it is up, and its firewall"),
        ("o route to host", "there is no route to it", "see whether it is up and connected"),
    ):  # fmt: skip
        if sign in words:
            return DataError(HOST, host, reason, fix=fix)
    if "Connection refused" in words:
        reason, fix = _refused(host, port)
        return DataError(HOST, host, reason, fix=fix)
    said = [line for line in words.splitlines() if line.strip()] or ["it said nothing"]
    return DataError(
        HOST, host, f"the probe didn't run there: {said[-1].strip()}",
        fix=f"see that this works: ssh -o BatchMode=yes {host} true",
    )  # fmt: skip


def key_name(host: str, port: int | None) -> str:
    """How known_hosts names it."""
    return f"'[{host}]:{port}'" if port not in (None, SSH_PORT) else host


def _refused(host: str, port: int | None) -> tuple[str, str]:
    if port not in (None, SSH_PORT) and _greets_as_ssh(host):
        return f"no sshd on port {port}, but on {SSH_PORT}", "leave out --ssh-port"
    where = f" on port {port}" if port else ""
    return f"no sshd answers{where}", "start sshd there, or name its port by --ssh-port"


def _greets_as_ssh(host: str) -> bool:
    try:
        with socket.create_connection((host, SSH_PORT), timeout=2) as sock:
            return sock.recv(4) == b"SSH-"
    except OSError:
        return False
