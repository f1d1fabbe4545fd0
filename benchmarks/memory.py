"""Memory of a rank after some steps, resident and at its peak, ours beside our peers'.

    .venv/bin/python benchmarks/memory.py --data datasets/cifar10 --torch-python PYTHON

Runs each contestant of throughput.py once, in the same way. Ours holds the whole data set decoded
(150 MB of CIFAR-10) in every rank, the peers one batch.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import throughput
from harness import add_save, report
from throughput import CONTESTANTS, Contestant


def main() -> None:
    """Runs what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--torch-python", default=sys.executable, help="one that has PyTorch")
    add_save(parser)
    arguments = parser.parse_args()
    arguments.warmup, arguments.log_every = 1, 1
    if throughput.version_of_torch(arguments.torch_python) is None:
        arguments.only = [name for name in arguments.only if name != throughput.PYTORCH]
    rows = ["| contestant | resident, MiB a rank | peak, MiB a rank |", "| --- | --- | --- |"]
    for name in arguments.only:
        of_ranks = measure(CONTESTANTS[name], arguments)
        resident, peak = ("..".join(map(str, spread(of))) for of in zip(*of_ranks, strict=True))
        rows.append(throughput.row([CONTESTANTS[name].title, resident, peak]))
    report(rows, save=arguments.save)


def measure(contestant: Contestant, arguments: argparse.Namespace) -> list[list[int]]:
    """Returns resident and peak memory of each rank that is told."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            arguments.torch_python if word == "torch-python" else word
            for word in throughput.command_of(contestant, arguments, Path(folder))
        ]
        output = throughput.run(command, contestant.environment)
        if contestant.peer is None:
            result = json.loads((Path(folder) / "throughput" / "eval.json").read_text())
        else:
            result = throughput.line_printed(output)
    of_ranks: list[list[int]] = result["memory_mib"]
    return of_ranks


def spread(figures: Sequence[int]) -> list[int]:
    """The least and the most, or the one that all are."""
    return sorted({min(figures), max(figures)})


if __name__ == "__main__":
    main()
