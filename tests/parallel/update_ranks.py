"""What one of two ranks does for test_updates.py: single updates where the ranks differ.

python update_ranks.py OUT, under mpirun; each rank writes OUT/rank-N.json.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_tools import launch_env
from hvd_train import threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

import keras
import numpy as np
import tensorflow as tf

from hvd_train import config_files, dist
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import CaptchaConfig
from hvd_train.data.source import Batch
from hvd_train.models.layers import batch_normalization
from hvd_train.task import TaskModel
from hvd_train.trainer import StepResult, Trainer

SHARES = (7, 3)
"""Examples of each rank."""
FEATURES = 4
INPUTS = np.random.default_rng(0).normal(3.0, 2.0, (sum(SHARES), FEATURES)).astype(np.float32)


class Case:
    """A small model with batch norm, whose loss and gradient can be spoiled on one rank."""

    def __init__(self, world: dist.World, *flags: str) -> None:
        argv = ["--global-batch", str(sum(SHARES)), "--optimizer", "momentum", *flags]
        settings, _ = config_files.parse_config(CaptchaConfig, argv, prog="update_ranks.py")
        mixed = settings.run.dtype == "float16"
        keras.config.set_dtype_policy("mixed_float16" if mixed else "float32")
        keras.utils.set_random_seed(0)
        inputs = keras.Input((FEATURES,))
        x = keras.layers.Dense(3, name="dense")(inputs)
        x = batch_normalization(settings.batch_norm, "norm")(x)
        outputs = keras.layers.Dense(1, name="head", dtype="float32")(x)
        model = keras.Model(inputs, outputs)
        self.loss_factor, self.gradient_factor = tf.Variable(1.0), tf.Variable(1.0)
        same = lambda images, *_: images  # noqa: E731
        self.trainer = Trainer(
            TaskModel(
                model=model, train_inputs=same, eval_inputs=same, losses=self._losses, decayed=[],
                predict=lambda outputs: outputs,
            ),
            settings,
        )  # fmt: skip
        start = sum(SHARES[: world.rank])
        own = slice(start, start + SHARES[world.rank])
        self._batch = Batch(
            np.arange(start, own.stop), INPUTS[own], np.zeros((own.stop - start, 1))
        )

    def _losses(self, outputs: Any, labels: Any) -> Any:
        loss_factor, gradient_factor = (
            tf.identity(self.loss_factor),
            tf.identity(self.gradient_factor),
        )

        @tf.custom_gradient
        def spoil(losses: Any) -> tuple[Any, Callable[[Any], Any]]:
            return losses * loss_factor, lambda upstream: upstream * gradient_factor

        return spoil(tf.reduce_sum((outputs - 1) ** 2, axis=1))

    def step(self) -> StepResult:
        """Takes a step on this rank's examples."""
        return self.trainer.step(self._batch, rate=0.01, decay=0.5, votes=(1.0,))

    def own_loss(self) -> float:
        """The summed loss of this rank's examples; a collective."""
        outputs = self.trainer.task_model.model(self._batch.images, training=True)
        return float(tf.reduce_sum(self._losses(outputs, None)))

    def state(self) -> dict[str, Any]:
        """All that an update changes, by group and name."""
        snapshot = self.trainer.snapshot(0, {})
        groups = {"weights": snapshot.weights, "optimizer": snapshot.optimizer, "ema": snapshot.ema}
        return {f"{g}/{n}": a.tolist() for g, arrays in groups.items() for n, a in arrays.items()}


def told(result: StepResult) -> dict[str, Any]:
    """What a step told, for JSON."""
    fault = "" if result.is_finite or result.skipped else str(result.fault(5))
    return {
        "loss": result.loss, "norm": result.gradient_norm, "skipped": result.skipped,
        "scale": result.loss_scale, "fault": fault, "votes": result.votes.tolist(),
    }  # fmt: skip


def overflow_in_float16(world: dist.World) -> dict[str, Any]:
    """A gradient that is infinite on rank 1 alone, between good steps, and a checkpoint after."""
    case = Case(world, "--dtype", "float16")
    found: dict[str, Any] = {"first": told(case.step()), "before": case.state()}
    if world.rank == 1:
        case.gradient_factor.assign(np.inf)
    found |= {"spoiled": told(case.step()), "after": case.state()}
    case.gradient_factor.assign(1.0)
    snapshot = case.trainer.snapshot(3, {})
    found |= {"next": told(case.step()), "end": case.state()}
    other = Case(world, "--dtype", "float16")
    other.trainer.load(snapshot, Path("checkpoint"))
    found |= {"resumed": told(other.step()), "resumed_end": other.state()}
    return found | {"at_scale_1": told(at_scale_1(case, snapshot, world)), "kept": case.state()}


def at_scale_1(case: Case, snapshot: Checkpoint, world: dist.World) -> StepResult:
    """Spoils rank 1's gradient where the loss scale can't get smaller."""
    snapshot.optimizer["loss_scale"] = np.array(1.0, np.float32)
    case.trainer.load(snapshot, Path("checkpoint"))
    if world.rank == 1:
        case.gradient_factor.assign(np.inf)
    return case.step()


def not_finite(world: dist.World) -> dict[str, Any]:
    """Steps in float32 whose loss or gradient isn't finite on one rank, or only in the sum."""
    found = {}
    for name, factor in (("loss", "loss_factor"), ("gradient", "gradient_factor")):
        case = Case(world, "--batch-norm", "local")  # sync gives all ranks what one has
        if world.rank == 1:
            getattr(case, factor).assign(np.nan)
        found[name] = told(case.step())
    case = Case(world)
    case.loss_factor.assign(3e38 / case.own_loss())  # fits into float32; that of both ranks doesn't
    found["sum"] = told(case.step())
    return found


def compressed(world: dist.World) -> dict[str, Any]:
    """The same step with gradients of 32 and of 16 bits on their way."""
    found = {}
    for kind in ("none", "fp16"):
        case = Case(world, "--compression", kind)
        found[kind] = {**told(case.step()), "state": case.state()}
    return found


def local_statistics(world: dist.World) -> dict[str, Any]:
    """Two steps with batch norm over each rank's own examples."""
    case = Case(world, "--batch-norm", "local")
    dense = case.trainer.task_model.model.get_layer("dense")
    inputs = INPUTS @ dense.kernel.numpy() + dense.bias.numpy()
    case.step()
    found = {"inputs": inputs.tolist(), "once": case.state()}
    case.step()
    return found | {"twice": case.state()}


def main(out: Path) -> None:
    """Runs every part and writes what came of it."""
    world = dist.init(LAUNCH)
    report = {
        "float16": overflow_in_float16(world),
        "not_finite": not_finite(world),
        "compressed": compressed(world),
        "local": local_statistics(world),
    }
    (out / f"rank-{world.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
