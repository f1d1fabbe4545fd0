"""Runs commands in the process of the tests; TensorFlow is imported by those that need it."""

import contextlib
import io
import os
from collections.abc import Callable
from types import ModuleType

import pytest
from small_captchas import Ran


@pytest.fixture(scope="session")
def tf() -> ModuleType:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    return tf


@pytest.fixture(scope="session")
def tfds(tf: ModuleType) -> ModuleType:
    import tensorflow_datasets as tfds

    return tfds


@pytest.fixture(scope="session")
def data_tools() -> Callable[..., Ran]:
    """`data_tools(*args)` runs the command in this process, which saves the start of another."""

    from data_tools import cli

    def run(*args: object) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                rc = cli.main([str(arg) for arg in args])
            except SystemExit as stop:  # --help
                rc = int(stop.code or 0)
        return Ran(rc=rc, stdout=out.getvalue(), stderr=err.getvalue())

    return run
