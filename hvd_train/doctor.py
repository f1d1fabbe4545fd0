"""`hvd_train doctor`: why training doesn't start on some hosts or under some launcher.

It runs where TensorFlow, Horovod or MPI are absent or broken: what imports them, and what runs on
other hosts, are processes with a time limit.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_tools import datasets, launch_env
from data_tools.errors import CONFIG, RANK, DataError, Kind, to_stderr
from hvd_train import diagnosis, launch_command, over_ssh, probe, rank_report, tied
from hvd_train import hosts as host_lists
from hvd_train.diagnosis import Network, Report
from hvd_train.flags import Doctor
from hvd_train.hosts import Slots
from hvd_train.launch_command import LaunchCommand

LAUNCH_SECONDS = rank_report.TOGETHER_SECONDS + probe.LOAD_SECONDS + 30.0
"""How long a launcher may take to start the ranks, these to report, and all to end."""
ROOT_ALLOWED = "OMPI_ALLOW_RUN_AS_ROOT"
FIX = "mend the first, which may be the cause of others, then start the doctor again"


def main(command: Doctor) -> None:
    """Looks at hosts, or at the ranks of a launcher, and says what is wrong.

    Raises:
        DataError: what is wrong; of several faults the count, with a line for each.
    """
    named = command.data or os.environ.get(datasets.VARIABLE)
    data = str(Path(named).absolute()) if named else None
    if launch_env.read().launcher != "none":
        if command.hosts is not None or command.launch:
            raise DataError(
                CONFIG, "command line", "this doctor was itself started by a launcher",
                fix="leave out -H and what follows --, or start it without a launcher",
            )  # fmt: skip
        _as_rank(data)
        return
    hosts = None
    if command.hosts is not None:
        if fault := launch_command.split_by_spaces(command.hosts, command.launch):
            raise fault
        hosts = host_lists.read_list(command.hosts)
    if command.launch:
        launch = launch_command.parse(command.launch)
        if hosts := hosts or launch.hosts:
            check_hosts(hosts, command.ssh_port, data)
        check_launch(launch, data)
    else:
        hosts = hosts or {socket.gethostname(): len(os.sched_getaffinity(0))}
        advise(hosts, command.ssh_port, check_hosts(hosts, command.ssh_port, data), data)


def stop_at(faults: Sequence[DataError]) -> None:
    """Raises what is wrong, if anything is."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = [str(fault).removeprefix("error: ") for fault in faults]
        kind: Kind = faults[0].kind
        raise DataError(kind, "doctor", f"{len(faults)} faults", fix=FIX, faults=lines)


def advise(hosts: Slots, ssh_port: int | None, network: Network | None, data: str | None) -> None:
    """Prints the commands that start a training on hosts without a fault, on that data set."""
    example = "" if launch_command.script_of(data) else ", such as cifar.py,"
    print(f"\nno faults; start training{example} with one of\n")
    lines = launch_command.recommended(hosts, ssh_port=ssh_port, network=network, data=data)
    for line in lines:
        print(f"  {line}")
    if os.geteuid() == 0 and ROOT_ALLOWED not in os.environ:
        print("\nOpen MPI's mpirun refuses root: use an ordinary user")


def check_hosts(hosts: Slots, ssh_port: int | None, data: str | None) -> Network | None:
    """Looks at all hosts, and at this one if it only starts the ranks.

    Args:
        hosts: slots by host.
        ssh_port: of their sshd.
        data: the data set folder.

    Returns:
        The network to name to launchers, if one must be named.

    Raises:
        DataError: what is wrong.
    """
    here = [] if over_ssh.any_is_here(list(hosts)) else [socket.gethostname()]
    wanted = {
        "root": str(rank_report.ROOT), "folder": str(Path.cwd()), "data": data,
        "interpreter": sys.executable, "load_seconds": probe.LOAD_SECONDS,
    }  # fmt: skip
    found, faults = over_ssh.examine([*here, *hosts], ssh_port, wanted)
    reports = [
        Report(
            where=host, slots=hosts.get(host, 0), facts=facts, load=facts["load"],
            skew=facts["skew"], reached=facts["reached"],
        )
        for host, facts in found.items()
    ]  # fmt: skip
    if reports:
        print(diagnosis.table(reports))
    stop_at([*faults, *diagnosis.diagnose(reports, data)])
    return diagnosis.network_to_name(reports)


