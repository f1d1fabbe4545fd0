"""A real Slurm on this machine: slurmctld, slurmd and munged of our own, as root.

Our sbatch file trains two ranks, is queued again twice in the middle, and its end is that of a run
without interruption.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_sets import texts, write_set

from hvd_train import checkpoint

ROOT = Path(__file__).resolve().parents[2]
SBATCH = ROOT / "hostfiles" / "schedulers" / "slurm.sbatch"
SCRIPT = ROOT / "hvd_train" / "captcha.py"
DAEMONS = ("munged", "slurmctld", "slurmd")
STEPS = 500
FLAGS = [
    "--data", "set", "--model", "linear", "--global-batch", "4", "--steps", str(STEPS),
    "--log-every", "10", "--eval-every", "1000",
]  # fmt: skip
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmix
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""


class Slurm:
    """Daemons that run, a folder that jobs start in, and Slurm's commands."""

    def __init__(self, work: Path, env: dict[str, str]) -> None:
        self.work, self.env = work, env

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.work, env=self.env, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip

    def out(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, name: str) -> str:
        """Queues our sbatch file for two ranks on the one node; returns the job's number."""
        return self.out(
            "sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", f"--output={name}.log",
            str(SBATCH), str(SCRIPT), *FLAGS, "--name", name,
        )  # fmt: skip

    def state(self, job: str, field: str = "JobState") -> str:
        (found,) = re.findall(rf"\b{field}=(\S+)", self.out("scontrol", "show", "job", job))
        return str(found)

    def log(self, name: str) -> str:
        path = self.work / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait(self, job: str, *states: str) -> None:
        wait_for(lambda: self.state(job) in states, f"job {job} to be {states}")


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def missing() -> str | None:
    """What this machine lacks to be a Slurm of its own."""
    if os.geteuid():
        return "root"
    path = f"{os.environ['PATH']}:/usr/sbin"
    absent = [name for name in (*DAEMONS, "sbatch") if shutil.which(name, path=path) is None]
    try:
        ctypes.CDLL("libpmix.so")
    except OSError:
        absent.append("libpmix.so")
    packages = "apt-get install munge slurmctld slurmd slurm-client libpmix-dev"
    return f"{', '.join(absent)}: {packages}" if absent else None


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if lack := missing():
        pytest.skip(f"a Slurm of our own needs {lack}")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [one.getsockname()[1], two.getsockname()[1]]
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, ports=ports, folder=folder))
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    for name in ("state", "spool", "work"):
        (folder / name).mkdir()
    (folder / "work" / ".venv").symlink_to(Path(sys.executable).parents[1])
    env = {
        **os.environ, "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{os.environ['PATH']}:/usr/sbin",
    }  # fmt: skip
    files = {"key-file": "key", "socket": "munge.sock", "pid-file": "munge.pid",
             "log-file": "munge.log", "seed-file": "seed"}  # fmt: skip
    munge = [f"--{flag}={folder / name}" for flag, name in files.items()]
    commands = [
        ["munged", "--foreground", "--force", *munge],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]
    found = Slurm(folder / "work", env)
    started: list[subprocess.Popen[bytes]] = []
    try:
        # A daemon never outlives these tests, even if they are killed.
        for command in (["setpriv", "--pdeathsig", "KILL", *words] for words in commands):
            started.append(subprocess.Popen(
                command, env=env, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ))  # fmt: skip
            if "munged" in command:
                wait_for((folder / "munge.sock").exists, "munged's socket", 20)
        wait_for(lambda: found.run("sinfo", "-h", "-o", "%T").stdout == "idle\n", "a node", 60)
        yield found
        found.run("scancel", "--user=root")
        wait_for(lambda: found.run("squeue", "-h").stdout == "", "jobs to end", 60)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def weights(run: Path) -> dict[str, bytes]:
    """All that training carries on, bit for bit."""
    saved = checkpoint.read(checkpoint.folder_of(run, STEPS))
    return {
        f"{group}/{name}": array.tobytes()
        for group in checkpoint.ARRAYS
        for name, array in getattr(saved, group).items()
    }


def trains(slurm: Slurm, name: str, after: int) -> Callable[[], bool]:
    """Whether a job's log tells a step after that one."""
    return lambda: any(int(step) > after for step in re.findall(r": step (\d+),", slurm.log(name)))


def test_a_job_that_is_queued_again_twice_ends_as_one_without_interruption(slurm: Slurm) -> None:
    write_set(slurm.work / "set", train=texts(40), test=texts(9))
    job = slurm.submit("broken")
    wait_for(trains(slurm, "broken", 20), "training")
    slurm.out("scontrol", "requeue", job)
    wait_for(lambda: "stopped by" in slurm.log("broken"), "a checkpoint")
    (first,) = re.findall(r"stopped by SIGTERM after (\d+) of 500 steps", slurm.log("broken"))
    # Slurm waits for cred_expire before it starts a job again; meanwhile the other one runs.
    slurm.wait(job, "PENDING")
    whole = slurm.submit("whole")
    slurm.wait(whole, "COMPLETED", "FAILED")
    assert slurm.state(whole) == "COMPLETED", slurm.log("whole")

    wait_for(trains(slurm, "broken", int(first) + 20), "training")
    # What --signal=USR1@120 sends before the time limit; our script queues the job again.
    slurm.out("scancel", "--signal=USR1", job)
    slurm.wait(job, "PENDING")
    log = slurm.log("broken")
    (second,) = re.findall(r"stopped by SIGUSR1 after (\d+) of 500 steps", log)
    assert re.findall(r"goes on from step (\d+)", log) == [first]
    slurm.wait(job, "COMPLETED", "FAILED")
    log = slurm.log("broken")
    assert slurm.state(job) == "COMPLETED", log
    assert slurm.state(job, "Restarts") == "2"
    assert re.findall(r"goes on from step (\d+)", log) == [first, second]
    assert log.count("ranks: 2, 2 on this host, launcher srun (PMIx)") == 3

    runs = slurm.work / "runs"
    assert len(weights(runs / "whole")) > 8
    assert weights(runs / "broken") == weights(runs / "whole")


def test_srun_tells_ranks_hosts_and_what_it_lacks(slurm: Slurm) -> None:
    cli = [sys.executable, "-m", "hvd_train"]
    environ = {**slurm.env, "PYTHONPATH": str(ROOT)}
    found = Slurm(slurm.work, environ)
    tell = "from data_tools import launch_env as e; w = e.read(); print(w.rank, w.size, w.launcher)"
    told = {
        manager: found.out("srun", f"--mpi={manager}", "-n2", "-l", sys.executable, "-c", tell)
        for manager in ("pmix", "pmi2")
    }
    assert {manager: sorted(text.splitlines()) for manager, text in told.items()} == {
        "pmix": ["0: 0 2 srun (PMIx)", "1: 1 2 srun (PMIx)"],
        "pmi2": ["0: 0 2 srun (PMI2)", "1: 1 2 srun (PMI2)"],
    }
    host = socket.gethostname().partition(".")[0]
    form = found.out("srun", "--mpi=none", "-n1", *cli, "hosts", "--form", "horovodrun")
    assert form == f"-H {host}:1"
    lost = found.run("srun", "--mpi=none", "-n2", *cli, "captcha", "--data", "set")
    assert lost.returncode == 2
    assert lost.stderr.count(
        "error: CONFIG: srun: its 2 tasks have no PMIx, by which they would find each other; "
        "srun --mpi=pmix, or mpirun inside salloc or sbatch; srun --mpi=list tells which there are"
    ) in (1, 2)
