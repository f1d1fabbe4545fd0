"""A model's variables by name, and their values as a checkpoint holds them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import CONFIG, DataError


def by_path(variables: Sequence[Any]) -> dict[str, Any]:
    """Variables by their Keras path, which tells each from all others."""
    named = {variable.path: variable for variable in variables}
    assert len(named) == len(variables), "two variables share a path"
    return named


def assign(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray], where: Path) -> None:
    """Gives variables their values, if names and shapes are the same.

    Raises:
        DataError: CONFIG when the values are those of another model.
    """
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if shapes != {name: array.shape for name, array in arrays.items()}:
        raise DataError(
            CONFIG, where, "the checkpoint's variables are not those of this model",
            fix="start a new run with --name",
        )  # fmt: skip
    for name, variable in variables.items():
        variable.assign(arrays[name])
