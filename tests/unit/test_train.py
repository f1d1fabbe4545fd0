"""What the loop refuses to save."""

import numpy as np
import pytest

from data_tools.errors import DataError
from hvd_train.checkpoint import Checkpoint
from hvd_train.train import check_finite


def snapshot(weight: float, moment: float) -> Checkpoint:
    return Checkpoint(
        step=8, weights={"dense/kernel": np.array([1.0, weight])},
        optimizer={"adam/iteration": np.array(8), "adam/momentum": np.array([moment])},
        ema={}, state={},
    )  # fmt: skip


def test_finite_weights_may_be_saved() -> None:
    check_finite(snapshot(-1e30, 0.0))


@pytest.mark.parametrize(
    ("weight", "moment", "name"),
    [
        (np.inf, 0.0, "dense/kernel"),
        (np.nan, 0.0, "dense/kernel"),
        (0.0, -np.inf, "adam/momentum"),
    ],
)
def test_weights_that_are_not_finite_take_no_checkpoints_place(
    weight: float, moment: float, name: str
) -> None:
    with pytest.raises(DataError) as caught:
        check_finite(snapshot(weight, moment))
    assert str(caught.value) == (
        f"error: NUMERIC: step 7: {name} is not finite after the update; "
        "lower --base-lr; the last checkpoint is kept"
    )
