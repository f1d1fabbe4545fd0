"""Breaks runs over two hosts in every way, again and again, and looks at what is left of them.

    .venv/bin/python benchmarks/soak.py --save          (make soak; as root)

Two hosts (`virtual_hosts.py`) train with a rank each. At a random step the run comes to harm: a
rank, the chief or the launcher is killed, a rank is frozen, a cable pulled, a host gone. Then

- no process of the run is left on any host, and the table tells how soon; Open MPI's daemon alone
  may stay on a host that is cut off, without ranks;
- the launcher's exit code isn't 0;
- its output names the cause, unless it was the launcher itself that got the signal;
- the newest checkpoint is whole, and the next run goes on from it: all of a launcher have one run
  folder. In the end it is trained to its last step, and has the bits of the undisturbed run.

What was done is remembered in --folder, so that a soak which is interrupted goes on where it was.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import virtual_hosts
from harness import BIN, add_save, environment, report
from kill_checkpoints import bits, last_step
from kill_points import pictures, run_here
from virtual_hosts import Cluster

from hvd_train import checkpoint

LIMIT = 5
"""Seconds of --stall-seconds."""
SECONDS = 10.0
"""Within which all processes should have ended, where the hosts do nothing else."""
PATIENCE = 60.0
"""Seconds after which they never will."""
FARTHEST = 60
"""Steps from a fault to the next, at most."""
# After what time mpirun gives up on a silent host: what tools/build_horovod.py sets to suit the
# default limit of the watchdog, which must speak first, here suits LIMIT.
SOON = {
    "OMPI_MCA_plm_rsh_args": "-o ServerAliveInterval=2 -o ServerAliveCountMax=4",
    "OMPI_MCA_oob_tcp_keepalive_time": "3",
    "OMPI_MCA_oob_tcp_keepalive_intvl": "2",
    "OMPI_MCA_oob_tcp_keepalive_probes": "3",
}
# Linux alone decides how long a message that was sent is tried again, and so how long mpirun waits
# when it has told a host's daemon to end: a quarter of an hour, here 6 s.
GIVE_UP = "echo 4 >/proc/sys/net/ipv4/tcp_retries2"
SCRIPT = ["python", "hvd_train/captcha.py"]
HOSTS = ["-np", "2", "-H", "host1:1,host2:1"]
LAUNCHERS = {
    "mpirun": [str(BIN / "mpirun"), *HOSTS, "-x", "PATH"],
    "horovodrun --gloo": ["horovodrun", "--gloo", *HOSTS],
    "horovodrun": ["horovodrun", *HOSTS],
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run over two hosts that is going on."""

    cluster: Cluster
    launcher: int
    """The launcher's process."""

    def signal_rank(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal to a rank."""
        os.kill(self.cluster.hosts[rank].ranks()[rank], number)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a run, and what the launcher's output then says of it."""

    harm: Callable[[Run], None]
    cause: str
    """A regular expression; anything at all where who has done the harm knows it."""
    leaves: str | None = None
    """A program that may stay behind."""


def killed(rank: int) -> Fault:
    """A rank gets SIGKILL."""
    return Fault(
        lambda run: run.signal_rank(rank, signal.SIGKILL),
        rf"rank {rank} on host{rank + 1}: process \d+ ended|rank {rank} with PID \d+ on node host",
    )


def launcher_gets(number: signal.Signals) -> Fault:
    """The launcher gets a signal."""
    return Fault(lambda run: os.kill(run.launcher, number), "")


FAULTS = {
    "rank killed": killed(1),
    "chief killed": killed(0),
    "launcher SIGKILL": launcher_gets(signal.SIGKILL),
    "launcher SIGTERM": launcher_gets(signal.SIGTERM),
    "launcher SIGINT": launcher_gets(signal.SIGINT),
    "rank frozen": Fault(
        lambda run: run.signal_rank(1, signal.SIGSTOP),
        rf"error: RANK: rank 1 on host2: process \d+ is silent for {LIMIT} s; ",
    ),
    "cable pulled": Fault(
        lambda run: run.cluster.hosts[1].unplug(),
        rf"error: RANK: rank 1 on host2: process \d+ is silent for {LIMIT} s; ",
        leaves="orted",  # mpirun's daemon, until TCP gives up its last message
    ),
    "host gone": Fault(
        lambda run: run.cluster.hosts[1].vanish(),
        rf"error: RANK: rank 1 on host2: process \d+ is silent for {LIMIT} s; ",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended after a fault.

    Attributes:
        fault: what happened to it.
        step: the last step before that.
        seconds: from the fault until no process was left.
        rc: the launcher's exit code, negative for a signal, None when it never ended.
        wrong: what isn't as it should be.
    """

    fault: str
    step: int
    seconds: float
    rc: int | None
    wrong: list[str]


class Soak:
    """Runs under one launcher, each going on with the one before."""

    def __init__(self, folder: Path, launcher: str, *, steps: int) -> None:
        """Makes the data set if there is none.

        Args:
            folder: of the data set and the runs.
            launcher: one of LAUNCHERS.
            steps: of the whole run.
        """
        self.folder, self.launcher, self.steps = folder, launcher, steps
        self.run = folder / launcher.replace(" ", "")
        self.data, self.log = folder / "data", self.run.with_suffix(".log")
        if not self.data.exists():
            images = folder / "images"
            pictures(images, 200)
            run_here([
                "captcha-to-tfrecord", str(images), str(images / "labels.csv"), str(self.data)
            ])  # fmt: skip

    def hurt(self, fault: str, *, after: int, delay: float) -> Outcome:
        """Lets the run come to harm and returns how it ended.

        Args:
            fault: one of FAULTS.
            after: a step that the run has not yet come to.
            delay: seconds from that step to the harm.
        """
        before = self.newest([])
        # The run before may have gone some steps farther than when it came to harm.
        after = max(after, last_step(self.run / "metrics.jsonl") + 1)
        with self.started(self.run.name) as (cluster, process):
            if not self.comes_to(after, process):
                wrong = [f"never came to step {after}", self.log.read_text()[-3000:]]
                return Outcome(fault=fault, step=after, seconds=0, rc=process.poll(), wrong=wrong)
            time.sleep(delay)
            FAULTS[fault].harm(Run(cluster, child_of(process)))
            start = time.monotonic()
            step = last_step(self.run / "metrics.jsonl")
            left = wait_for_all(cluster, process, start + PATIENCE, FAULTS[fault].leaves)
            seconds = time.monotonic() - start
            rc = process.poll()
        wrong = [f"still there: {line}" for line in left]
        wrong += [f"exit code {rc}"] * (not rc)
        text, skipped = self.log.read_text(), list[str]()
        wrong += [f"doesn't say: {what}" for what in missing(text, fault, before)]
        newest = self.newest(skipped)
        if newest < before or newest == 0 or skipped:
            wrong.append(f"the newest checkpoint is of step {newest}; {skipped}")
        if wrong:
            wrong.append(text[-3000:])
        return Outcome(fault=fault, step=step, seconds=seconds, rc=rc, wrong=wrong)

    def newest(self, skipped: list[str]) -> int:
        """The step of the newest whole checkpoint, 0 if there is none."""
        found = checkpoint.restore_newest(self.run, skipped=skipped)
        return found.step if found else 0

    def ends_as_undisturbed(self) -> bool:
        """Trains to the last step, and another run at one go; returns whether they are the same."""
        for name in (self.run.name, "undisturbed"):
            with self.started(name) as (_, process):
                if process.wait(3600):
                    raise AssertionError(self.log.read_text()[-3000:])
        return bits(self.run, self.steps) == bits(self.folder / "undisturbed", self.steps)

    @contextlib.contextmanager
    def started(self, name: str) -> Iterator[tuple[Cluster, "subprocess.Popen[bytes]"]]:
        """A run, started or gone on with on a new cluster, which ends with the block."""
        flags = [
            "--data", self.data, "--runs-dir", self.folder, "--name", name, "--resume",
            "--model", "linear", "--global-batch", 8, "--steps", self.steps, "--log-every", 1,
            "--checkpoint-every", 10, "--eval-every", 0, "--stall-seconds", LIMIT,
        ]  # fmt: skip
        own = Path(tempfile.mkdtemp(dir=self.folder)) / "cluster"
        with (
            virtual_hosts.cluster(own, shared=[self.folder]) as cluster,
            self.log.open("wb") as file,
            subprocess.Popen(
                cluster.hosts[0].command([*LAUNCHERS[self.launcher], *SCRIPT, *flags]),
                env=shell(own), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            ) as process,
        ):  # fmt: skip
            try:
                for host in cluster.hosts:
                    host.shell(GIVE_UP)
                yield cluster, process
            finally:
                process.kill()
        shutil.rmtree(own.parent)

    def comes_to(self, step: int, process: "subprocess.Popen[bytes]") -> bool:
        """Waits until the run has come to a step and to its first checkpoint, or has ended."""
        deadline = time.monotonic() + 300
        while last_step(self.run / "metrics.jsonl") < step or not checkpoint.saved_steps(self.run):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def missing(text: str, fault: str, before: int) -> list[str]:
    """What the output of a run should say and doesn't.

    Args:
        text: the output.
        fault: what happened to the run.
        before: the step of the checkpoint that the run was to go on from, or 0.
    """
    wanted = [FAULTS[fault].cause] + [rf"goes on from step {before}\b"] * (before > 0)
    return [pattern for pattern in wanted if not re.search(pattern, text)]


def shell(folder: Path) -> dict[str, str]:
    """The variables of a shell with this environment, where root may run mpirun."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**environment(), **root, **virtual_hosts.UNBOUND, **SOON, "HOME": str(folder)}


def child_of(process: "subprocess.Popen[bytes]") -> int:
    """The launcher itself, which nsenter has started."""
    pid = process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def wait_for_all(
    cluster: Cluster, process: "subprocess.Popen[bytes]", deadline: float, but: str | None
) -> list[str]:
    """Waits for the launcher and all on the hosts to end; returns what didn't, but for one."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(deadline - time.monotonic())
    return cluster.left(deadline - time.monotonic(), but=but)


def main() -> None:
    """Does what the command line says has not yet been done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20, help="faults of each kind")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=Path, help="goes on with the soak there (a new one)")
    add_save(parser)
    arguments = parser.parse_args()
    if lacks := virtual_hosts.missing():
        parser.error(f"hosts of our own need {', '.join(lacks)}")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(exist_ok=True)
    print(f"in {folder}", flush=True)
    bad = 0
    for launcher in arguments.launchers:
        outcomes, same = soak(folder.resolve(), launcher, arguments)
        bad += sum(bool(outcome.wrong) for outcome in outcomes) + (not same)
        report(table(launcher, outcomes, same=same, seed=arguments.seed), save=arguments.save)
    sys.exit(bad > 0)


def soak(folder: Path, launcher: str, arguments: argparse.Namespace) -> tuple[list[Outcome], bool]:
    """Breaks the runs of a launcher; returns how they ended, and whether the end is as it must."""
    faults = [fault for _ in range(arguments.count) for fault in arguments.only]
    runs = Soak(folder, launcher, steps=FARTHEST * (len(faults) + 2))
    done = runs.run.with_suffix(".jsonl")
    lines = done.read_text().splitlines() if done.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    for number, fault in enumerate(faults[len(outcomes) :], len(outcomes)):
        chance = random.Random(f"{arguments.seed} {launcher} {number}")
        step = outcomes[-1].step if outcomes else 0
        after = step + chance.randint(5, FARTHEST // 2)
        outcome = runs.hurt(fault, after=after, delay=chance.uniform(0, 0.2))
        outcomes.append(outcome)
        with done.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
        print(f"{launcher}: {number + 1} of {len(faults)}: {outcome}", flush=True)
    return outcomes, runs.ends_as_undisturbed()


def table(launcher: str, outcomes: Sequence[Outcome], *, same: bool, seed: int) -> list[str]:
    """What was found under a launcher."""
    ends = "the same bits as" if same else "OTHER BITS than"
    lines = [
        f"`{launcher}`, 2 hosts x 1 rank, seed {seed}, --stall-seconds {LIMIT}: {len(outcomes)} "
        f"faults; the run that went through them all ends with {ends} the undisturbed one.",
        "", f"| fault | runs | as it must be | seconds to the end of all | over {SECONDS:g} s |",
        "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for fault in dict.fromkeys(outcome.fault for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.fault == fault]
        seconds = [outcome.seconds for outcome in own if outcome.seconds]
        good = sum(not outcome.wrong for outcome in own)
        took = "-"
        if seconds:
            took = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        lines.append(
            f"| {fault} | {len(own)} | {good} | {took} | {sum(s > SECONDS for s in seconds)} |"
        )
    return lines


if __name__ == "__main__":
    main()
