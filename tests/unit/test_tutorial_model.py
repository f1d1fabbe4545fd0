"""The network of the TensorFlow CIFAR-10 tutorial: its sizes, first values, loss and penalty."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hvd_train.config import CifarConfig
from hvd_train.data.augment import center
from hvd_train.models import tutorial
from hvd_train.models.layers import LocalResponseNormalization
from hvd_train.optim import l2_penalty

TRUNCATED = 0.87962566
"""The standard deviation of normal(0, 1) cut off at 2 and at -2."""


def built(size: int = 24, *, classes: int = 10, dtype: str = "float32") -> keras.Model:
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    try:
        return tutorial.build(size, 3, classes)
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return built()


def inputs(count: int = 8, *, size: int = 24, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return center(rng.integers(0, 256, (count, 32, 32, 3), np.uint8), size=size)


# Sizes and first values


@pytest.mark.parametrize(("size", "parameters"), [(24, 1_068_298), (32, 1_756_426)])
def test_the_number_of_parameters_is_the_tutorials(size: int, parameters: int) -> None:
    net = built(size)
    assert net.count_params() == parameters
    assert sum(int(np.prod(v.shape)) for v in net.trainable_variables) == parameters
    assert net.output_shape == (None, 10)


def test_the_layers_stand_in_the_tutorials_order(model: keras.Model) -> None:
    assert [layer.name for layer in model.layers][1:] == [
        "conv1", "pool1", "bias1", "relu1", "norm1", "conv2", "relu2", "norm2", "pool2",
        "flatten", "local3", "local4", "softmax_linear",
    ]  # fmt: skip


def parameters(model: keras.Model) -> dict[str, list[tf.Variable]]:
    """Kernel and bias of each layer; the first one's bias stands after the pooling."""
    found = {layer.name: [w.value for w in layer.weights] for layer in model.layers}
    return {**found, "conv1": found["conv1"] + found["bias1"]}


@pytest.mark.parametrize(
    ("layer", "shape", "stddev", "bias"),
    [
        ("conv1", (5, 5, 3, 64), 0.05, 0.0),
        ("conv2", (5, 5, 64, 64), 0.05, 0.1),
        ("local3", (2304, 384), 0.04, 0.1),
        ("local4", (384, 192), 0.04, 0.1),
        ("softmax_linear", (192, 10), 1 / 192, 0.0),
    ],
)
def test_each_kernel_is_drawn_from_a_cut_normal_and_each_bias_is_constant(
    model: keras.Model, layer: str, shape: tuple[int, ...], stddev: float, bias: float
) -> None:
    kernel, offset = (value.numpy() for value in parameters(model)[layer])
    assert kernel.shape == shape
    assert kernel.std() == pytest.approx(TRUNCATED * stddev, rel=0.06)
    assert kernel.mean() == pytest.approx(0, abs=4 * stddev / np.sqrt(kernel.size))
    assert 1.9 * stddev < np.abs(kernel).max() <= 2 * stddev * (1 + 1e-6)
    assert (offset == np.float32(bias)).all()


def test_no_two_kernels_begin_alike(model: keras.Model) -> None:
    firsts = [
        layer.kernel.numpy().ravel()[:20] for layer in model.layers if hasattr(layer, "kernel")
    ]
    scaled = np.stack([first / first.std() for first in firsts])
    assert np.abs(np.corrcoef(scaled) - np.eye(5)).max() < 0.9


def by_tensorflow(model: keras.Model, images: np.ndarray) -> tf.Tensor:
    """The tutorial's `inference`, written with TensorFlow's own operations."""
    weights = parameters(model)

    def convolved(x: tf.Tensor, name: str) -> tf.Tensor:
        kernel, bias = weights[name]
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))

    def normalised(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.local_response_normalization(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)

    x = normalised(tf.nn.max_pool2d(convolved(images, "conv1"), 3, 2, "SAME"))
    x = tf.nn.max_pool2d(normalised(convolved(x, "conv2")), 3, 2, "SAME")
    x = tf.reshape(x, [len(images), -1])
    for name in ("local3", "local4"):
        x = tf.nn.relu(x @ weights[name][0] + weights[name][1])
    return x @ weights["softmax_linear"][0] + weights["softmax_linear"][1]


@pytest.mark.parametrize("size", [24, 32])
def test_the_logits_are_those_of_tensorflows_own_operations(size: int) -> None:
    net = built(size)
    expected = by_tensorflow(net, inputs(size=size))
    np.testing.assert_allclose(net(inputs(size=size)), expected, rtol=0, atol=1e-5)
    assert np.abs(expected).max() > 0.01


# Loss and penalty


def test_the_loss_is_the_negative_log_likelihood_of_the_class() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 10))
    labels = np.array([[3], [0], [9], [3], [1]], np.int32)
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = tutorial.losses(tf.constant(logits), tf.constant(labels)).numpy()
    np.testing.assert_allclose(found, [-log[i, k] for i, (k,) in enumerate(labels)], rtol=1e-12)


