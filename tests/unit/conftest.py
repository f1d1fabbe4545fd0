"""TensorFlow is imported by the tests that compare with it, and by no other."""

import os
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def tf() -> ModuleType:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    return tf


@pytest.fixture(scope="session")
def tfds(tf: ModuleType) -> ModuleType:
    import tensorflow_datasets as tfds

    return tfds
