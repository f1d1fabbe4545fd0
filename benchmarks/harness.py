"""What the benchmarks do alike: run the README's commands, name the machine, keep results."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BIN = Path(sys.executable).parent


def run(command: Sequence[str]) -> float:
    """Runs a command of the environment in the project's folder and returns its seconds."""
    print("$", " ".join(command), flush=True)
    start = time.perf_counter()
    subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, env=environment(), check=True)
    return time.perf_counter() - start


def environment() -> dict[str, str]:
    """This process's variables, with the environment's commands first on PATH."""
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}


def processor() -> str:
    """The processor's name, as far as the system tells."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def append(path: Path, head: str, text: str) -> None:
    """Adds to a file of results, which begins with `head`."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_text(head)
    with path.open("a") as file:
        file.write(text)


def show(what: str, values: Sequence[float]) -> None:
    """Prints the median and the spread."""
    print(f"{what}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})")
