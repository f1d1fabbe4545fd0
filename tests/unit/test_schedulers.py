"""The scripts for schedulers: their fields, and what they do when a run ends or is asked to stop.

Slurm's runs under a real Slurm, in tests/cluster. PBS, LSF and Kubernetes' operator are not here:
their scripts run as those would run them, with real ranks of a program that only ends.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEDULERS = ROOT / "hostfiles" / "schedulers"
BIN = Path(sys.executable).parent
SCRIPTS = ["slurm.sbatch", "pbs.sh", "lsf.bsub"]


def mpi_job() -> dict[str, Any]:
    job = yaml.safe_load((SCHEDULERS / "kubernetes.yaml").read_text())
    assert isinstance(job, dict)
    return job


def container(role: str) -> dict[str, Any]:
    """The only container of a pod of the MPIJob."""
    (found,) = mpi_job()["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    return dict(found)


def directives(script: str, mark: str) -> list[str]:
    text = (SCHEDULERS / script).read_text()
    return re.findall(rf"^#{mark} (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("script", [*SCRIPTS, "kubernetes.yaml"])
def test_shellcheck_finds_nothing(script: str, tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck: apt-get install shellcheck")
    path = SCHEDULERS / script
    if script == "kubernetes.yaml":
        path = tmp_path / "launcher.sh"
        path.write_text("#!/bin/bash\n" + container("Launcher")["command"][2])
    # SC1091: the environment's activate is not followed.
    command = [shellcheck, "--shell=bash", "--exclude=SC1091", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_each_scheduler_is_asked_for_a_signal_or_a_limit_before_its_own_and_for_a_requeue() -> None:
    assert directives("slurm.sbatch", "SBATCH") == [
        "--job-name=hvd-train", "--nodes=2", "--ntasks-per-node=4", "--time=01:00:00",
        "--signal=USR1@120", "--requeue", "--open-mode=append",
    ]  # fmt: skip
    assert directives("pbs.sh", "PBS") == [
        "-N hvd-train", "-l select=2:ncpus=4:mpiprocs=4", "-l walltime=01:00:00", "-r y", "-j oe"
    ]  # fmt: skip
    assert "--max-minutes 55" in (SCHEDULERS / "pbs.sh").read_text()
    assert directives("lsf.bsub", "BSUB") == [
        "-J hvd-train", "-n 8", '-R "span[ptile=4]"', "-W 60", "-wt 2", "-wa USR1", '-Q "143"',
        "-r", "-o hvd-train.%J.log",
    ]  # fmt: skip


def test_the_mpi_job_starts_a_rank_for_each_processor_and_restarts_a_launcher_that_ends() -> None:
    job = mpi_job()
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    specs = job["spec"]["mpiReplicaSpecs"]
    assert {role: specs[role]["replicas"] for role in specs} == {"Launcher": 1, "Worker": 2}
    assert specs["Launcher"]["restartPolicy"] == "OnFailure"
    worker = container("Worker")
    assert worker["resources"]["limits"]["cpu"] == str(job["spec"]["slotsPerWorker"])
    volumes = {volume["name"] for volume in specs["Worker"]["template"]["spec"]["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    assert mounts.keys() == volumes
    data, runs = (container("Launcher")["args"][i] for i in (2, 4))
    assert (Path(data).parent, Path(runs)) == (Path(mounts["data"]), Path(mounts["runs"]))
    assert worker["image"] == container("Launcher")["image"]


RANK = """
import os, signal, sys, time
end, flags = sys.argv[1], sys.argv[2:]
asked = []
if end == "wait":
    signal.signal(signal.SIGUSR1, lambda *_: asked.append("USR1"))
    signal.signal(signal.SIGTERM, lambda *_: asked.append("TERM"))
open(f"started-{os.environ['OMPI_COMM_WORLD_RANK']}", "w").write(" ".join(flags))
if end == "wait":
    while not asked:
        time.sleep(0.05)
    time.sleep(2)  # longer than mpirun waits by itself
    open(f"saved-{os.environ['OMPI_COMM_WORLD_RANK']}", "w").close()
    end = 143
