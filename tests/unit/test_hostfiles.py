import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Command = Callable[..., Any]

HOSTFILES = Path(__file__).resolve().parents[2] / "hostfiles"
SLOTS = {"host1": 4, "host2": 4}


def test_open_mpi_maps_four_ranks_to_each_host_of_its_example(mpirun: Command) -> None:
    example = HOSTFILES / "openmpi.hosts"
    mapped = mpirun(8, ["--hostfile", example, "--display-map", "--do-not-launch", "true"])
    nodes = re.findall(r"Data for node: (\w+)\s+Num slots: (\d+).*Num procs: (\d+)", mapped.stdout)
    assert {node: int(slots) for node, slots, _ in nodes} == SLOTS
    assert [int(ranks) for *_, ranks in nodes] == [4, 4]


def test_horovodrun_reads_the_open_mpi_example(run_cli: Command) -> None:
    parse = "from horovod.runner.common.util.hosts import parse_host_files as parse; import sys"
    example = HOSTFILES / "openmpi.hosts"
    read = run_cli(["python", "-c", f"{parse}; print(parse(sys.argv[1]))", example])
    assert read.stdout == "host1:4,host2:4\n"


def test_the_mpich_example_is_lines_of_host_and_ranks() -> None:
    lines = (HOSTFILES / "mpich.hosts").read_text().splitlines()
    found = [re.fullmatch(r"([\w.-]+):([1-9]\d*)", line) for line in lines]
    assert {match[1]: int(match[2]) for match in found if match} == SLOTS
    assert all(found)
