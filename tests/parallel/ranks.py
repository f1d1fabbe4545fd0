"""What one rank does for the tests of test_ranks.py; run under mpirun or alone.

python ranks.py SETS OUT ONE

SETS holds data sets by name, ONE is the OUT of one rank alone, which may be this one. Each rank
writes OUT/rank-N.json and OUT/rank-N.npz. The functions of hvd_train run as they are; where a test
must know what went through them, they are wrapped.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_tools import launch_env, manifest
from hvd_train import threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

import keras
import numpy as np
import tensorflow as tf

from hvd_train import config, config_files, dist, task, train
from hvd_train.data.sharding import even_split
from hvd_train.data.source import Batch, open_source
from hvd_train.evaluator import Evaluator
from hvd_train.models.layers import EPSILON, MOMENTUM, SyncBatchNormalization
from hvd_train.trainer import StepResult, Trainer
from hvd_train.weights import by_path

EXAMPLES = 10
"""Size of the global batch: 4, 3, 3 on three ranks."""
LOPSIDED = {1: [10], 2: [9, 1], 3: [2, 7, 1], 4: [1, 1, 6, 2]}
"""Another split of it, which even_split would never give."""
WEIGHT_DECAY = 0.01

Arrays = dict[str, np.ndarray]


def main(sets: Path, out: Path, one: Path) -> None:
    """Runs every part and writes what came of it."""
    world = dist.init(LAUNCH)
    report: dict[str, Any] = {"world": dataclasses.asdict(world), "collectives": talk(world)}
    arrays: Arrays = {}
    for name, flags in RUNS.items():
        report[name] = train_recorded(name, flags, sets, out / name, world)
    report["resumed"] = go_on(sets, out / "resumed", one / "linear", world)
    for model in ("linear", "ctc", "tutorial"):
        arrays |= gradients(model, sets, world)
    for dtype in ("float32", "float64"):
        arrays |= batch_norm(dtype, world)
    arrays |= constant_batch()
    np.savez(out / f"rank-{world.rank}.npz", **arrays)
    (out / f"rank-{world.rank}.json").write_text(json.dumps(report))


ON_DISK = ["--model", "linear", "--dtype", "float64", "--epochs", "1", "--memory-budget", "0"]
RUNS = {
    # 35 steps of 10 are three and a half epochs of 101 examples.
    "linear": [
        "--model", "linear", "--dtype", "float64", "--steps", "35", "--checkpoint-every", "20",
    ],
    # In float32 a sum in another order moves an activation over the kink of a ReLU now and then. At
    # this rate the loss falls by a fifth, and such a jump of the gradient stays small beside it.
    "ctc": ["--model", "ctc", "--steps", "20", "--optimizer", "momentum", "--base-lr", "0.002"],
    # Learns the training split by heart, so that many are right, though not all.
    "by_heart": [
        "--model", "linear", "--dtype", "float64", "--steps", "100", "--augment", "none",
        "--optimizer", "momentum", "--base-lr", "0.03", "--schedule", "constant",
        "--test-split", "train", "--log-all-ranks",
    ],
    # Each a whole epoch, read from disk.
    "accumulated": [
        *ON_DISK, "--optimizer", "nesterov", "--base-lr", "0.05", "--accumulate", "2",
        "--clip-norm", "2", "--schedule", "step", "--decay-at", "0.3,0.6", "--decay-factor", "0.7",
    ],
    "adamw": [
        *ON_DISK, "--optimizer", "adamw", "--base-lr", "0.05", "--weight-decay", "0.1",
        "--lr-scaling", "sqrt", "--schedule", "one-cycle", "--label-smoothing", "0.1",
    ],
    "lamb": [*ON_DISK, "--optimizer", "lamb", "--base-lr", "0.5", "--weight-decay", "0.1"],
    # Distorted, with weight decay, over the end of an epoch.
    "tutorial": ["--dtype", "float64", "--steps", "12"],
    # Partners for mixing come from the whole split, whichever rank holds the example.
    "mixed": [
        "--dtype", "float64", "--steps", "12", "--image-size", "32", "--augment", "crop",
        "--cutout", "8", "--mixup", "0.5",
    ],
}  # fmt: skip


def task_of(name: str) -> tuple[type[config.TrainConfig], task.Task]:
    """The settings and the task of a run or a model."""
    if name in ("tutorial", "mixed"):
        return config.CifarConfig, task.CIFAR
    return config.CaptchaConfig, task.CAPTCHA


def train_recorded(
    name: str, flags: list[str], sets: Path, runs: Path, world: dist.World
) -> dict[str, Any]:
    """Trains from a command line and records what went through the real functions."""
    config_type, its_task = task_of(name)
    argv = [
        *flags, "--data", str(sets / its_task.name), "--runs-dir", str(runs),
        "--global-batch", str(EXAMPLES), "--eval-every", "0",
    ]  # fmt: skip
    settings, given = config_files.parse_config(config_type, argv, prog="ranks.py")
    seen: dict[str, Any] = {"ids": [], "losses": [], "evaluated": []}

    def broadcast(real: Callable[..., None], trainer: Trainer) -> None:
        seen["before"] = hashes(trainer)
        real(trainer)
        seen["after"] = hashes(trainer)
        seen["trainer"] = trainer

    def step(
        real: Callable[..., StepResult], trainer: Trainer, batch: Batch, **rest: Any
    ) -> StepResult:
        result = real(trainer, batch, **rest)
        seen["ids"].append(batch.ids.tolist())
        seen["losses"].append(result.loss)
        return result

    def own_batches(real: Callable[..., Iterator[Batch]], evaluator: Evaluator) -> Iterator[Batch]:
        for batch in real(evaluator):
            seen["evaluated"] += batch.ids.tolist()
            yield batch

    with (
        wrapped(Trainer, "broadcast", broadcast), wrapped(Trainer, "step", step),
        wrapped(Evaluator, "_own_batches", own_batches),
    ):  # fmt: skip
        seen["evaluation"] = dataclasses.asdict(
            train.train_and_evaluate(its_task, settings, given, world)
        )
    seen["end"] = hashes(seen.pop("trainer"))
    return seen


def go_on(sets: Path, runs: Path, begun: Path, world: dist.World) -> dict[str, Any]:
    """Goes on from step 20 of a run of one rank, on any number of ranks, reading from disk."""
    if world.is_chief:
        shutil.copytree(begun, runs)
        shutil.rmtree(runs / "captcha" / "checkpoints" / "step-00000035")
    dist.broadcast_json(None)
    flags = [*RUNS["linear"], "--resume", "--memory-budget", "0"]
    return train_recorded("linear", flags, sets, runs, world)


@contextlib.contextmanager
def wrapped(owner: type, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Calls `wrapper` with the real method before its arguments, for the block."""
    real = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: wrapper(real, *args, **kwargs))
    try:
        yield
    finally:
        setattr(owner, name, real)


