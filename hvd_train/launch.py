"""Keeps a run going on hosts that come and go: starts `mpirun`, again and again, on what is there.

Every start has `--resume`, so the run goes on from its last checkpoint with the same global batch,
order of examples and schedule, whatever the number of ranks. When the hosts change, SIGUSR1 goes to
`mpirun`, which passes it on to the ranks: all save a checkpoint after the same step and end, so no
step is lost or done twice. `horovodrun` isn't used, since a signal ends it while its ranks go on,
and neither is Horovod's elastic driver: docs/clusters.md says why.

What the ranks print passes through here and is listened to: how far the run has come, and which
host a failure is charged to.
"""

import re
import shlex
import shutil
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_tools import launch_env
from data_tools.errors import (
    CONFIG,
    EXIT_CODES,
    HOST,
    INPUT,
    INTEGRITY,
    NUMERIC,
    RANK,
    SPACE,
    DataError,
    to_stderr,
    to_stdout,
)
from hvd_train import hosts_script, launch_command, stop
from hvd_train.flags import Launch
from hvd_train.hosts import Slots, counted, cut, to_list
from hvd_train.tied import Tied

LAUNCHER = "mpirun"
STOP_SECONDS = 300.0
"""How long a run may take to stop in order; the watchdog ends one that is stuck before."""
MAX_HOST_FAILURES = 3
"""Failures charged to a host after which it is left out."""
FINAL = frozenset(EXIT_CODES[kind] for kind in (CONFIG, INPUT, INTEGRITY, SPACE, NUMERIC))
"""Exit codes of a run that would only fail again."""
STEP = re.compile(
    r"goes on from step (?P<from>\d+)|stopped by (?P<by>\S+) after (?P<after>\d+) of \d+ steps"
)
TAKES_STEPS = re.compile(r"\bstep \d+, loss = ")
FRESH = ": starts fresh"
NO_FOLDER = " has nothing to go on with: starts fresh"
"""Said where there is no run folder, which a run writes before its first step."""
READY = re.compile(r"\branks: \d+, ")
"""In the first line of a run, when all its ranks listen to signals."""
ERROR = re.compile(r"\berror: [A-Z]+: ")
BLAMES = (
    r"\berror: [A-Z]+: .*\brank \d+ on {host}(?![\w.-])",
    r"^ssh: (connect to host {host} |Could not resolve hostname {host}: )",
    r"^(\S+@)?{host}: Permission denied",
    r"[Hh]ost key\b.* for {host} ",
    r"\bRemote daemon: .* on node {host}(?![\w.-])",
    r" on node {host} exited on signal ",
)
"""Lines that charge a host with a failure: ours, those of OpenSSH, those of Open MPI."""
BLAMES_OTHER = r"\berror: [A-Z]+: {host}:"
"""Our line for what is wrong on a host that isn't the chief's. The first rank that has a fault
writes it, so the chief's host was right; what is wrong there may be wrong on all."""


def main(flags: Launch) -> None:
    """Runs the command until it ends by itself.

    Raises:
        DataError: CONFIG for what can't be started; HOST when there were too few hosts for too
            long; RANK when it failed too often without progress.
        SystemExit: with the exit code of the run, or that of a run which was asked to stop.
    """
    launch = launch_env.read()
    if launch.size > 1:
        raise DataError(
            CONFIG, launch.launcher, "it starts mpirun itself",
            fix="start hvd_train launch without a launcher",
        )  # fmt: skip
    if not flags.command:
        raise DataError(
            CONFIG, "command line", "there is no command to start",
            fix="write it after --: hvd_train launch --hosts-script S -- hvd_train cifar",
        )  # fmt: skip
    if any(re.match("--batch[-_]size(=|$)", word) for word in flags.command):
        raise DataError(
            CONFIG, "--batch-size", "it is a rank's, and the number of ranks changes",
            fix="give the batch of all ranks, --global-batch",
        )  # fmt: skip
    if shutil.which(LAUNCHER) is None:
        raise DataError(
            CONFIG, LAUNCHER, "it isn't on PATH",
            fix="activate the environment: . .venv/bin/activate",
        )  # fmt: skip
    check_mpi(launch_command.mpi_version())
    check_program(flags.command[0])
    signals = stop.signals()
    signals.begin()
    raise SystemExit(Supervisor(flags, signals).run())


