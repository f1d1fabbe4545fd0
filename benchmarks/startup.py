"""Times a start: from the command to the first step, beside importing TensorFlow and Horovod bare.

    .venv/bin/python benchmarks/startup.py --data datasets/cifar10

Both run under `mpirun -np 2`, in turn. What the start is made of is told by the lines that the
trainer prints: `ranks:` (imports, MPI), `data:` (data set, model), step 0 (tracing, first step).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import BIN, ROOT, add_save, environment, report, summary

BARE = "import tensorflow; import horovod.tensorflow as hvd; hvd.init(); print('done')"
MARKS = ("ranks:", "data:", ": step 0,")
PARTS = ("imports and MPI", "data set and model", "tracing and first step")


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    add_save(parser)
    arguments = parser.parse_args()
    pairs = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours = marks(
                arguments.ranks,
                ["hvd_train/cifar.py", "--steps", "1", "--eval-every", "0", "--runs-dir", folder,
                 "--data", str(arguments.data.resolve())],
                MARKS,
            )  # fmt: skip
        pairs.append((ours, marks(arguments.ranks, ["-c", BARE], ("done",))[-1]))
    lines = [
        summary("bare import and hvd.init, s", [bare for _, bare in pairs]),
        summary("command to first step, s", [ours[-1] for ours, _ in pairs]),
        summary("ratio (target 2.0)", [ours[-1] / bare for ours, bare in pairs]),
    ]
    for index, part in enumerate(PARTS):
        seconds = [ours[index] - (ours[index - 1] if index else 0) for ours, _ in pairs]
        lines.append(summary(f"of it {part}, s", seconds))
    report(lines, save=arguments.save)


def marks(ranks: int, arguments: list[str], wanted: tuple[str, ...]) -> list[float]:
    """Runs python under mpirun and returns when each of the marks was first printed, in seconds."""
    command = [str(BIN / "mpirun"), "-np", str(ranks), str(BIN / "python"), *arguments]
    start, found = time.perf_counter(), {}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            for mark in wanted:
                if mark in line:
                    found.setdefault(mark, time.perf_counter() - start)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return [found[mark] for mark in wanted]


if __name__ == "__main__":
    main()
