"""Hosts in every launcher's form, and what is said of lines that are none."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from data_tools.errors import DataError
from hvd_train import hosts
from hvd_train.flags import Hosts

ROOT = Path(__file__).resolve().parents[2]
TWO = {"host1": 4, "host2": 2}
NO_SLOTS = "is no number of slots from 1 to 999,999"


def refused(call: Callable[..., object], *args: object) -> str:
    with pytest.raises(DataError) as caught:
        call(*args)
    return caught.value.report()


def read(tmp_path: Path, text: str | bytes) -> dict[str, int]:
    path = tmp_path / "hosts"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return hosts.read_file(path)


FILES = {
    "Open MPI": "host1 slots=4\nhost2 slots=2 max_slots=4\n",
    "Open MPI, other words": "host1 cpus = 4\nhost2 max-slots=2 count=2\n",
    "MPICH": "host1:4\nhost2:2\n",
    "PBS": "host1\nhost1\nhost2\nhost1\nhost2\nhost1\n",
    "comments and blank lines": "# two\n\n  host1 slots=4  # big\n\thost2 slots=2\n\n",
    "Windows": b"\xef\xbb\xbfhost1:4\r\n\r\nhost2 slots=2\r\n",
    "no line's end": "host1:4\nhost2:2",
    "both forms, in parts": "host1:3\nhost2 slots=2\nhost1\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_every_form_of_file_is_read(tmp_path: Path, text: str | bytes) -> None:
    found = read(tmp_path, text)
    assert list(found.items()) == list(TWO.items())


def test_addresses_are_hosts(tmp_path: Path) -> None:
    text = "host3.:2\n[fe80::1]:4\nfe80::2\n192.0.2.1:3\n2001:DB8:0::1 slots=2\n[fe80::1%eth0]\n"
    assert read(tmp_path, text) == {
        "host3.": 2, "fe80::1": 4, "fe80::2": 1, "192.0.2.1": 3, "2001:db8::1": 2, "fe80::1%eth0": 1
    }  # fmt: skip


BAD_LINES = {
    "host1 slots=four": f"'four' {NO_SLOTS}",
    "host1:0": f"'0' {NO_SLOTS}",
    "host1:-1": f"'-1' {NO_SLOTS}",
    "host1:": f"'' {NO_SLOTS}",
    "host1:4 slots=4": "'slots=4' after host1:4 is neither slots= nor max_slots=",
    "host1 4": "'4' after host1 is neither slots= nor max_slots=",
    "host1:4,host2:4": f"'4,host2:4' {NO_SLOTS}",
    "host1 slots=4 max_slots=2": "4 slots, but max_slots=2",
    "host1 slots=1000000": f"'1000000' {NO_SLOTS}",
    "ann@host1:4": "'ann@host1' names a user, which belongs into ~/.ssh/config",
    "^host1": "'^host1' is no name of a host",
    "fe80:::1": "'fe80:::1' is no IPv6 address",
    "[host1]:4": "'host1' is no IPv6 address",
    "[fe80::1%$(touch${IFS}x);id]:4": "'fe80::1%$(touch${IFS}x);id' is no IPv6 address",
    "host..1:2": "'host..1' is no name of a host",
    f"{'a' * 64}.org:2": f"'{'a' * 64}.org' is no name of a host",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_is_no_host_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    assert refused(read, tmp_path, f"host0\n\n{line}\n") == (
        f"error: INPUT: {tmp_path}/hosts:3: {BAD_LINES[line]}; write host slots=4, or host:4"
    )


def test_all_bad_lines_are_told_at_once(tmp_path: Path) -> None:
    assert refused(read, tmp_path, "a:x\nb\n^c\n") == (
        f"{tmp_path}/hosts:1: 'x' {NO_SLOTS}\n"
        f"{tmp_path}/hosts:3: '^c' is no name of a host\n"
        f"error: INPUT: {tmp_path}/hosts: 2 lines are no hosts; write host slots=4, or host:4"
    )


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        (b"^" * 81, f"'{'^' * 79}…'"),
        (b"^" * 80, f"'{'^' * 80}'"),
        (b"\0" * 5_000_000, f"'{(chr(92) + 'x00') * 19}{chr(92)}x0…'"),
    ],
)
def test_a_long_line_is_quoted_in_part(tmp_path: Path, line: bytes, quoted: str) -> None:
    assert refused(read, tmp_path, line) == (
        f"error: INPUT: {tmp_path}/hosts:1: {quoted} is no name of a host; "
        "write host slots=4, or host:4"
    )


@pytest.mark.parametrize("text", ["", "\n# host1\n"])
def test_a_file_without_hosts_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(read, tmp_path, text) == (
        f"error: INPUT: {tmp_path}/hosts: it names no host; write host slots=4, or host:4"
    )


def test_a_list_is_read_as_horovodrun_reads_it() -> None:
    assert hosts.read_list("host1:4,host2:2") == TWO
    assert hosts.read_list(" host1:4 , host2 , host2 ") == TWO


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        ("host1:4 host2:2", f"'4 host2:2' {NO_SLOTS}", "host1:4,host2:2"),
        ("host1:4,", "'' is no name of a host", "host1:4"),
        ("", "'' is no name of a host", "host1:4,host2:4"),
        ("host1:0", f"'0' {NO_SLOTS}", "host1:4,host2:4"),
        ("host1:4; host2:2", f"'4; host2:2' {NO_SLOTS}", "host1:4,host2:2"),
    ],
)
def test_a_list_that_is_parted_otherwise_is_refused_with_the_right_one(
    text: str, reason: str, fix: str
) -> None:
    message = f"error: CONFIG: -H: {reason}; write it like -H {fix}"
    assert refused(hosts.read_list, text) == message


SLURM = {
    ("host1", "2"): {"host1": 2},
    ("node[01-03,07],gpu5", "2(x4),1"): {
        "node01": 2, "node02": 2, "node03": 2, "node07": 2, "gpu5": 1
    },
    ("n[9-11]", "1(x2),8"): {"n9": 1, "n10": 1, "n11": 8},
    ("r[1-2]n[08-09].x", "4(x4)"): {"r1n08.x": 4, "r1n09.x": 4, "r2n08.x": 4, "r2n09.x": 4},
    ("a,b[1,3],c", "1,2(x2),3"): {"a": 1, "b1": 2, "b3": 2, "c": 3},
}  # fmt: skip


@pytest.mark.parametrize("variables", SLURM, ids=" ".join)
def test_slurms_ranges_are_told_one_by_one(variables: tuple[str, str]) -> None:
    assert list(hosts.of_slurm(*variables).items()) == list(SLURM[variables].items())


@pytest.mark.parametrize(
    ("nodes", "tasks", "message"),
    [
        ("node[1-2", "1", "$SLURM_JOB_NODELIST: 'node[1-2' has no closing bracket"),
        ("node[2-1]", "1", "$SLURM_JOB_NODELIST: '2-1' is no range of nodes"),
        ("node[a]", "1", "$SLURM_JOB_NODELIST: 'a' is no range of nodes"),
        ("node[0-999999999]", "1", "$SLURM_JOB_NODELIST: '0-999999999' is no range of nodes"),
        (
            "n[1-9999]x[1-9999]", "1",
            "$SLURM_JOB_NODELIST: 'n[1-9999]x[1-9999]' is more than 100,000 nodes",
        ),
        ("a,b", "1", "$SLURM_TASKS_PER_NODE: it is of 1 node, SLURM_JOB_NODELIST of 2"),
        ("a", "2(y3)", "$SLURM_TASKS_PER_NODE: '2(y3)' is no number of tasks"),
        ("a", "", "$SLURM_TASKS_PER_NODE: it is not set"),
    ],
)  # fmt: skip
def test_slurms_lists_that_are_none_are_refused(nodes: str, tasks: str, message: str) -> None:
    assert refused(hosts.of_slurm, nodes, tasks) == (
        f"error: CONFIG: {message}; name a hostfile, or -H host1:4,host2:4"
    )


def test_lsfs_pairs_are_read() -> None:
    assert hosts.of_lsf("host1 4 host2 2") == TWO
    assert refused(hosts.of_lsf, "host1 4 host2") == (
        "error: CONFIG: $LSB_MCPU_HOSTS: 'host2' has no number after it; "
        "name a hostfile, or -H host1:4,host2:4"
    )


def test_each_scheduler_tells_its_hosts(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text(FILES["PBS"])
    jobs: dict[str, Mapping[str, str]] = {
        "$SLURM_JOB_NODELIST": {
            "SLURM_JOB_NODELIST": "host[1-2]", "SLURM_TASKS_PER_NODE": "4,2"
        },
        "$PBS_NODEFILE": {"PBS_NODEFILE": str(path)},
        "$LSB_DJOB_HOSTFILE": {"LSB_DJOB_HOSTFILE": str(path), "LSB_MCPU_HOSTS": "x 1"},
        "$LSB_MCPU_HOSTS": {"LSB_MCPU_HOSTS": "host1 4 host2 2"},
    }  # fmt: skip
    for source, environ in jobs.items():
        assert hosts.of_scheduler(environ) == (TWO, source)


def test_each_form_that_is_written_is_read_as_the_same(tmp_path: Path) -> None:
    assert hosts.for_horovodrun(TWO) == "-H host1:4,host2:2"
    assert read(tmp_path, hosts.for_open_mpi(TWO)) == TWO
    assert read(tmp_path, hosts.for_mpich(TWO)) == TWO
    six = {"fe80::1": 2}
    assert read(tmp_path, hosts.for_open_mpi(six)) == six
    for write, launcher in ((hosts.for_horovodrun, "horovodrun"), (hosts.for_mpich, "MPICH")):
        assert refused(write, six) == (
            f"error: CONFIG: fe80::1: {launcher} takes no IPv6 address; "
            "give that host a name in /etc/hosts"
        )


def test_a_file_and_a_list_together_are_refused() -> None:
    both = Hosts(file=Path("hosts"), hosts="host1:4")
    assert refused(hosts.find, both) == (
        "error: CONFIG: -H: hosts names hosts too; give one of both"
    )


ALL = """\
8 slots on 2 hosts, from {}

