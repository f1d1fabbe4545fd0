"""What a model reads in images, in any number of them at a time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from saved_runs import write_run

from hvd_train import predictor
from hvd_train.predictor import Predictor, text_of
from hvd_train.saved_run import open_run


def test_images_are_read_alike_alone_and_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    found = open_run(tmp_path / "runs" / "a")
    model = found.build()
    reads = Predictor(model)
    images = np.random.default_rng(0).integers(0, 256, (7, 20, 80, 3), np.uint8)
    whole = reads.predict(images)
    assert (whole.outputs.dtype, whole.outputs.shape) == (np.float32, (7, 4, 26))
    assert (whole.labels.dtype, whole.labels.shape) == (np.int32, (7, 4))
    np.testing.assert_array_equal(whole.labels, np.argmax(whole.outputs, axis=2))
    monkeypatch.setattr(predictor, "BATCH", 3)
    parts = reads.predict(images)
    np.testing.assert_array_equal(parts.labels, whole.labels)
    np.testing.assert_allclose(parts.outputs, whole.outputs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(parts.probabilities, whole.probabilities, rtol=1e-4)
    # The probability of a label is the product of its characters'.
    raised = np.exp(whole.outputs - whole.outputs.max(axis=2, keepdims=True))
    shares = (raised / raised.sum(axis=2, keepdims=True)).max(axis=2)
    np.testing.assert_allclose(whole.probabilities, shares.prod(axis=1), rtol=1e-3)
    others = (whole.labels + 1) % 26
    assert np.all(reads.probabilities(whole.outputs, others) < whole.probabilities)


def test_a_label_in_words_is_its_class_or_its_characters() -> None:
    classes: Any = SimpleNamespace(classes=("cat", "dog"))
    captchas: Any = SimpleNamespace(classes=None, label=SimpleNamespace(charset="ABC"))
    assert text_of(np.array([1]), classes) == "dog"
    assert text_of(np.array([2, 0, -1]), captchas) == "CA"
