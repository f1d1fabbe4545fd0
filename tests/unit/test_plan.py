"""What `--plan` tells follows from the settings and the model."""

import numpy as np
import pytest

from data_tools.manifest import ImageSpec, LabelSpec
from hvd_train.config import OptimConfig
from hvd_train.data.source import Batch, MemorySource
from hvd_train.models import linear
from hvd_train.plan import activation_bytes, held_bytes, rate_curve


def test_the_curve_has_the_first_and_the_last_step_and_even_ones_between() -> None:
    config = OptimConfig(schedule="exponential", decay_epochs=1.0, global_batch=128)
    assert rate_curve(config, 0.1, 21) == [
        "    0.00         0.1 " + "#" * 40,
        "    0.20         0.1 " + "#" * 40,
        "    0.40         0.1 " + "#" * 40,
        "    0.60         0.1 " + "#" * 40,
        "    0.80         0.1 " + "#" * 40,
        "    1.00        0.01 ####",
        "    1.20        0.01 ####",
        "    1.40        0.01 ####",
        "    1.60        0.01 ####",
        "    1.80        0.01 ####",
        "    2.00       0.001",
    ]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_short_run_has_each_step_once(steps: int) -> None:
    assert len(rate_curve(OptimConfig(global_batch=8), 0.5, steps)) == steps


def test_the_memory_of_activations_is_that_of_all_outputs_of_layers() -> None:
    image = ImageSpec(height=4, width=8, channels=3, encoding="raw")
    label = LabelSpec(charset="ABC", min_length=2, max_length=2, case="keep")
    model = linear.build(image, label, init_stddev=None)
    # Input as bytes that Keras counts as floats, scaled and flat pixels, logits twice.
    assert activation_bytes(model) == 4 * (3 * 4 * 8 * 3 + 2 * 6)


def test_a_split_in_memory_takes_its_pixels_and_labels() -> None:
    images, labels = np.zeros((7, 4, 5, 3), np.uint8), np.zeros((7, 2), np.int32)
    assert held_bytes(MemorySource(Batch(np.arange(7), images, labels))) == 7 * (60 + 8)
