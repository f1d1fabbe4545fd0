"""Trains CIFAR-10 for 10 epochs on 1, 2 and 4 ranks, one global batch, and compares precision @ 1.

    .venv/bin/python benchmarks/rank_accuracy.py            # or make rank-accuracy

The recipe and the data are those of cifar_accuracy.py, tutorial. The target is that precision @ 1
differs by at most 0.005 over the numbers of ranks: the order, the distortions and the rate are the
same, but sums of float32 are rounded otherwise, and from such a start trainings part. A number of
ranks takes about five minutes on 2 cores. Runs are kept in runs/, so that the script started anew
goes on where a cut one ended; --again starts all over. A dated section is added to
results/rank_accuracy.md.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from cifar_accuracy import RECIPES, prepare, random_set
from harness import ROOT, add_save, report, run, scratch

TARGET = 0.005
SMOKE_STEPS = 3


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--source", type=Path, help="folder of data_batch_*.bin and test_batch.bin")
    parser.add_argument("--again", action="store_true", help="train anew what is trained already")
    parser.add_argument("--smoke", action="store_true", help="3 steps on random pictures")
    add_save(parser)
    arguments = parser.parse_args()
    if arguments.smoke:
        with scratch() as folder:
            data = random_set(folder / "random")
            compare(arguments, data, folder, ["--steps", str(SMOKE_STEPS)])
    else:
        compare(arguments, prepare(arguments.source, official=False), ROOT / "runs", [])


def compare(arguments: argparse.Namespace, data: Path, runs: Path, flags: list[str]) -> None:
    """Trains on each number of ranks and reports how far they are apart."""
    found = {
        ranks: train(ranks, data, runs, flags, again=arguments.again) for ranks in arguments.ranks
    }
    lines = [
        f"- {ranks} ranks: {of['precision_at_1']:.4f} ({of['correct']} of {of['examples']}), loss "
        f"{of['loss']:.4f}, after {of['step']} steps of {of['global_batch']}"
        for ranks, of in found.items()
    ]
    precisions = [of["precision_at_1"] for of in found.values()]
    apart = max(precisions) - min(precisions)
    lines.append(f"- apart by {apart:.4f} (target at most {TARGET})")
    report(lines, save=arguments.save)


def train(ranks: int, data: Path, runs: Path, flags: list[str], *, again: bool) -> dict[str, Any]:
    """Trains to the end, unless that is done, and returns what eval.json says."""
    name = f"rank-accuracy-{ranks}"
    result = runs / name / "eval.json"
    if again:
        shutil.rmtree(runs / name, ignore_errors=True)
    if not result.exists():
        run([
            "mpirun", "--oversubscribe", "-np", str(ranks), "python", "hvd_train/cifar.py",
            "--config", RECIPES["tutorial"], "--data", str(data),
            "--runs-dir", str(runs), "--name", name, "--resume", "--eval-every", "0", *flags,
        ])  # fmt: skip
    found: dict[str, Any] = json.loads(result.read_text())
    return found


if __name__ == "__main__":
    main()
