"""The settings of a run: what each means and its default."""

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

REFERENCE_BATCH = 128
"""The global batch that --base-lr is given for."""
MAX_RATE = 1e37
"""Far above any rate of use; scaled by the batch it still fits into a float32."""


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is {value}; it must be a positive number")


def profiled_steps(profile: str | None) -> range:
    """Returns the steps that `--profile START:STOP` names, none without it.

    Raises:
        ValueError: when there are no such steps.
    """
    if profile is None:
        return range(0)
    start, colon, stop = profile.partition(":")
    if not (colon and start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
        raise ValueError(f"--profile is {profile!r}; it must be START:STOP, as 10:20")
    return range(int(start), int(stop))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What is read, and how."""

    data: Path | None = None
    """Data set folder; else $HVD_TRAIN_DATA, else ./datasets/ and the task's name."""
    train_split: str = "train"
    """Split to train on."""
    test_split: str = "test"
    """Split to evaluate on."""
    validation_split: str | None = None
    """Split of the evaluations during training, for --early-stop and --keep-best; the test split is
    then evaluated at the end only."""
    memory_budget: float = 2.0
    """GiB a rank: a smaller split is held decoded, a larger one is read by offset from disk."""
    shuffle: bool = True
    """Visit the examples in a new order each epoch."""
    augment: str = "none"
    """Random changes. Of captcha.py, any of these, in the order given: shift (move by up to 10 % of
    the height and 8 % of the width), rotate (by up to 5 degrees), noise; as in shift,rotate,noise.
    Of cifar.py, one: distort (crop, mirror, change the contrast, as the CIFAR-10 tutorial did),
    crop (extend by 4 pixels of reflection, crop, mirror). Tasks of your own have none."""
    input_threads: int = 1
    """Threads a rank that prepare batches."""

    def __post_init__(self) -> None:
        if not self.memory_budget >= 0:
            raise ValueError(f"--memory-budget is {self.memory_budget}; it must not be negative")
        _positive(input_threads=self.input_threads)

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The names in --augment."""
        return () if self.augment == "none" else tuple(self.augment.split(","))


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimizer, schedule and batch."""

    batch_size: int = 128
    """Examples a rank and step."""
    global_batch: int | None = None
    """Examples a step over all ranks, in place of --batch-size."""
    epochs: float = 10.0
    """Passes over the training split."""
    steps: int | None = None
    """Stop at this step, in place of --epochs."""
    accumulate: int = 1
    """Micro-batches that a step's batch is worked in, to save memory; one allreduce and one update
    a step all the same."""
    optimizer: Literal["sgd", "momentum", "nesterov", "adam", "adamw", "lamb"] = "momentum"
    """Update rule."""
    base_lr: float = 0.1
    """Learning rate at global batch 128."""
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    """How the rate grows with the global batch G: linear is base-lr x G / 128, sqrt is base-lr x
    the root of G / 128."""
    schedule: Literal["constant", "exponential", "step", "cosine", "one-cycle"] = "exponential"
    """How the rate changes: exponential: x --decay-factor every --decay-epochs; step: the same at
    each of --decay-at; cosine: to 0 along a half cosine; one-cycle: from 1/25 of the rate to all of
    it over the first 30 % of the run (or --warmup-epochs), then to almost 0, along half cosines."""
    decay_epochs: float = 350.0
    """Epochs after which the exponential schedule multiplies the rate."""
    decay_at: str | None = None
    """Epochs at which the step schedule multiplies the rate, such as 30,60,80."""
    decay_factor: float = 0.1
    """What the exponential and the step schedule multiply the rate by."""
    warmup_epochs: float = 0.0
    """Epochs over which the rate rises linearly from 0."""
    momentum: float = 0.9
    """Of the momentum and nesterov optimizers."""
    weight_decay: float = 0.0
    """How strongly the model's decayed weights are pulled to 0; see --weight-decay-kind."""
    weight_decay_kind: Literal["l2", "decoupled"] | None = None
    """l2: a penalty of --weight-decay x half the sum of squares is part of the loss; decoupled: a
    step takes rate x --weight-decay of each weight. If not given, decoupled for adamw and lamb."""
    label_smoothing: float = 0.0
    """Part of the true class's probability that is spread over all classes; for cross-entropies, so
    for every model but ctc."""
    clip_norm: float | None = None
    """Longest gradient over all weights and ranks; a longer one is scaled down to it."""
    compression: Literal["none", "fp16"] = "none"
    """How gradients travel between ranks: fp16 halves the bytes, and rounds."""
    ema_decay: float = 0.9999
    """Decay of the moving averages of the weights, min(this, (1 + t) / (10 + t)) at step t."""

    def __post_init__(self) -> None:
        _positive(
            batch_size=self.batch_size, global_batch=self.global_batch, epochs=self.epochs,
            steps=self.steps, accumulate=self.accumulate, base_lr=self.base_lr,
            decay_epochs=self.decay_epochs, decay_factor=self.decay_factor,
            clip_norm=self.clip_norm,
        )  # fmt: skip
        if self.base_lr > MAX_RATE:
            raise ValueError(f"--base-lr is {self.base_lr}; it must be at most {MAX_RATE:g}")
        for flag, value in (
            ("--warmup-epochs", self.warmup_epochs), ("--weight-decay", self.weight_decay)
        ):  # fmt: skip
            if not 0 <= value < math.inf:
                raise ValueError(f"{flag} is {value}; it must not be negative")
        for flag, value in (
            ("--momentum", self.momentum), ("--ema-decay", self.ema_decay),
            ("--label-smoothing", self.label_smoothing),
        ):  # fmt: skip
            if not 0 <= value < 1:
                raise ValueError(f"{flag} is {value}; it must be at least 0 and below 1")
        if not self.decay_points and self.schedule == "step":
            raise ValueError("--schedule step needs the epochs of --decay-at")
        if self.decay_at is not None and self.schedule != "step":
            raise ValueError("--decay-at is of --schedule step; leave it out or pass that")
        if self.optimizer == "adamw" and self.weight_decay_kind == "l2":
            raise ValueError("--weight-decay-kind l2 is not for adamw; use --optimizer adam")

    @property
    def decay_points(self) -> tuple[float, ...]:
        """The epochs of --decay-at."""
        try:
            points = tuple(map(float, self.decay_at.split(","))) if self.decay_at else ()
        except ValueError:
            points = (math.nan,)
        if any(not a < b < math.inf for a, b in itertools.pairwise((0.0, *points))):
            raise ValueError(f"--decay-at is {self.decay_at}; it must be rising epochs: 30,60,80")
        return points

    @property
    def decays_decoupled(self) -> bool:
        """Whether weight decay is apart from the loss."""
        if self.weight_decay_kind is None:
            return self.optimizer in ("adamw", "lamb")
        return self.weight_decay_kind == "decoupled"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """The run folder, what is written to it, and how the run is computed."""

    name: str | None = None
    """Name of the run folder; the task's name if not given."""
    runs_dir: Path = Path("runs")
    """Folder that holds the run folders."""
    resume: bool = False
    """Go on from the newest checkpoint; starts fresh, saying so, if there is none."""
    init_from: Path | None = None
    """Run folder whose weights to start from: the moving averages of its newest checkpoint."""
    checkpoint_every: int | None = None
    """Steps between checkpoints, besides those by time; the last step always has one."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; 0 saves none by time."""
    keep_checkpoints: int = 3
    """How many checkpoints are kept."""
    keep_best: bool = False
    """Keep the checkpoint that was best on the validation split, in the run's folder best/."""
    early_stop: int | None = None
    """Stop after so many evaluations in turn on the validation split that were no better: no more
    examples right, nor as many at a lower loss."""
    max_minutes: float | None = None
    """Minutes after which a run that isn't done saves a checkpoint and ends with exit code 143."""
    eval_every: float = 1.0
    """Epochs between evaluations; 0 evaluates only at the end."""
    log_every: int = 10
    """Steps between lines."""
    log_all_ranks: bool = False
    """Keep a log of every rank, its own numbers such as the wait for input in it, on its host, in
    runs/NAME/logs/rank-N.log."""
    summary_every: int = 100
    """Steps between TensorBoard's images, histograms and sparsity; 0 writes none."""
    profile: str | None = None
    """START:STOP traces the chief's steps from START on, up to STOP and without it, into
    runs/NAME/tensorboard for TensorBoard's profile plugin (tensorboard-plugin-profile)."""
    seed: int = 0
    """Seed of the initial weights and of the order of the examples."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Type of the weights and of the arithmetic. With the 16-bit ones weights, normalisations, loss
    and sums stay float32; float16 has a loss scale that all ranks share, and is for GPUs: a CPU
    computes it a hundred times as slowly as float32."""
    deterministic: bool = True
    """Use only operations that give the same bits each time."""
    config: Path | None = None
    """YAML file of settings by the names of these flags; flags win over it."""
    stall_seconds: float = 120.0
    """Seconds without a sign of life after which a rank is taken for frozen, and the run ends;
    evaluations and checkpoints may take ten times as long. 0 switches the watchdog off."""
    plan: bool = False
    """Print steps, rates, memory and time of the run, from a few steps of it, and end. The data set
    must be there: none is downloaded."""
    log_device_placement: bool = False
    """Let TensorFlow say on which device each operation of the chief runs."""
    debug: bool = False
    """Show tracebacks."""

    def __post_init__(self) -> None:
        _positive(
            checkpoint_every=self.checkpoint_every, keep_checkpoints=self.keep_checkpoints,
            early_stop=self.early_stop, max_minutes=self.max_minutes, log_every=self.log_every,
        )  # fmt: skip
        if self.summary_every < 0:
            raise ValueError(f"--summary-every is {self.summary_every}; it must not be negative")
        profiled_steps(self.profile)
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"--seed is {self.seed}; it must be from 0 to {2**31 - 1}")
        for flag, value in (
            ("--eval-every", self.eval_every), ("--checkpoint-minutes", self.checkpoint_minutes)
        ):  # fmt: skip
            if not 0 <= value < math.inf:
                raise ValueError(f"{flag} is {value}; it must not be negative")
        if not (self.stall_seconds == 0 or 5 <= self.stall_seconds < math.inf):
            raise ValueError(
                f"--stall-seconds is {self.stall_seconds}; it must be at least 5, or 0 for none"
            )
        if self.name is not None and (not self.name.strip(".") or "/" in self.name):
            raise ValueError(f"--name is {self.name!r}; it must be the name of one folder")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """All settings of a run. A task's config adds its model's and sets its own defaults."""

    AUGMENTATIONS: ClassVar[tuple[str, ...]] = ()
    """What --augment may name."""
    MOST_AUGMENTATIONS: ClassVar[int] = 1
    """How many of them together."""

    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        for flag, is_given in (
            ("--early-stop", self.run.early_stop), ("--keep-best", self.run.keep_best)
        ):  # fmt: skip
            if is_given and self.data.validation_split is None:
                raise ValueError(f"{flag} needs a split to judge by: --validation-split NAME")
            if is_given and not self.run.eval_every:
                raise ValueError(f"{flag} needs evaluations during training: --eval-every above 0")
        if self.data.validation_split == self.data.test_split:
            raise ValueError(
                f"--validation-split is {self.data.validation_split}, the split of the test at the "
                "end; name another, or leave it out and each epoch is evaluated on it"
            )
        if self.data.validation_split == self.data.train_split:
            raise ValueError(
                f"--validation-split is {self.data.validation_split}, which is trained on; "
                "name another"
            )
        self._check_augment()

    def _check_augment(self) -> None:
        """Raises ValueError unless --augment is none or names the task's, each once."""
        names, known, most = self.data.augmentations, self.AUGMENTATIONS, self.MOST_AUGMENTATIONS
        if set(names) <= set(known) and len(set(names)) == len(names) <= most:
            return
        if not known:
            raise ValueError(f"--augment is {self.data.augment}; this task has none: leave it out")
        choice = "one of" if most == 1 else "any of"
        raise ValueError(
            f"--augment is {self.data.augment}; it must be none or {choice} {', '.join(known)}"
            + ("" if most == 1 else ", joined by commas")
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptchaConfig(TrainConfig):
    """Trains a captcha recogniser on one or many ranks."""

    AUGMENTATIONS = ("shift", "rotate", "noise")
    MOST_AUGMENTATIONS = len(AUGMENTATIONS)

    model: Literal["ctc", "linear"] = "ctc"
    """ctc: convolutions along the width, any length; linear: one dense layer, fixed length."""
    batch_norm: Literal["sync", "local"] = "sync"
    """Normalise by the examples of all ranks, one small allreduce a layer, or each rank's."""
    init_stddev: float | None = None
    """Draw the linear model's weights from normal(0, this), as the lesson did with 1."""
    data: DataConfig = field(default_factory=lambda: DataConfig(augment="shift"))
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(
            batch_size=32, epochs=15.0, optimizer="adam", base_lr=0.006,
            schedule="cosine", warmup_epochs=1.0, ema_decay=0.99,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        _positive(init_stddev=self.init_stddev)
        if self.init_stddev is not None and self.model != "linear":
            raise ValueError("--init-stddev is of --model linear; leave it out or pass that")
        if self.batch_norm != "sync" and self.model != "ctc":
            raise ValueError("--batch-norm is of --model ctc; leave it out or pass that")
        if self.optim.label_smoothing and self.model == "ctc":
            raise ValueError("--label-smoothing is not for --model ctc; leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class CifarConfig(TrainConfig):
    """Trains the TensorFlow CIFAR-10 tutorial's network on one or many ranks."""

    AUGMENTATIONS = ("distort", "crop")

    model: Literal["tutorial"] = "tutorial"
    """tutorial: two convolutions with local response normalisation, two hidden dense layers."""
    image_size: int = 24
    """Pixels a side that the network sees: a random crop in training, the middle in evaluation."""
    cutout: int = 0
    """Set a square of this many pixels a side to 0 in each training picture; 0 is off."""
    mixup: float = 0.0
    """Train on weighted means of pairs of pictures, the weight from Beta(this, this); 0 is off."""
    data: DataConfig = field(default_factory=lambda: DataConfig(augment="distort"))
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(optimizer="sgd", weight_decay=0.004)
    )

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        _positive(image_size=self.image_size)
        if not 0 <= self.cutout < self.image_size:
            raise ValueError(
                f"--cutout is {self.cutout}; it must be at least 0 and below --image-size, "
                f"{self.image_size}"
            )
        if not 0 <= self.mixup < math.inf:
            raise ValueError(f"--mixup is {self.mixup}; it must not be negative")


# Settings that may change on --resume: they decide what is read from where, written or shown, not
# what is computed.
FREE_ON_RESUME = frozenset({
    "data", "memory_budget", "input_threads", "name", "runs_dir", "resume", "checkpoint_every",
    "checkpoint_minutes", "keep_checkpoints", "max_minutes", "eval_every", "log_every",
    "log_all_ranks", "summary_every", "profile", "stall_seconds", "config", "plan",
    "log_device_placement", "debug",
})  # fmt: skip
NOT_IN_FILES = frozenset({"profile", "config", "plan", "log_device_placement", "debug"})
OF_THIS_CALL = frozenset({"name", "runs_dir", "resume"}) | NOT_IN_FILES
# The global batch is resolved when a run's settings are saved, and says it all.
NOT_SAVED = OF_THIS_CALL | {"batch_size"}
# Settings that may differ between ranks, since hosts may hold their files in different places.
FREE_BETWEEN_RANKS = frozenset({
    "data", "runs_dir", "init_from", "config", "memory_budget", "input_threads",
})  # fmt: skip
