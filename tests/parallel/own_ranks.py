"""What one rank does for test_own_model.py: a model of its own class, with dropout, and resume.

python own_ranks.py DATA OUT, under mpirun; each rank writes OUT/rank-N.json.
"""

import json
import shutil
import sys
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

from data_tools.manifest import Manifest
from hvd_train import config_files, dist, train
from hvd_train.config import TrainConfig
from hvd_train.task import Task, TaskModel, set_dtype

STEPS, SAVED = 8, 4
FLAGS = [
    "--global-batch", "10", "--accumulate", "2", "--steps", str(STEPS), "--eval-every", "0",
    "--checkpoint-every", str(SAVED), "--log-every", "1", "--base-lr", "0.05",
]  # fmt: skip


class Net(keras.Model):
    """Neither functional nor sequential: Keras knows its layers, not what is between them."""

    def __init__(self, classes: int) -> None:
        super().__init__(name="net")
        self.scale = keras.layers.Rescaling(1 / 127.5, offset=-1.0)
        self.flat = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(16, activation="relu")
        self.drop = [keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)]
        self.head = keras.layers.Dense(classes)

    def call(self, images: Any, training: bool = False) -> Any:
        """Pixels to logits."""
        x = self.drop[0](self.flat(self.scale(images)), training=training)
        return self.head(self.drop[1](self.hidden(x), training=training))


MODELS: list[Net] = []


def build(config: TrainConfig, manifest: Manifest) -> TaskModel:
    """The model, kept to be looked at after the run."""
    assert manifest.classes is not None
    keras.utils.clear_session()  # so that the second model's variables have the names of the first
    set_dtype(config)
    model = Net(len(manifest.classes))
    image = manifest.image
    model(np.zeros((1, image.height, image.width, image.channels), np.uint8))
    MODELS.append(model)
    return TaskModel(
        model=model,
        losses=lambda logits, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels[:, 0], logits
        ),
        predict=lambda logits: np.argmax(logits, axis=1).astype(np.int32)[:, None],
    )


TASK = Task(name="own", kind="classes", shown_each_step=True, build=build)


def run(data: Path, runs: Path, name: str, world: dist.World, *flags: str) -> dict[str, Any]:
    """Trains, and tells what the model draws next, for the same pictures on every rank."""
    argv = [*FLAGS, "--data", str(data), "--runs-dir", str(runs), "--name", name, *flags]
    settings, given = config_files.parse_config(TrainConfig, argv, prog="own_ranks.py")
    train.train_and_evaluate(TASK, settings, given, world)
    images = np.full((2, 32, 32, 3), 200, np.uint8)
    return {
        "trained": MODELS[-1](images, training=True).numpy().tolist(),
        "evaluated": MODELS[-1](images, training=False).numpy().tolist(),
    }


def main(data: Path, out: Path) -> None:
    """Trains to the end, then once more from the middle."""
    world = dist.init(LAUNCH)
    report = {"whole": run(data, out, "whole", world, "--summary-every", "3")}
    if world.is_chief:
        shutil.copytree(out / "whole", out / "resumed")
        shutil.rmtree(out / "resumed" / "checkpoints" / f"step-{STEPS:08d}")
    dist.broadcast_json(None)
    report["resumed"] = run(data, out, "resumed", world, "--resume", "--summary-every", "0")
    (out / f"rank-{world.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