for horovodrun:
-H host1:4,host2:4

hostfile of Open MPI, for mpirun --hostfile FILE and horovodrun --hostfile FILE:
host1 slots=4
host2 slots=4

machinefile of MPICH and Intel MPI, for mpiexec -f FILE:
host1:4
host2:4
"""


def test_the_command_prints_all_forms_or_one(run_cli: Callable[..., Any]) -> None:
    for file in ("hostfiles/openmpi.hosts", "hostfiles/mpich.hosts"):
        ran = run_cli(["hvd_train", "hosts", file], cwd=ROOT)
        assert (ran.rc, ran.stdout, ran.stderr) == (0, ALL.format(file), "")
    ran = run_cli(["hvd_train", "hosts", "-H", "host1"])
    assert ran.stdout.startswith("1 slot on 1 host, from -H\n")
    ran = run_cli(["hvd_train", "hosts", "-H", "host1:4,host2:4", "--form", "mpich"])
    assert (ran.rc, ran.stdout, ran.stderr) == (0, "host1:4\nhost2:4\n", "")


def test_the_command_ends_with_the_code_of_the_fault(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    unset = dict.fromkeys(
        ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS")
    )
    if not hosts.KUBERNETES_FILE.exists():
        ran = run_cli(["hvd_train", "hosts"], env=unset)
        assert (ran.rc, ran.stdout) == (2, "")
        assert ran.stderr == (
            "error: CONFIG: hosts: no file, no -H, and no scheduler tells which; "
            "name a hostfile, or -H host1:4,host2:4\n"
        )
    ran = run_cli(["hvd_train", "hosts", tmp_path / "absent"])
    assert (ran.rc, ran.stdout) == (3, "")
    assert ran.error.startswith(f"error: INPUT: {tmp_path}/absent: No such file or directory; ")