def hashes(trainer: Trainer) -> dict[str, str]:
    """The SHA-256 of every variable of the trainer: weights, optimizer, moving averages."""
    snapshot = trainer.snapshot(0, {})
    return {
        f"{group}/{name}": hashlib.sha256(array.tobytes()).hexdigest()
        for group in ("weights", "optimizer", "ema")
        for name, array in getattr(snapshot, group).items()
    }


def talk(world: dist.World) -> dict[str, Any]:
    """Every collective once, with a value that tells its rank."""
    mine = {"rank": world.rank, "text": "ü" * world.rank, "none": None, "list": [0.1] * world.rank}
    rank = float(world.rank)

    @tf.function
    def summed() -> list[Any]:
        tensors = [tf.fill([2, 3], rank + 1), tf.constant(rank), tf.zeros([0])]
        return dist.allreduce_sum(tensors)

    variables = [keras.Variable([rank, rank]), tf.Variable(rank + 5)]
    dist.broadcast_variables(variables)
    return {
        "gathered": dist.allgather_json(mine),
        "broadcast": dist.broadcast_json(mine),
        "summed": [value.numpy().tolist() for value in summed()],
        "sum_over_ranks": dist.sum_over_ranks(np.array([1.0, rank, 1e15 + rank])).tolist(),
        "variables": [np.asarray(variable).tolist() for variable in variables],
    }


def gradients(model: str, sets: Path, world: dist.World) -> Arrays:
    """Takes one step down the gradient at rate 1, so that what the weights lose is the gradient.

    Returns:
        For even and lopsided parts the whole gradient by variable as this rank applied it, and the
        one that this process computes alone on the whole batch with Keras's own batch norm.
    """
    argv = [
        "--model", model, "--dtype", "float64", "--optimizer", "sgd", "--global-batch",
        str(EXAMPLES), "--weight-decay", str(WEIGHT_DECAY),
    ]  # fmt: skip
    config_type, its_task = task_of(model)
    settings, _ = config_files.parse_config(config_type, argv, prog="ranks.py")
    data = sets / its_task.name
    loaded = manifest.load(data)
    source = open_source(data, loaded, "train", budget=2.0**30)
    whole = source.gather(np.arange(EXAMPLES))
    even = [len(even_split(EXAMPLES, rank=r, size=world.size)) for r in range(world.size)]
    arrays: Arrays = {}
    for split, lengths in (("even", even), ("lopsided", LOPSIDED[world.size])):
        keras.utils.set_random_seed(3)  # the same weights on every rank and any number of ranks
        task_model = its_task.build(settings, loaded)
        inputs = task_model.eval_inputs(whole.images)
        alone = one_process_gradients(task_model, inputs, whole.labels)
        trainer = Trainer(task_model, settings)
        variables = by_path(task_model.model.trainable_variables)
        before = {name: variable.numpy() for name, variable in variables.items()}
        start = sum(lengths[: world.rank])
        part = slice(start, start + lengths[world.rank])
        own = Batch(whole.ids[part], inputs[part], whole.labels[part])
        trainer.step(own, rate=1.0, decay=0.0)
        for name, variable in variables.items():
            key = f"{model}|{split}|{name}"
            arrays[f"{key}|ranks"] = before[name] - variable.numpy()
            arrays[f"{key}|alone"] = alone[name]
    return arrays


