"""What the benchmarks do alike: run the README's commands, name the machine, keep results."""

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, in memory where the system has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


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


def commit() -> str:
    """Names the commit, `-dirty` where tracked files differ from it, but for kept results."""

    def git(*words: str) -> str:
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return ran.stdout.strip()

    others = (".", ":!benchmarks/results")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *others)
    return (git("describe", "--always") or "unknown") + ("-dirty" if changed else "")


def heading() -> str:
    """Names when, where and of which code a section of results is."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        f"## {now:%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, {processor()}\n\n"
        f"Commit {commit()}, "
        f"Horovod {importlib.metadata.version('horovod')}."
    )


def add_save(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that `report` takes."""
    name = Path(sys.argv[0]).stem
    parser.add_argument("--save", action="store_true", help=f"add to results/{name}.md")


def summary(what: str, values: Sequence[float]) -> str:
    """The median and the spread, as an item of a list."""
    return f"- {what}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def report(lines: Sequence[str], *, save: bool) -> None:
    """Prints what this script found, and adds a dated section to its results."""
    text = "\n".join(lines)
    print(text)
    if save:
        name = Path(sys.argv[0]).stem
        section = f"\n{heading()}\n\n{text}\n"
        append(RESULTS / f"{name}.md", f"# Figures by `benchmarks/{name}.py`\n", section)
