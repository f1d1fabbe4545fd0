"""The CIFAR-10 tutorial's exercise: one replica with a batch of 128 beside two with 64 each.

    .venv/bin/python benchmarks/one_and_two.py --data datasets/cifar10

Trains the tutorial's network, its rate and its distortions for some steps on one rank and on two,
one after the other, and draws loss by step, loss by time and images/s into one picture,
benchmarks/results/one-and-two.svg. By allreduce both are the same run, so the losses fall together
and only the time differs.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
from harness import BIN, RESULTS, ROOT, add_save, environment, report

PICTURE = RESULTS / "one-and-two.svg"
BATCH = 128
Lines = list[dict[str, Any]]


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--smoke", action="store_true", help="11 steps; no picture is kept")
    add_save(parser)
    arguments = parser.parse_args()
    steps = 11 if arguments.smoke else arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            f"{ranks} x {BATCH // ranks}": train(ranks, steps, arguments.data, Path(folder))
            for ranks in (1, 2)
        }
        picture = Path(folder, "picture.svg") if arguments.smoke else PICTURE
        draw(runs, picture)
        assert picture.stat().st_size
    found = [
        f"- {name}: {speed(lines):.1f} images/s, loss {lines[-1]['loss']:.3f} at the end"
        for name, lines in runs.items()
    ]
    report(found, save=arguments.save)


def train(ranks: int, steps: int, data: Path, folder: Path) -> Lines:
    """Trains on so many ranks and returns the training lines of metrics.jsonl."""
    launch = [] if ranks == 1 else [str(BIN / "mpirun"), "-np", str(ranks)]
    subprocess.run(
        [*launch, str(BIN / "python"), "hvd_train/cifar.py", "--global-batch", str(BATCH),
         "--steps", str(steps), "--eval-every", "0", "--data", str(data.resolve()),
         "--runs-dir", str(folder), "--name", f"on-{ranks}"],
        cwd=ROOT, check=True, env=environment(),
    )  # fmt: skip
    text = (folder / f"on-{ranks}" / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["split"] == "train"]


def speed(lines: Lines) -> float:
    """Returns the median rate, the first lines left out."""
    return statistics.median(line["examples_per_sec"] for line in lines[1:])


def draw(runs: dict[str, Lines], path: Path) -> None:
    """Draws loss by step and by time, the rate beside the name."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "one-and-two"  # the same names in the file each time
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for name, lines in runs.items():
        start = datetime.datetime.fromisoformat(lines[0]["time"])
        seconds = [
            (datetime.datetime.fromisoformat(line["time"]) - start).total_seconds()
            for line in lines
        ]
        losses = [line["loss"] for line in lines]
        label = f"{name}: {speed(lines):.0f} images/s"
        axes[0].plot([line["step"] for line in lines], losses, label=label, linewidth=1)
        axes[1].plot(seconds, losses, label=label, linewidth=1)
    axes[0].set(xlabel="step", ylabel="loss with weight decay")
    axes[1].set(xlabel="seconds")
    axes[0].legend(title="ranks x batch")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