def one_process_gradients(
    task_model: task.TaskModel, inputs: np.ndarray, labels: np.ndarray
) -> Arrays:
    """The gradient of the mean loss with its penalty, without Horovod and our batch norm."""
    model = keras.models.clone_model(task_model.model, clone_function=keras_layer)
    model.set_weights(task_model.model.get_weights())
    names = by_path(task_model.model.trainable_variables)
    values = {
        name: variable.value
        for name, variable in zip(names, model.trainable_variables, strict=True)
    }
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        penalties = [tf.nn.l2_loss(values[variable.path]) for variable in task_model.decayed]
        loss = tf.reduce_mean(task_model.losses(outputs, labels))
        loss += WEIGHT_DECAY * tf.add_n(penalties)
    found = tape.gradient(loss, list(values.values()))
    return {name: gradient.numpy() for name, gradient in zip(values, found, strict=True)}


def keras_layer(layer: Any) -> Any:
    """The layer itself as Keras knows it: its own batch norm in place of ours."""
    if isinstance(layer, SyncBatchNormalization):
        return keras.layers.BatchNormalization(
            epsilon=EPSILON, momentum=MOMENTUM, name=layer.name, dtype=layer.dtype_policy
        )
    return type(layer).from_config(layer.get_config())


def batch_norm(dtype: str, world: dist.World) -> Arrays:
    """Our batch norm on lopsided parts beside Keras's on the whole batch, forward and backward."""
    rng = np.random.default_rng(0)
    # Far from 0, where the difference of two sums of squares would lose the variance.
    inputs = rng.normal(100.0, 2.0, (EXAMPLES, 5, 3)).astype(dtype)
    weights = rng.normal(size=inputs.shape).astype(dtype)
    gamma, beta = rng.normal(1.0, 0.3, (2, 3)).astype(dtype)
    start = sum(LOPSIDED[world.size][: world.rank])
    part = slice(start, start + LOPSIDED[world.size][world.rank])

    def run(layer: Any, rows: slice) -> tuple[Arrays, list[Any]]:
        layer.build((None, 5, 3))
        layer.gamma.assign(gamma)
        layer.beta.assign(beta)
        x = tf.constant(inputs[rows])
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True)
            total = tf.reduce_sum(outputs * weights[rows] + outputs**2)
        to_inputs, *to_weights = tape.gradient(
            total, [x, layer.gamma.value, layer.beta.value]
        )  # fmt: skip
        arrays = {
            "outputs": outputs.numpy(), "to_inputs": to_inputs.numpy(),
            "moving_mean": layer.moving_mean.numpy(),
            "moving_variance": layer.moving_variance.numpy(),
            "later": layer(x, training=False).numpy(),
        }  # fmt: skip
        return arrays, to_weights

    ours, to_weights = run(SyncBatchNormalization(dtype=dtype), part)
    ours["to_gamma"], ours["to_beta"] = (g.numpy() for g in dist.allreduce_sum(to_weights))
    whole = slice(0, EXAMPLES)
    theirs, to_weights = run(
        keras.layers.BatchNormalization(epsilon=EPSILON, momentum=MOMENTUM, dtype=dtype), whole
    )
    theirs["to_gamma"], theirs["to_beta"] = (g.numpy() for g in to_weights)
    for name in ("outputs", "to_inputs", "later"):
        theirs[name] = theirs[name][part]
    return {
        f"norm|{dtype}|{name}|{whose}": array
        for whose, found in (("ranks", ours), ("alone", theirs))
        for name, array in found.items()
    }


def constant_batch() -> Arrays:
    """Our batch norm on equal values, whose variance is 0, forward and backward."""
    layer, x = SyncBatchNormalization(dtype="float32"), tf.fill([2, 5, 3], 7.0)
    layer.build((None, 5, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=True)
        total = tf.reduce_sum(outputs**2 + outputs)
    return {"constant|outputs": outputs.numpy(), "constant|to_x": tape.gradient(total, x).numpy()}


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
