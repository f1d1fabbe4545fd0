"""Times the tutorial's network, trained by this project and by its peers side by side.

    .venv/bin/python benchmarks/throughput.py --data datasets/cifar10 --torch-python PYTHON

All train the 1,068,298-parameter network of the TensorFlow CIFAR-10 tutorial with 128 examples a
rank, two ranks on two cores; run it where nothing else runs. Ours is the README's command on real
records with real distortions; a peer (peers/) is written as its own documentation does and trains
on one batch made before. Every round runs all of them, so that a ratio compares what the machine
did within minutes; figures are medians over the rounds. Each measurement is written to the log
(`--log`) at once, and the same log given again goes on where a cut run ended. A dated section is
added to results/throughput.md.

The peer that needs PyTorch takes any interpreter that has it, and is left out without:

    python3 -m venv torch && torch/bin/pip install torch numpy
"""

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, append, environment, heading

HEAD = "# Images a second by `benchmarks/throughput.py`\n"
PEERS = "benchmarks/peers"
FLOP_AN_IMAGE = 105e6
"""Multiplications and additions of one image's step, without the gradient of its pixels."""
TIMEOUT_SECONDS = 900
WARMUP = 20
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
ONE_THREAD = dict.fromkeys(THREADS, "1")
# What a shell may have set would be no default, neither ours nor a peer's.
NOT_INHERITED = (*THREADS, "OMPI_MCA_mpi_yield_when_idle", "TF_CONFIG")
MPIRUN = ("mpirun", "-np", "2")
# Horovod's page on MPI, without what is for GPUs and other hosts: no rank is bound to a core.
UNBOUND = (*MPIRUN, "-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1")
GLOO = ("horovodrun", "--gloo", "-np", "2")
TORCHRUN = ("torch-python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """What is timed. `python` and `torch-python` stand for the interpreters."""

    title: str
    launch: Sequence[str] = ()
    peer: str | None = None
    """Script of a peer; our own trainer if not given."""
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    target: float | None = None
    """What ours must be, as a multiple of it."""


CONTESTANTS = {
    "ours": Contestant(title="ours, mpirun", launch=MPIRUN),
    "ours-gloo": Contestant(title="ours, horovodrun --gloo", launch=GLOO),
    "ours-one-rank": Contestant(
        title=f"ours, 1 rank of 1 thread ({', '.join(f'{n}=1' for n in ONE_THREAD)})",
        launch=("mpirun", "-np", "1"), environment=ONE_THREAD,
    ),
    "horovod": Contestant(
        title="Horovod, mpirun", launch=MPIRUN, peer="horovod_plain.py", target=1.7
    ),
    "horovod-unbound": Contestant(
        title="Horovod, mpirun -bind-to none", launch=UNBOUND, peer="horovod_plain.py"
    ),
    "horovod-gloo": Contestant(
        title="Horovod, horovodrun --gloo", launch=GLOO, peer="horovod_plain.py"
    ),
    "horovod-tuned": Contestant(
        title="Horovod, 1 thread a rank, yield when idle, mpirun", launch=MPIRUN,
        peer="horovod_plain.py", flags=("--tuned",), target=1.15,
    ),
    "horovod-tuned-gloo": Contestant(
        title="Horovod, 1 thread a rank, horovodrun --gloo", launch=GLOO,
        peer="horovod_plain.py", flags=("--tuned",), target=1.15,
    ),
    "multi-worker-mirrored": Contestant(
        title="TensorFlow MultiWorkerMirroredStrategy, 2 workers",
        peer="multi_worker_mirrored.py", target=1.25,
    ),
    "parameter-server": Contestant(
        title="TensorFlow ParameterServerStrategy, 1 server, 2 workers, asynchronous",
        peer="parameter_server.py", target=1.5,
    ),
    "pytorch-ddp": Contestant(
        title="PyTorch DistributedDataParallel, gloo, 2 ranks", launch=TORCHRUN,
        peer="pytorch_ddp.py", target=2.0,
    ),
    "keras-fit": Contestant(title="Keras fit, 1 process", peer="keras_fit.py", target=1.2),
}  # fmt: skip
OURS, ONE_RANK, PYTORCH, SGEMM = "ours", "ours-one-rank", "pytorch-ddp", "sgemm"
EFFICIENCY_TARGET = 0.96
ROOF_TARGET = 0.72

Rates = Mapping[str, Sequence[float]]
"""By contestant, one figure a round: images/s, and of sgemm GFLOP/s."""


def main() -> None:
    """Measures, prints the tables and adds them to the results."""
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    names = [*CONTESTANTS, SGEMM] if arguments.only is None else arguments.only
    torch_version = version_of_torch(arguments.torch_python) if PYTORCH in names else None
    notes = []
    if PYTORCH in names and torch_version is None:
        names = [name for name in names if name != PYTORCH]
        notes.append(f"{CONTESTANTS[PYTORCH].title} is left out: --torch-python has no PyTorch.")
        print(notes[-1], flush=True)
    load = os.getloadavg()[0]
    rates = measure_all(names, arguments)
    text = tables(rates)
    print("\n" + text)
    if arguments.only is None and not arguments.smoke:
        head = describe(arguments, load, torch_version)
        append(RESULTS / "throughput.md", HEAD, "\n".join(["", head, *notes, "", text]))


def stop(number: int, _: object) -> None:
    """Ends this program by an exception, so that it ends what it has started."""
    raise SystemExit(128 + number)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="data set by `data_tools cifar-to-tfrecord`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="steps timed, a multiple of 10")
    parser.add_argument("--torch-python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument(
        "--log", type=Path, help="file of single measurements; an old one is gone on with"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*CONTESTANTS, SGEMM], help="some; adds no results"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="1 round of 3 steps, to see that all runs"
    )
    arguments = parser.parse_args()
    arguments.warmup, arguments.log_every = WARMUP, 10
    if arguments.smoke:
        arguments.rounds, arguments.steps, arguments.warmup, arguments.log_every = 1, 3, 2, 1
    if arguments.rounds < 1 or arguments.steps < 1 or arguments.steps % arguments.log_every:
        parser.error("--rounds and --steps must be positive, --steps a multiple of 10")
    if arguments.log is None:
        name = f"throughput-{datetime.datetime.now():%Y%m%d-%H%M%S}.jsonl"
        arguments.log = None if arguments.smoke else ROOT / "runs" / name
    return arguments


def version_of_torch(python: str) -> str | None:
    """The version of PyTorch that an interpreter has, or None."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def measure_all(names: Sequence[str], arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Runs every contestant in every round, but for what the log holds already."""
    known = read_log(arguments.log, arguments.steps)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        # Each round begins with another, so that none always follows the same neighbour's heat.
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            if (number, name) not in known:
                rate = sgemm() if name == SGEMM else measure(CONTESTANTS[name], arguments)
                known[number, name] = rate
                write_log(arguments.log, number, name, rate, arguments.steps)
                print(f"round {number + 1}, {name}: {rate:.1f}", flush=True)
            rates[name].append(known[number, name])
    return rates


def read_log(log: Path | None, steps: int) -> dict[tuple[int, str], float]:
    """The measurements of a run that was cut, by round and contestant."""
    if log is None or not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    if any(line["steps"] != steps for line in lines):
        raise SystemExit(f"{log} holds measurements of another number of steps than {steps}")
    return {(line["round"], line["contestant"]): line["rate"] for line in lines}


def write_log(log: Path | None, number: int, name: str, rate: float, steps: int) -> None:
    """Adds a measurement to the log."""
    if log is None:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = {"round": number, "contestant": name, "rate": rate, "steps": steps, "time": now}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


def sgemm() -> float:
    """What the cores can multiply at most, in GFLOP/s."""
    return float(json.loads(run(["python", "benchmarks/sgemm.py"]))["gflops"])


def measure(contestant: Contestant, arguments: argparse.Namespace) -> float:
    """Runs one contestant and returns its images/s over all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            arguments.torch_python if word == "torch-python" else word
            for word in command_of(contestant, arguments, Path(folder))
        ]
        output = run(command, contestant.environment)
        if contestant.peer is None:
            return rate_of_run(Path(folder) / "throughput", arguments.warmup)
        return rate_printed(output)


def command_of(contestant: Contestant, arguments: argparse.Namespace, runs_dir: Path) -> list[str]:
    """The command line of a contestant, of which ours writes the run `throughput`."""
    launch = [*contestant.launch]
    if launch[:1] != ["torch-python"]:
        launch.append("python")
    if contestant.peer is not None:
        counts = ["--steps", str(arguments.steps), "--warmup", str(arguments.warmup)]
        return [*launch, f"{PEERS}/{contestant.peer}", *counts, *contestant.flags]
    # Steps are numbered from 0, and a line tells the rate of the steps since the line before: this
    # one more step brings the line that ends the last ten.
    steps = arguments.warmup + arguments.steps + 1
    data = [] if arguments.data is None else ["--data", str(arguments.data.resolve())]
    return [
        *launch, "hvd_train/cifar.py", "--steps", str(steps), "--eval-every", "0",
        "--log-every", str(arguments.log_every), "--name", "throughput",
        "--runs-dir", str(runs_dir), *data,
    ]  # fmt: skip


def rate_of_run(run_folder: Path, warmup: int) -> float:
    """The examples/s of a run of ours after its warm-up steps.

    The lines stand for equally many steps each, so the harmonic mean of their rates is all examples
    over all seconds, which is what the peers print.
    """
    lines = map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())
    timed = [line for line in lines if line["split"] == "train" and line["step"] > warmup]
    return float(statistics.harmonic_mean([line["examples_per_sec"] for line in timed]))


def rate_printed(output: str) -> float:
    """The images/s that a peer printed."""
    return float(line_printed(output)["images_per_sec"])


def line_printed(output: str) -> dict[str, Any]:
    """A peer's one line of JSON, before which a launcher may have put a tag."""
    found = re.findall(r'\{"images_per_sec".*\}', output)
    if len(found) != 1:
        raise SystemExit(f"not one line of JSON but {len(found)} in:\n{output[-4000:]}")
    line: dict[str, Any] = json.loads(found[0])
    return line


def run(command: Sequence[str], changes: Mapping[str, str] | None = None) -> str:
    """Runs a command in the project's folder and returns its standard output.

    Raises:
        SystemExit: with the end of what it said, when it fails or isn't done in 15 minutes.
    """
    inherited = {name: value for name, value in environment().items() if name not in NOT_INHERITED}
    environ = {**inherited, **(changes or {})}
    program = shutil.which(command[0], path=environ["PATH"]) or command[0]
    with subprocess.Popen(
        [program, *command[1:]], cwd=ROOT, env=environ, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        except BaseException:
            end(process)
            raise
    if process.returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}\n{output[-2000:]}\n{errors[-4000:]}")
    return output


def end(process: "subprocess.Popen[str]") -> None:
    """Ends a process and what it started."""
    # A launcher ends its ranks when it is asked to end, but not when it is killed.
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def tables(rates: Rates) -> str:
    """The two tables: contestants with their ratios, then efficiency and share of the roof."""
    lines = [
        "| contestant | images/s | min..max | ours / it | min..max | target |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, measured in rates.items():
        if name == SGEMM:
            continue
        contestant, ratio, goal = CONTESTANTS[name], ["", ""], ""
        if OURS in rates and name not in (OURS, ONE_RANK):
            ratios = pairs(rates[OURS], measured)
            ratio = columns(ratios, 2)
            goal = verdict(ratios, contestant.target)
        lines.append(row([contestant.title, *columns(measured, 0), *ratio, goal]))
    others = [
        row([text, *columns(figures, 3), verdict(figures, target)])
        for text, figures, target in whole_figures(rates)
    ]
    if others:
        lines += ["", "| figure | median | min..max | target |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *others, ""])


def whole_figures(rates: Rates) -> list[tuple[str, list[float], float | None]]:
    """Efficiency and share of the roof, as far as they were measured: text, figures, target."""
    found: list[tuple[str, list[float], float | None]] = []
    if OURS in rates and ONE_RANK in rates:
        halves = [ratio / 2 for ratio in pairs(rates[OURS], rates[ONE_RANK])]
        found.append(("1 to 2 ranks: ours / twice its 1 rank", halves, EFFICIENCY_TARGET))
    if SGEMM in rates:
        roofs = [gflops * 1e9 for gflops in rates[SGEMM]]
        found.append(("sgemm, one process a core, GFLOP/s", list(rates[SGEMM]), None))
    if OURS in rates and SGEMM in rates:
        shares = pairs([images * FLOP_AN_IMAGE for images in rates[OURS]], roofs)
        text = f"share of the roof: ours x {FLOP_AN_IMAGE / 1e6:.0f} MFLOP / sgemm"
        found.append((text, shares, ROOF_TARGET))
    return found


def pairs(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratio of each round."""
    return [one / other for one, other in zip(ours, others, strict=True)]


def columns(figures: Sequence[float], digits: int) -> list[str]:
    """Median, and least to most."""
    median = statistics.median(figures)
    return [f"{median:.{digits}f}", f"{min(figures):.{digits}f}..{max(figures):.{digits}f}"]


def verdict(figures: Sequence[float], target: float | None) -> str:
    """The target, and whether the median reaches it."""
    if target is None:
        return ""
    reached = "met" if statistics.median(figures) >= target else "missed"
    return f">= {target}: {reached}"


def row(cells: Sequence[str]) -> str:
    """A line of a markdown table."""
    return f"| {' | '.join(cells)} |"


def describe(arguments: argparse.Namespace, load: float, torch_version: str | None) -> str:
    """The head of a section: when, where, what and how."""
    torch = "" if torch_version is None else f" PyTorch {torch_version}."
    return (
        f"{heading()}{torch} {arguments.rounds} rounds of {arguments.steps} steps "
        f"after {arguments.warmup}; load average {load:.2f} at the start."
    )


if __name__ == "__main__":
    main()
