"""A run folder with checkpoints of drawn weights, as the trainer writes it, without training."""

import dataclasses
import shutil
from pathlib import Path

from small_sets import texts, write_set

from data_tools import manifest
from hvd_train import checkpoint, run
from hvd_train.checkpoint import Checkpoint
from hvd_train.config import CaptchaConfig, DataConfig, OptimConfig
from hvd_train.task import CAPTCHA
from hvd_train.trainer import Trainer

STEPS = 30
"""Of the whole run."""


def write_run(folder: Path) -> Checkpoint:
    """Writes a run of `linear` on the data set folder/set, with a checkpoint of step 10.

    Its moving averages are its weights plus 1.
    """
    data = folder / "set"
    loaded = write_set(data, train=texts(25), test=texts(7))
    config = CaptchaConfig(
        model="linear", data=DataConfig(data=data), optim=OptimConfig(global_batch=10, steps=STEPS)
    )
    path = folder / "runs" / "a"
    with run.sole_writer(path, resume=False) as held:
        run.write_settings(held, config)
        shutil.copy(data / manifest.FILE_NAME, path)
    label = dataclasses.asdict(loaded.label) if loaded.label else None
    state = {"manifest": manifest.digest(data), "label": label}
    drawn = Trainer(CAPTCHA.build(config, loaded), config).snapshot(10, state)
    saved = dataclasses.replace(drawn, ema={name: a + 1 for name, a in drawn.ema.items()})
    checkpoint.save(path, saved, keep=9)
    return saved