sys.exit(int(end))
"""


class Job:
    """A script of a scheduler, as a process in a folder of its own."""

    def __init__(self, folder: Path, command: list[str], **env: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / ".venv").symlink_to(BIN.parent)
        (folder / "rank.py").write_text(RANK)
        (folder / "nodes").write_text("localhost\nlocalhost\n")
        bin_ = folder / "bin"
        bin_.mkdir()
        (bin_ / "qsub").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >qsub\n')
        (bin_ / "qsub").chmod(0o755)
        environ = {
            **os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", **env,
        }  # fmt: skip
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def ask(self, number: signal.Signals, *, whole_session: bool) -> None:
        """Sends a signal, to every process of the job as PBS does or to the first, once it runs."""
        deadline = time.monotonic() + 60
        while len(self.started) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(self.started) == 2, self.log
        if not whole_session:
            self.process.send_signal(number)
            return
        for process in session_of(self.process.pid):
            os.kill(process, number)

    def code(self) -> int:
        return self.process.wait(60)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def started(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("started-*")) if path.read_text()]

    @property
    def submitted(self) -> list[str]:
        """What the job submits in its turn."""
        path = self.folder / "qsub"
        return path.read_text().splitlines() if path.exists() else []


def session_of(process: int) -> list[int]:
    """The processes of a session, the youngest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == process:
                found.append(int(folder.name))
    return sorted(found, reverse=True)


def pbs(folder: Path, end: str) -> Job:
    command = ["bash", str(SCHEDULERS / "pbs.sh")]
    env = {"PBS_O_WORKDIR": str(folder), "PBS_NODEFILE": str(folder / "nodes")}
    return Job(folder, command, TRAIN=f"rank.py {end}", **env)


def lsf(folder: Path, end: str) -> Job:
    command = ["bash", str(SCHEDULERS / "lsf.bsub")]
    env = {"LSB_JOBID": "7", "LSB_DJOB_HOSTFILE": str(folder / "nodes")}
    return Job(folder, command, TRAIN=f"rank.py {end}", **env)


def kubernetes(folder: Path, end: str) -> Job:
    # The operator's hostfile comes by this variable.
    env = {"OMPI_MCA_orte_default_hostfile": str(folder / "nodes")}
    return Job(folder, [*container("Launcher")["command"], "rank.py", end], **env)


def test_a_job_that_is_done_ends_with_0_and_comes_not_again(tmp_path: Path) -> None:
    for start, flags in (
        (pbs, "--resume --max-minutes 55"), (lsf, "--resume"), (kubernetes, "--resume")
    ):  # fmt: skip
        job = start(tmp_path / start.__name__, "0")
        assert job.code() == 0, job.log
        assert [path.read_text() for path in job.started] == [flags, flags]
        assert job.submitted == []
        assert not list(job.folder.glob("hosts.*"))


def test_a_pbs_job_whose_time_is_over_submits_its_successor_and_a_failed_one_does_not(
    tmp_path: Path,
) -> None:
    job = pbs(tmp_path / "over", "143")
    assert job.code() == 143, job.log
    assert job.submitted == ["-v", "TRAIN=rank.py 143", "hostfiles/schedulers/pbs.sh"]
    job = pbs(tmp_path / "failed", "4")
    assert job.code() == 4, job.log
    assert job.submitted == []


@pytest.mark.parametrize(
    ("start", "number"),
    [(pbs, signal.SIGTERM), (lsf, signal.SIGUSR1), (kubernetes, signal.SIGTERM)],
)
def test_a_job_that_is_asked_to_stop_lets_its_ranks_save(
    tmp_path: Path, start: Any, number: signal.Signals
) -> None:
    job = start(tmp_path / "job", "wait")
    job.ask(number, whole_session=start is pbs)
    # mpirun, which PBS tells to end too, has a code of its own.
    assert job.code() == (1 if start is pbs else 143), job.log
    assert len(list(job.folder.glob("saved-*"))) == 2, job.log
    assert job.submitted == []
