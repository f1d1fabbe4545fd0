"""What the trainer refuses, and how it tells that numbers are finite."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from data_tools.errors import DataError
from hvd_train.config import OptimConfig, TrainConfig
from hvd_train.models.layers import seed_of_rank
from hvd_train.task import TaskModel
from hvd_train.trainer import Trainer, are_finite


def test_a_model_that_was_never_called_is_config() -> None:
    model = keras.Sequential([keras.layers.Dense(2)], name="net")
    task_model = TaskModel(model=model, losses=lambda *_: None, predict=lambda outputs: outputs)
    with pytest.raises(DataError) as caught:
        Trainer(task_model, TrainConfig(optim=OptimConfig(global_batch=2)))
    assert str(caught.value) == (
        "error: CONFIG: net: the model has no weights to train; "
        "if it is of a class of your own, let build call it once, on zeros"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_found_in_any_tensor(bad: float) -> None:
    good, other = tf.zeros([2, 3]), tf.constant([1.0, 3e38])
    assert bool(are_finite([good, other]))
    assert not bool(are_finite([good, other, tf.constant(bad)]))
    assert not bool(are_finite([tf.constant([0.0, bad]), good]))


def test_the_chief_keeps_its_seed_and_each_rank_has_another() -> None:
    for seed in (0, 7, -1):
        seeds = [seed_of_rank(seed, rank) for rank in range(8)]
        assert seeds[0] == seed
        assert len(set(seeds)) == 8