def _as_rank(data: str | None) -> None:
    """Reports as one rank of a launcher; rank 0 for all, the others why they don't come together.

    Raises:
        DataError: what is wrong.
    """
    own = rank_report.report(data)
    fault = rank_report.error_of(own)
    if own["rank"]:
        if fault is not None:
            raise fault
        return  # with 0: the launcher would end the others before rank 0 has spoken
    reports = rank_reports(own.get("reports", [own]))
    print(diagnosis.table(reports), flush=True)
    stop_at([*diagnosis.diagnose(reports, data), *([fault] if fault else [])])


def rank_reports(found: Sequence[dict[str, Any]]) -> list[Report]:
    """The ranks' own reports in order, their clocks against rank 0's."""
    found = sorted(found, key=lambda facts: facts["rank"])
    return [
        Report(
            where=facts["host"], slots=facts["slots"], rank=facts["rank"], facts=facts,
            load=facts["load"], skew=facts["time"] - found[0]["time"],
        )
        for facts in found
    ]  # fmt: skip


def check_launch(launch: LaunchCommand, data: str | None) -> None:
    """Starts the launcher with the ranks' reports as its program.

    Raises:
        DataError: what is wrong.
    """
    program = [sys.executable, "-m", "hvd_train.rank_report", *([data] if data else [])]
    code, output = _run([*launch.words, *program])
    found = [report for line in output.splitlines() if (report := rank_report.decode(line))]
    if not found:
        to_stderr(output.strip())
        raise launch_command.explain(launch.words[0], code, output)
    # Where the ranks met, each has the reports of all, taken at the same time.
    met = next((own["reports"] for own in found if "reports" in own), found)
    size = found[0]["size"]
    started = max(len(found), launch.size or 0)
    if started > size:
        met = [own["reports"][own["rank"]] if "reports" in own else own for own in found]
    reports = rank_reports(met)
    print(diagnosis.table(reports))
    if started > size:
        raise DataError(
            CONFIG, launch.words[0],
            f"the launcher started {started} processes, each takes itself for one of {size}",
            fix="use horovodrun, or the mpirun of the MPI that Horovod was built for",
        )  # fmt: skip
    errors = {str(e): e for e in map(rank_report.error_of, found) if e is not None}
    silent = sorted(set(range(size)) - {own["rank"] for own in found})
    faults = [*diagnosis.diagnose(reports, data), *errors.values()]
    if not faults and (silent or any("error" in own for own in found)):
        named = ", ".join(map(str, silent))
        to_stderr(output.strip())
        reason = f"of {size} ranks {named or 'some'} didn't report"
        faults.append(DataError(RANK, launch.words[0], reason, fix="see its words above"))
    stop_at(faults)
    print(f"\nno faults: {size} ranks came together")


def _run(words: Sequence[str]) -> tuple[int | None, str]:
    """Runs a launcher; returns its exit code, None if it took too long, and what it wrote."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, _stop)
    try:
        with tied.started(words, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
            return _outcome(process)
    except OSError as error:
        raise DataError(
            CONFIG, words[0], f"it can't be started: {error.strerror}",
            fix="activate the environment, or give its path",
        ) from error  # fmt: skip


def _outcome(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    try:
        output, _ = process.communicate(timeout=LAUNCH_SECONDS)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, _end(process)
    except (KeyboardInterrupt, SystemExit):  # which the launcher doesn't hear in its own session
        _end(process)
        raise


def _stop(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _end(process: subprocess.Popen[str]) -> str:
    """Ends a launcher, which needs a moment to end its ranks on all hosts; returns its words."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=10)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]
