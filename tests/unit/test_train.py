import numpy as np
import pytest

from data_tools.errors import DataError
from hvd_train.checkpoint import Checkpoint
from hvd_train.train import check_finite


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_weights_that_are_no_numbers_never_become_a_checkpoint(value: float) -> None:
    good, broken = np.zeros(3, np.float32), np.array([0, value, 0], np.float32)
    check_finite(Checkpoint(7, {"w": good}, {"momentum": good}, {"w": good}, {}))
    for weights, optimizer in (({"w": broken}, {"m": good}), ({"w": good}, {"m": broken})):
        with pytest.raises(DataError) as caught:
            check_finite(Checkpoint(7, weights, optimizer, {"w": good}, {}))
        name = "w" if weights["w"] is broken else "m"
        assert str(caught.value) == (
            f"error: NUMERIC: step 6: {name} is not finite after the update; "
            "lower --base-lr; the last checkpoint is kept"
        )