def test_weight_decay_pulls_the_kernels_of_the_two_hidden_dense_layers_only(
    model: keras.Model,
) -> None:
    paths = [variable.path for variable in tutorial.decayed(model)]
    assert [path.rpartition("tutorial/")[2] for path in paths] == ["local3/kernel", "local4/kernel"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_penalty_and_its_gradient_are_those_of_l2_loss(dtype: str) -> None:
    decayed = tutorial.decayed(built(dtype=dtype))
    penalty, pulls = l2_penalty(decayed, 0.004)
    with tf.GradientTape() as tape:
        expected = tf.add_n([0.004 * tf.nn.l2_loss(variable.value) for variable in decayed])
    gradients = tape.gradient(expected, [variable.value for variable in decayed])
    assert float(penalty) == pytest.approx(float(expected), rel=1e-6)
    assert pulls.keys() == {variable.path for variable in decayed}
    for variable, gradient in zip(decayed, gradients, strict=True):
        assert pulls[variable.path].dtype == dtype
        np.testing.assert_allclose(pulls[variable.path], gradient, rtol=1e-6)


def test_without_weight_decay_there_is_no_penalty(model: keras.Model) -> None:
    assert l2_penalty(tutorial.decayed(model), 0.0) == (0.0, {})


def test_the_loss_before_the_first_step_is_the_tutorials_4_67(model: keras.Model) -> None:
    labels = np.random.default_rng(0).integers(0, 10, (128, 1)).astype(np.int32)
    losses = tutorial.losses(model(inputs(128)), labels)
    penalty, _ = l2_penalty(tutorial.decayed(model), CifarConfig().optim.weight_decay)
    assert float(tf.reduce_mean(losses) + penalty) == pytest.approx(4.67, abs=0.03)


# Local response normalisation

SHAPES = [(2, 12, 12, 64), (3, 5, 7, 9), (2, 3, 3, 4), (1, 1, 1, 1), (0, 6, 6, 16), (4, 10)]


def normalised_with_gradient(normalise: object, x: tf.Tensor) -> tuple[np.ndarray, np.ndarray]:
    weights = np.random.default_rng(1).normal(size=x.shape)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = normalise(x)  # type: ignore[operator]
        total = tf.reduce_sum(y * tf.cast(weights, x.dtype) + y**2)
    return y.numpy(), tape.gradient(total, x).numpy()


def tensorflows(x: tf.Tensor) -> tf.Tensor:
    pictures = x if len(x.shape) == 4 else x[:, None, None]
    normalised = tf.nn.local_response_normalization(pictures, 4, 1.0, 0.001 / 9, 0.75)
    return tf.reshape(normalised, x.shape)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_local_response_normalisation_is_tensorflows_forward_and_backward(
    shape: tuple[int, ...], scale: float
) -> None:
    x = tf.constant(np.random.default_rng(0).normal(0, scale, shape), tf.float32)
    found = normalised_with_gradient(LocalResponseNormalization(), x)
    expected = normalised_with_gradient(tensorflows, x)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float32
        largest = np.abs(theirs).max(initial=1.0)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * largest)


def by_definition(x: tf.Tensor) -> tf.Tensor:
    channels = int(x.shape[-1])
    sums = [
        tf.reduce_sum(x[..., max(c - 4, 0) : c + 5] ** 2, axis=-1) for c in range(channels)
    ]  # fmt: skip
    return x / (1 + 0.001 / 9 * tf.stack(sums, axis=-1)) ** 0.75


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_local_response_normalisation_is_its_definition_in_float64(shape: tuple[int, ...]) -> None:
    x = tf.constant(np.random.default_rng(0).normal(0, 30, shape), tf.float64)
    found = normalised_with_gradient(LocalResponseNormalization(dtype="float64"), x)
    expected = normalised_with_gradient(by_definition, x)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11)


def test_local_response_normalisation_takes_batches_of_any_size_in_a_graph() -> None:
    layer = LocalResponseNormalization()
    forward = tf.function(layer, input_signature=[tf.TensorSpec([None, 4, 4, 8])])
    for count in (1, 3):
        x = tf.fill([count, 4, 4, 8], 2.0)
        np.testing.assert_allclose(forward(x), tensorflows(x), atol=1e-6)


def test_local_response_normalisation_keeps_the_shape_that_dense_layers_need() -> None:
    pixels = keras.Input((4, 4, 8))
    assert LocalResponseNormalization()(pixels).shape == (None, 4, 4, 8)
