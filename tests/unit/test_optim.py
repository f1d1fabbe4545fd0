"""The rate counts examples, the update rules are the textbook's, the averages the tutorial's."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hvd_train.config import OptimConfig
from hvd_train.optim import (
    MovingAverage,
    build_optimizer,
    describe_rate,
    ema_decay,
    learning_rate,
    scaled_lr,
)


def rates(config: OptimConfig, *epochs: float, total: float = 10.0) -> list[float]:
    return [
        learning_rate(config, epoch=epoch, step_epochs=0.0, total_epochs=total) for epoch in epochs
    ]


@pytest.mark.parametrize(("batch", "peak"), [(128, 0.1), (256, 0.2), (32, 0.025), (100, 0.078125)])
def test_linear_scaling_is_base_rate_times_batch_over_128(batch: int, peak: float) -> None:
    assert scaled_lr(OptimConfig(base_lr=0.1, global_batch=batch)) == pytest.approx(peak)


def test_without_scaling_the_rate_is_the_base_rate_at_any_batch() -> None:
    assert scaled_lr(OptimConfig(base_lr=0.1, global_batch=999, lr_scaling="none")) == 0.1


def test_the_warm_up_rises_linearly_from_0_to_the_scaled_rate() -> None:
    config = OptimConfig(base_lr=0.4, global_batch=64, warmup_epochs=2.0, schedule="constant")
    assert rates(config, 0, 0.5, 1, 2, 9) == pytest.approx([0, 0.05, 0.1, 0.2, 0.2])


def test_the_exponential_schedule_is_a_tenth_every_decay_epochs_in_steps() -> None:
    config = OptimConfig(base_lr=1.0, global_batch=128, schedule="exponential", decay_epochs=350)
    epochs = (0, 349.99, 350, 699.99, 700)
    assert rates(config, *epochs) == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_the_cosine_schedule_falls_to_0_from_the_end_of_the_warm_up_to_the_last_epoch() -> None:
    config = OptimConfig(base_lr=1.0, global_batch=128, schedule="cosine", warmup_epochs=2.0)
    assert rates(config, 2, 4, 6, 8, 10, total=10) == pytest.approx(
        [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0], abs=1e-12
    )


def test_a_run_shorter_than_its_warm_up_has_a_rate() -> None:
    config = OptimConfig(base_lr=1.0, global_batch=128, schedule="cosine", warmup_epochs=2.0)
    assert rates(config, 0, 1, total=1) == [0.0, 0.5]


@given(
    schedule=st.sampled_from(["constant", "exponential", "cosine"]),
    epoch=st.floats(0, 20), batch=st.integers(1, 4096), warmup=st.floats(0, 5),
)  # fmt: skip
def test_the_curve_over_epochs_is_the_same_for_every_batch(
    schedule: str, epoch: float, batch: int, warmup: float
) -> None:
    one, other = (
        OptimConfig(base_lr=0.3, global_batch=b, schedule=schedule, warmup_epochs=warmup,
                    decay_epochs=3.0)  # type: ignore[arg-type]
        for b in (128, batch)
    )  # fmt: skip
    (rate,), (scaled,) = rates(one, epoch, total=20.0), rates(other, epoch, total=20.0)
    assert 0 <= rate <= 0.3
    assert scaled == pytest.approx(rate * batch / 128, abs=1e-12)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            OptimConfig(global_batch=256),
            "momentum, learning rate 0.2 = 0.1 x 256 / 128, "
            "exponential schedule x 0.1 every 350 epochs",
        ),
        (
            OptimConfig(global_batch=64, optimizer="adam", base_lr=0.006, schedule="cosine",
                        warmup_epochs=1.0),
            "adam, learning rate 0.003 = 0.006 x 64 / 128 after 1 epochs of warm-up, "
            "cosine schedule",
        ),
        (
            OptimConfig(global_batch=64, optimizer="sgd", schedule="constant", lr_scaling="none"),
            "sgd, learning rate 0.1, constant schedule",
        ),
    ],
)  # fmt: skip
def test_the_rate_is_told_in_words(config: OptimConfig, words: str) -> None:
    assert describe_rate(config) == words


def test_the_decay_of_the_averages_is_the_tutorials_ramp() -> None:
    assert [ema_decay(0.9999, step) for step in (0, 1, 10, 90)] == pytest.approx(
        [1 / 10, 2 / 11, 11 / 20, 91 / 100]
    )
    assert ema_decay(0.9999, 10**6) == 0.9999
    assert ema_decay(0.0, 5) == 0.0


def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()]
    )


def test_the_averages_follow_the_recursion_for_every_variable_of_the_model() -> None:
    net = model()
    average = MovingAverage(net.variables)
    assert len(average.variables) == 6  # the moving statistics too
    expected = [variable.numpy().astype(np.float64) for variable in net.variables]
    rng = np.random.default_rng(0)
    for step in range(20):
        for variable in net.variables:
            variable.assign(rng.normal(size=variable.shape))
        decay = ema_decay(0.9, step)
        average.update(tf.constant(decay, tf.float32))
        expected = [
            decay * old + (1 - decay) * variable.numpy()
            for old, variable in zip(expected, net.variables, strict=True)
        ]
    for found, wanted in zip(average.variables, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)


def test_the_averages_stand_in_for_the_weights_only_within_the_block() -> None:
    net = model()
    average = MovingAverage(net.variables)
    own = [variable.numpy() for variable in net.variables]
    for variable in average.variables:
        variable.assign(variable + 1)
    with pytest.raises(ZeroDivisionError), average.swapped_in():
        for variable, value in zip(net.variables, own, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value + 1)
        raise ZeroDivisionError
    for variable, value in zip(net.variables, own, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def apply_twice(config: OptimConfig, rate: float, gradients: list[float]) -> float:
    variable = keras.Variable([1.0], dtype="float64")
    optimizer = build_optimizer(config, [variable], [variable])
    for gradient in gradients:
        optimizer.learning_rate.assign(rate)
        optimizer.apply([tf.constant([gradient], tf.float64)], [variable])
    return float(variable.numpy()[0])


def test_gradient_descent_takes_the_gradient_times_the_rate() -> None:
    assert apply_twice(OptimConfig(optimizer="sgd"), 0.1, [2.0, 3.0]) == pytest.approx(0.5)


def test_momentum_adds_the_earlier_step() -> None:
    found = apply_twice(OptimConfig(optimizer="momentum", momentum=0.5), 0.1, [2.0, 3.0])
    assert found == pytest.approx(1 - 0.2 - (0.5 * 0.2 + 0.3))


def test_adam_takes_the_bias_corrected_step() -> None:
    first = second = 0.0
    expected = 1.0
    for t, gradient in enumerate([2.0, 3.0], start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        step = (first / (1 - 0.9**t)) / (math.sqrt(second / (1 - 0.999**t)) + 1e-7)
        expected -= 0.1 * step
    found = apply_twice(OptimConfig(optimizer="adam"), 0.1, [2.0, 3.0])
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_first_step_of_a_warm_up_moves_the_weights() -> None:
    config = OptimConfig(base_lr=0.1, global_batch=128, warmup_epochs=1.0)
    first = learning_rate(config, epoch=0.0, step_epochs=0.1, total_epochs=10.0)
    assert first == pytest.approx(0.01)