def check_mpi(version: str) -> None:
    """Raises CONFIG unless it is the `mpirun` of Open MPI, by what it says of its version."""
    if launch_command.is_hydra(version):
        raise DataError(
            CONFIG, LAUNCHER, "it isn't Open MPI's, whose flags and signals are needed",
            fix="put the environment's first on PATH, or build it with Open MPI: make env",
        )  # fmt: skip


def check_program(program: str) -> None:
    """Raises CONFIG for a program that can't be started, or mpirun would fail at every start."""
    if program.startswith("-") or shutil.which(program) is not None:  # a flag is for mpirun
        return
    path = Path(program)
    if path.is_dir():
        raise DataError(CONFIG, program, "it is a folder", fix="name the program to start")
    if "/" in program and path.exists():
        raise DataError(CONFIG, program, "it isn't executable", fix=f"chmod +x {program}")
    raise DataError(
        CONFIG, program, "there is no such program",
        fix="write one that is on PATH after --, such as hvd_train, or its path",
    )  # fmt: skip


def place(hosts: Slots, max_np: int | None, running: Slots) -> Slots:
    """Chooses the slots for at most `max_np` ranks.

    Hosts that the run is on come first, in their order: the chief, whose host holds the run folder
    if it isn't shared, moves only if it must, and the script may print its lines in any order.
    """
    placed: Slots = {}
    left = sum(hosts.values()) if max_np is None else max_np
    for name in [*(name for name in running if name in hosts), *hosts]:
        if name not in placed and left:
            placed[name] = min(hosts[name], left)
            left -= placed[name]
    return placed


def launcher_command(hosts: Slots, command: Sequence[str]) -> list[str]:
    """The command line that starts a rank on each slot; other hosts get PATH alone."""
    ranks = str(sum(hosts.values()))
    placed = ["-np", ranks, "-H", to_list(hosts, LAUNCHER)]
    return [LAUNCHER, *placed, "-x", "PATH", *command, "--resume"]


def blames(line: str, host: str, *, is_chief: bool = False) -> bool:
    """Tells whether a line of the ranks or the launcher charges a host with a failure.

    Args:
        line: what was printed.
        host: as the script names it. A rank tells its host's own name, with a domain or without.
        is_chief: whether it is the host of rank 0.
    """
    is_address = not host.strip("0123456789.")
    name = re.escape(host) if is_address else re.escape(host.partition(".")[0]) + r"(\.[\w.-]+)?"
    if host in ("localhost", "127.0.0.1"):
        name = f"({name}|{re.escape(socket.gethostname())})"
    patterns = BLAMES if is_chief else (*BLAMES, BLAMES_OTHER)
    return any(re.search(pattern.format(host=name), line) for pattern in patterns)


@dataclass(slots=True)
class Attempt:
    """What one start of the run has told.

    Attributes:
        hosts: where it is.
        told_error: whether it wrote an error line.
        is_ready: whether all its ranks listen to signals.
        starts_fresh: whether it found nothing to go on with.
        lacks_folder: whether it found not even the folder of the run.
        takes_steps: whether it has come to its first step.
        step: the last checkpoint that it told of.
        stopped_by: why it stopped in order, with a checkpoint, before its last step.
        blamed: the hosts that a failure is charged to.
    """

    hosts: Slots
    told_error: bool = False
    is_ready: bool = False
    starts_fresh: bool = False
    lacks_folder: bool = False
    takes_steps: bool = False
    step: int = 0
    stopped_by: str | None = None
    blamed: set[str] = field(default_factory=set)

    def hear(self, line: str) -> None:
        """Takes in a line."""
        self.told_error |= ERROR.search(line) is not None
        self.is_ready |= READY.search(line) is not None
        self.starts_fresh |= line.endswith(FRESH)
        self.lacks_folder |= line.endswith(NO_FOLDER)
        self.takes_steps |= TAKES_STEPS.search(line) is not None
        if found := STEP.search(line):
            self.step = int(found["from"] or found["after"])
            self.stopped_by = found["by"]
        if len(self.hosts) > 1:  # or there is nothing to do without it
            chief = next(iter(self.hosts))
            self.blamed |= {
                host for host in self.hosts if blames(line, host, is_chief=host == chief)
            }


