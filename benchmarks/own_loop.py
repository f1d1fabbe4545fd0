"""Our own training loop on the tutorial's network, opened as the trainer opens it.

Import it before TensorFlow: the threads of this rank are set when this is loaded.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_tools import launch_env
from hvd_train import threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

from hvd_train import config_files, dist, run
from hvd_train.config import CifarConfig
from hvd_train.dist import World
from hvd_train.resume import Progress
from hvd_train.task import CIFAR
from hvd_train.train import Loop
from hvd_train.trainer import Trainer


def open_loop(data: str, *, prog: str) -> tuple[World, CifarConfig, Trainer, Loop]:
    """Starts the ranks and opens a data set; a collective."""
    world = dist.init(LAUNCH)
    settings, _ = config_files.parse_config(CifarConfig, ["--data", data], prog=prog)
    settings = config_files.resolve_batch(settings, world.size)
    opened = run.open_data(CIFAR, settings, world)
    trainer = Trainer(CIFAR.build(settings, opened.manifest), settings)
    trainer.broadcast()
    return world, settings, trainer, Loop(CIFAR, settings, trainer, opened, world, Progress())
