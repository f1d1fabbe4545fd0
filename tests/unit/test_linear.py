"""The lesson's model: one dense layer on the pixels, a softmax for each position."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from data_tools.manifest import ImageSpec, LabelSpec
from hvd_train.models import linear

IMAGE = ImageSpec(height=20, width=80, channels=3, encoding="raw")
LABEL = LabelSpec(charset="ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_length=4, max_length=4, case="keep")


def built(init_stddev: float | None = None) -> keras.Model:
    keras.config.set_floatx("float32")
    keras.utils.set_random_seed(0)
    return linear.build(IMAGE, LABEL, init_stddev=init_stddev)


def images(count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 20, 80, 3), np.uint8)


def test_the_model_is_a_single_dense_layer_with_logits_for_each_position() -> None:
    model = built()
    assert model.output_shape == (None, 4, 26)
    shapes = [tuple(variable.shape) for variable in model.variables]
    assert shapes == [(20 * 80 * 3, 4 * 26), (4 * 26,)]


def test_pixels_are_scaled_to_minus_1_to_1() -> None:
    model = built()
    kernel, bias = (variable.numpy() for variable in model.variables)
    expected = (images().reshape(3, -1) / 127.5 - 1) @ kernel + bias
    np.testing.assert_allclose(model(images()).numpy().reshape(3, -1), expected, atol=1e-4)


def test_the_lesson_draws_weights_and_biases_from_normal_and_takes_pixels_of_0_to_255() -> None:
    model = built(init_stddev=0.5)
    kernel, bias = (variable.numpy() for variable in model.variables)
    assert kernel.std() == pytest.approx(0.5, rel=0.01)
    assert kernel.mean() == pytest.approx(0, abs=0.01)
    assert 0.3 < bias.std() < 0.7
    expected = images().reshape(3, -1).astype(np.float64) @ kernel + bias
    np.testing.assert_allclose(model(images()).numpy().reshape(3, -1), expected, rtol=1e-3)


def test_weights_and_biases_are_not_drawn_alike() -> None:
    kernel, bias = (variable.numpy() for variable in built(init_stddev=1.0).variables)
    assert not np.allclose(kernel[0], bias)


def test_the_loss_is_the_negative_log_likelihood_of_the_label() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 4, 26))
    labels = np.random.default_rng(1).integers(0, 26, (5, 4)).astype(np.int32)
    log = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    expected = [-np.sum([log[i, p, labels[i, p]] for p in range(4)]) for i in range(5)]
    found = linear.losses(tf.constant(logits), tf.constant(labels)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_decoding_takes_the_most_probable_character_of_each_position() -> None:
    logits = np.zeros((2, 3, 5))
    for row, text in enumerate([(4, 0, 2), (1, 1, 3)]):
        for position, character in enumerate(text):
            logits[row, position, character] = 1
    found = linear.decode(logits)
    assert found.dtype == np.int32
    assert found.tolist() == [[4, 0, 2], [1, 1, 3]]