@dataclass(slots=True)
class Record:
    """What all starts so far have shown.

    Attributes:
        step: the last checkpoint that is known of.
        took_steps: whether a start that is over took any: periodic checkpoints aren't told of.
        failures: in a row, without a later checkpoint.
        charged: failures by host.
    """

    step: int = 0
    took_steps: bool = False
    failures: int = 0
    charged: Counter[str] = field(default_factory=Counter)

    def progress(self, step: int) -> None:
        """Notes a checkpoint that was told of."""
        if step > self.step:
            self.step, self.failures = step, 0

    def failed(self, attempt: Attempt) -> None:
        """Charges a failure to the hosts that were named."""
        self.failures += 1
        self.charged.update(attempt.blamed)

    def usable(self, hosts: Slots) -> Slots:
        """Returns the hosts that don't keep failing; forgives those that the script has dropped."""
        self.charged = Counter({name: n for name, n in self.charged.items() if name in hosts})
        return {name: slots for name, slots in hosts.items() if not self.is_out(name)}

    def is_out(self, host: str) -> bool:
        """Whether a host is left out."""
        return self.charged[host] >= MAX_HOST_FAILURES


class Supervisor:
    """Starts the run, watches it and the hosts, and starts it again."""

    def __init__(self, flags: Launch, signals: stop.Signals) -> None:
        self._flags, self._signals = flags, signals
        self._record = Record()
        self._printed = hosts_script.read(flags.hosts_script)
        self._running: Slots = {}
        self._program = cut(shlex.join(flags.command))
        self._warning = ""

    def run(self) -> int:
        """Returns the exit code of the run once it has ended for good."""
        while True:
            self._running = self._wait_for_hosts()
            code = self._run_once(self._running)
            if code is not None:
                return code

    def _look(self) -> Slots:
        """Where the run should be now; a script that fails for once changes nothing."""
        try:
            self._printed, warning = hosts_script.read(self._flags.hosts_script), ""
        except DataError as error:
            warning = f"{error.where}: {error.reason}; keeps to the hosts that it printed"
            if warning != self._warning:
                to_stderr(f"warning: {warning}")
        self._warning = warning
        usable = self._record.usable(self._printed)
        return place(usable, self._flags.max_np, self._running)

    def _wait_for_hosts(self) -> Slots:
        """Returns where to start, once the slots are enough."""
        deadline = time.monotonic() + 60 * self._flags.wait_minutes
        told = ""
        while sum((hosts := self._look()).values()) < self._flags.min_np:
            waits = f"waits for {counted(self._flags.min_np, 'rank')}: {self._what_there_is(hosts)}"
            if waits != told:
                say(waits)
                told = waits
            if time.monotonic() > deadline:
                raise DataError(
                    HOST, self._flags.hosts_script,
                    f"no {counted(self._flags.min_np, 'rank')} for "
                    f"{self._flags.wait_minutes:g} minutes: "
                    f"{self._what_there_is(hosts)}",
                    fix="bring back hosts and start the same command, which goes on; or lower "
                    "--min-np",
                )  # fmt: skip
            self._sleep()
        return hosts

    def _what_there_is(self, hosts: Slots) -> str:
        out = [name for name in self._printed if self._record.is_out(name)]
        there = f"there is {to_list(hosts, LAUNCHER)}" if hosts else "there is no host"
        return f"{there}; left out: {', '.join(out)}" if out else there

    def _sleep(self) -> None:
        """Waits until the next look at the hosts.

        Raises:
            SystemExit: when it is asked to stop.
        """
        until = time.monotonic() + self._flags.poll_seconds
        while (left := until - time.monotonic()) > 0:
            if self._signals.first is not None:
                raise SystemExit(stop.EXIT_CODES[self._signals.first])
            time.sleep(min(left, 0.1))

    def _run_once(self, hosts: Slots) -> int | None:
        """Starts the run and sees to its end; returns the exit code if it is over."""
        say(f"starts {counted(sum(hosts.values()), 'rank')} on {to_list(hosts, LAUNCHER)}")
        attempt = Attempt(hosts)
        with Tied(launcher_command(hosts, self._flags.command)) as ranks:
            changed = self._watch(ranks, attempt)
        self._record.took_steps |= attempt.takes_steps
        if changed and self._signals.first is None and ranks.code not in FINAL | {0}:
            return None
        return self._judge(ranks.code, attempt)

    def _watch(self, ranks: Tied, attempt: Attempt) -> bool:
        """Sees to a run until it ends; returns whether it was stopped because the hosts changed."""
        look_at = time.monotonic() + self._flags.poll_seconds
        changed, asked_at, last = False, None, attempt.hosts
        for lines in ranks.lines():
            for line in lines:
                attempt.hear(line)
            self._note(attempt)
            now = time.monotonic()
            if asked_at is None and now > look_at:
                found, look_at = self._look(), now + self._flags.poll_seconds
                # Twice the same, since a script may see a host for once only.
                changed = found == last != attempt.hosts
                last = found
                if changed:
                    say(f"the hosts are now {to_list(found, LAUNCHER) or 'none'}: stops the run")
            if asked_at is None and (changed or self._signals.first is not None):
                asked_at = now
                # Before that there is nothing to save, and a signal may get lost.
                ranks.ask_to_stop() if attempt.is_ready else ranks.end()
            elif asked_at is not None and now - asked_at > STOP_SECONDS:
                ranks.end()
        return changed

    def _note(self, attempt: Attempt) -> None:
        """Takes over how far the run has come.

        Raises:
            DataError: CONFIG when it starts anew though it had come further.
        """
        had = ""
        if attempt.starts_fresh and self._record.step > attempt.step:
            had = f"saved step {self._record.step}"
        elif attempt.lacks_folder and self._record.took_steps:
            had = "taken steps before"
        if had:
            raise DataError(
                CONFIG, next(iter(attempt.hosts)),
                f"the run starts afresh there, but had {had}",
                fix="let --runs-dir be a folder that all hosts share",
            )  # fmt: skip
        self._record.progress(attempt.step)

    def _judge(self, code: int, attempt: Attempt) -> int | None:
        """Returns the exit code of a run that is over, or None if it shall start again.

        Raises:
            DataError: RANK when it has failed too often; of the code's kind when it ended for good
                and doesn't say why, as a program that isn't ours.
        """
        if code in FINAL and not (attempt.blamed or attempt.told_error):
            kind = next(kind for kind, own in EXIT_CODES.items() if own == code)
            raise DataError(
                kind, self._program, f"it ended with code {code} and without an error line",
                fix="see what it wrote above, and whether this is how it is started",
            )  # fmt: skip
        if code == 0 or (code in FINAL and not attempt.blamed):
            return code
        if self._signals.first is not None:
            return stop.EXIT_CODES[self._signals.first]
        if attempt.stopped_by in ("SIGTERM", "SIGUSR1"):  # as when a host is shut down
            say(f"a rank got {attempt.stopped_by}: goes on with what is there")
            return None
        if attempt.stopped_by is not None:
            return code
        self._record.failed(attempt)
        if self._record.failures > self._flags.max_restarts:
            began = self._record.step or self._record.took_steps
            of_what = "" if began else f" of {self._program}"
            raise DataError(
                RANK, LAUNCHER,
                f"{counted(self._record.failures, 'start')} in a row{of_what} failed without a new "
                f"checkpoint, the last with code {code}",
                fix="see the errors above; start the same command to go on"
                if began else "see what was written above; none came to its first step",
            )  # fmt: skip
        charged = [
            f"{host} ({self._record.charged[host]} of {MAX_HOST_FAILURES})"
            for host in sorted(attempt.blamed)
        ]
        whose = f", charged to {', '.join(charged)}" if charged else ""
        say(
            f"the run failed with code {code}{whose}; start {self._record.failures} of "
            f"{self._flags.max_restarts} again"
        )
        self._sleep()
        return None


def say(text: str) -> None:
    """Tells what is done, among what the ranks print."""
    to_stdout(f"launch: {text}")
