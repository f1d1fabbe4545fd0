"""Which steps can be traced."""

import pytest

from data_tools.errors import DataError
from hvd_train.config import profiled_steps
from hvd_train.profiler import check_steps


@pytest.mark.parametrize("text", [None, "0:1", "10:12", "19:20"])
def test_steps_that_are_done_can_be_traced(text: str | None) -> None:
    check_steps(profiled_steps(text), range(20))


@pytest.mark.parametrize(("text", "done"), [("9:12", range(10, 20)), ("18:21", range(10, 20))])
def test_steps_that_are_not_done_are_config(text: str, done: range) -> None:
    with pytest.raises(DataError) as caught:
        check_steps(profiled_steps(text), done)
    assert str(caught.value) == (
        f"error: CONFIG: --profile: {text}, the steps done now are 10:20; "
        "choose a range within them"
    )
