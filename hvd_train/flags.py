"""The flags of the commands around a run: what each means, its default.

They stand apart from the commands, so that `--help` needn't import TensorFlow.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

MOST_PORT = 65535
MIN_RATIO = 100.0
"""Of the model's own label to a given one that it denies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfRun:
    """What every command on a run has."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, such as runs/captcha."""
    task: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Of a run of your own task, where it is, such as photos:TASK."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Doctor:
    """Finds out why training doesn't start on these hosts, or under this launcher.

    Without either it looks at this machine. Under a launcher each rank reports.
    """

    hosts: Annotated[str | None, tyro.conf.arg(aliases=["-H"], metavar="HOST:SLOTS,...")] = None
    """Hosts and their ranks, such as host1:4,host2:4, reached by ssh without a password."""
    ssh_port: int | None = None
    """Of sshd on all hosts, if neither 22 nor in ~/.ssh/config."""
    data: Path | None = None
    """Data set folder to compare; else $HVD_TRAIN_DATA, if it is set."""
    launch: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="-- LAUNCH COMMAND")
    ] = ()
    """Start this, such as horovodrun -np 8 -H host1:4,host2:4, with the doctor as its program."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        if self.ssh_port is not None and not 1 <= self.ssh_port <= MOST_PORT:
            raise ValueError(f"--ssh-port is {self.ssh_port}; it must be 1 to {MOST_PORT}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluate(OfRun):
    """Evaluates the newest checkpoint of a run, each example once, on one or many ranks."""

    split: str | None = None
    """Split to evaluate on; if not given, the run's test split."""
    data: Path | None = None
    """Data set folder; else the run's own, $HVD_TRAIN_DATA, or ./datasets/ and the task's name."""
    ema: bool = True
    """With the moving averages of the weights; else with the weights themselves."""
    both: bool = False
    """Evaluate with moving averages, then without."""
    watch: bool = False
    """Evaluate each new checkpoint as it comes, up to that of the run's last step; waits for a run
    that hasn't started."""
    interval: float = 10.0
    """Seconds between two looks of --watch."""

    def __post_init__(self) -> None:
        if self.both and not self.ema:
            raise ValueError("--both evaluates without moving averages too; leave --no-ema out")
        if not 0 < self.interval < math.inf:
            raise ValueError(f"--interval is {self.interval}; it must be a positive number")


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(OfRun):
    """Writes a run's newest checkpoint as a model that other programs load, and a card of it."""

    format: Literal["saved_model", "keras", "onnx", "tflite"]
    """Of the file: SavedModel, .keras, ONNX or TFLite."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder to write; RUN/export/FORMAT if not given. An earlier export is replaced."""
    ema: bool = True
    """With the moving averages of the weights; else with the weights themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predict(OfRun):
    """Reads images with a trained run: the label of each, and how probable it is."""

    files: Annotated[
        tuple[Path, ...], tyro.conf.Positional,
        tyro.conf.arg(metavar="FILE|DIR [FILE|DIR ...]", help_behavior_hint="(required)"),
    ]  # fmt: skip
    """Image files, or folders of such, read with their sub-folders."""
    format: Literal["csv", "jsonl"] = "csv"
    """CSV with a header, or a JSON object a line."""
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write in place of standard output; an existing one is replaced once it is whole."""
    suspicious: Annotated[Path | None, tyro.conf.arg(metavar="LABELS")] = None
    """List the images of DIR whose given label the run confidently denies. LABELS is a CSV
    `image,label`, as conversion reads it, or `-` where each image lies in a folder of its class."""
    min_ratio: float = MIN_RATIO
    """With --suspicious: how many times as probable as the given label the run's own must be."""
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """With --suspicious: a picture of the first 200 of them, each with its given label and the
    run's below."""

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError("FILE is needed: image files, or folders of such")
        if self.suspicious is not None and len(self.files) != 1:
            raise ValueError(f"--suspicious takes one folder; {len(self.files)} paths are given")
        if self.sheet is not None and self.suspicious is None:
            raise ValueError("--sheet needs --suspicious")
        if self.min_ratio != MIN_RATIO and self.suspicious is None:
            raise ValueError("--min-ratio needs --suspicious")
        if self.sheet is not None and self.sheet.suffix.lower() != ".png":
            raise ValueError(f"--sheet is {str(self.sheet)!r}; its name must end in .png")
        if not 1 <= self.min_ratio < math.inf:
            raise ValueError(f"--min-ratio is {self.min_ratio}; it must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """Tell which hosts a job has, and how many ranks each, in every launcher's form.

    Without FILE and -H they are those of the scheduler's job: Slurm, PBS, LSF or Kubernetes' MPI
    operator. A host without a number has one slot; one that is named again, the more.
    """

    file: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FILE]")] = None
    """Hostfile of Open MPI, MPICH, Intel MPI, PBS or LSF."""
    hosts: Annotated[str | None, tyro.conf.arg(metavar="HOST:N,...", aliases=["-H"])] = None
    """Hosts and slots, as for horovodrun."""
    form: Literal["all", "horovodrun", "openmpi", "mpich"] = "all"
    """Print this form alone, for use in a script."""
    debug: bool = False
    """Show tracebacks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report(OfRun):
    """Writes RUN/report.html: figures, curves, mistakes, time and settings of a run on one page."""

    data: Path | None = None
    """Data set folder; else where the run found it. Without it the page has no mistakes."""
    split: str | None = None
    """Split whose mistakes are shown; the run's test split if not given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compare:
    """Prints a table of runs of one task, and draws their evaluations into one picture."""

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN RUN [RUN ...]", help_behavior_hint="(required)"),
    ]  # fmt: skip
    """Run folders, such as runs/captcha."""
    output: Path = Path("compare.svg")
    """Picture to write, .svg or .png; only one that this command drew is replaced."""
    task: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Of runs of your own task, where it is, such as photos:TASK."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        if len(set(self.runs)) < max(2, len(self.runs)):
            raise ValueError("name two runs or more, each once")
        if self.output.suffix not in (".svg", ".png"):
            raise ValueError(f"--output is {self.output}; its name must end in .svg or .png")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Keeps a run going on hosts that come and go: starts mpirun anew on what is there.

    A change of hosts stops the run with a checkpoint; it goes on with the same global batch, order
    of examples and schedule.
    """

    command: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="-- COMMAND")]
    """What each rank runs, such as hvd_train cifar --global-batch 512; --resume is added."""
    hosts_script: Path
    """Program that prints the hosts that are there now, a line host:slots for each, as discovery
    scripts of Horovod do."""
    min_np: int = 1
    """Fewest ranks to run; below that it waits."""
    max_np: int | None = None
    """Most ranks to run; as many as there are slots if not given."""
    wait_minutes: float = 10.0
    """How long it waits for enough hosts before it ends."""
    max_restarts: int = 10
    """Failures in a row, without a new checkpoint, after which the run is started again."""
    poll_seconds: float = 5.0
    """Seconds between two looks at the hosts; a change must be seen twice."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        if self.min_np < 1:
            raise ValueError(f"--min-np is {self.min_np}; it must be at least 1")
        if self.max_np is not None and self.max_np < self.min_np:
            raise ValueError(f"--max-np is {self.max_np}; it must be at least --min-np")
        if not self.poll_seconds > 0:
            raise ValueError(f"--poll-seconds is {self.poll_seconds}; it must be positive")
        for flag, value in (
            ("--wait-minutes", self.wait_minutes), ("--max-restarts", self.max_restarts)
        ):  # fmt: skip
            if not value >= 0:
                raise ValueError(f"{flag} is {value}; it must not be negative")
