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
    LossScale,
    MovingAverage,
    build_optimizer,
    describe_rate,
    ema_decay,
    learning_rate,
    scaled_lr,
    smoothed,
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


def test_sqrt_scaling_is_base_rate_times_the_root_of_batch_over_128() -> None:
    assert scaled_lr(OptimConfig(base_lr=0.1, global_batch=512, lr_scaling="sqrt")) == 0.2


def test_the_step_schedule_multiplies_at_the_given_epochs() -> None:
    config = OptimConfig(
        base_lr=1.0, global_batch=128, schedule="step", decay_at="3,6.5", decay_factor=0.2
    )
    assert rates(config, 0, 2.99, 3, 6.49, 6.5, 10) == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04])


def test_the_exponential_schedule_takes_another_factor() -> None:
    config = OptimConfig(base_lr=1.0, global_batch=128, decay_epochs=2, decay_factor=0.5)
    assert rates(config, 0, 2, 4) == pytest.approx([1, 0.5, 0.25])


@pytest.mark.parametrize(("warmup", "top"), [(0.0, 3.0), (2.0, 2.0)])
def test_one_cycle_rises_from_a_25th_and_falls_to_almost_0(warmup: float, top: float) -> None:
    config = OptimConfig(base_lr=1.0, global_batch=128, schedule="one-cycle", warmup_epochs=warmup)
    epochs = (0.0, top / 2, top, (top + 10) / 2, 10.0)
    assert rates(config, *epochs) == pytest.approx([0.04, 0.52, 1.0, 0.500002, 4e-6])


def test_a_run_shorter_than_its_warm_up_has_a_rate() -> None:
    config = OptimConfig(base_lr=1.0, global_batch=128, schedule="cosine", warmup_epochs=2.0)
    assert rates(config, 0, 1, total=1) == [0.0, 0.5]


@given(
    schedule=st.sampled_from(["constant", "exponential", "step", "cosine", "one-cycle"]),
    epoch=st.floats(0, 20), batch=st.integers(1, 4096), warmup=st.floats(0, 5),
)  # fmt: skip
def test_the_curve_over_epochs_is_the_same_for_every_batch(
    schedule: str, epoch: float, batch: int, warmup: float
) -> None:
    decay_at = "2,4" if schedule == "step" else None
    one, other = (
        OptimConfig(base_lr=0.3, global_batch=b, schedule=schedule, warmup_epochs=warmup,
                    decay_epochs=3.0, decay_at=decay_at)  # type: ignore[arg-type]
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
        (
            OptimConfig(
                global_batch=512, optimizer="adamw", lr_scaling="sqrt", schedule="step",
                decay_at="3,6.5", decay_factor=0.5, weight_decay=0.01, label_smoothing=0.1,
                clip_norm=2.0, accumulate=4,
            ),
            "adamw, learning rate 0.2 = 0.1 x sqrt(512 / 128), step schedule x 0.5 at epochs "
            "3, 6.5, decoupled weight decay 0.01, label smoothing 0.1, "
            "gradient clipped to length 2, 4 micro-batches a step",
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


def test_variables_of_integers_have_no_average_and_keep_their_own_value() -> None:
    layers = [keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)]
    net = keras.Sequential(layers)
    *weights, state = net.variables
    assert state.dtype == "int64"
    average = MovingAverage(net.variables)
    assert [v.path for v in average.averaged] == [v.path for v in weights]
    net(np.ones((1, 3)), training=True)
    drawn = state.numpy()
    average.update(tf.constant(0.5))
    with average.swapped_in():
        np.testing.assert_array_equal(state.numpy(), drawn)


def apply_twice(
    config: OptimConfig, rate: float, gradients: list[float], *, decayed: bool = True
) -> float:
    variable = keras.Variable([1.0], dtype="float64")
    optimizer = build_optimizer(config, [variable], [variable] if decayed else [])
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


def test_nesterov_looks_ahead() -> None:
    found = apply_twice(OptimConfig(optimizer="nesterov", momentum=0.5), 0.1, [2.0, 3.0])
    velocity = -0.1 * 2
    first = 1 + 0.5 * velocity - 0.1 * 2
    velocity = 0.5 * velocity - 0.1 * 3
    assert found == pytest.approx(first + 0.5 * velocity - 0.1 * 3)


def test_lamb_scales_adams_step_to_the_length_of_the_weights() -> None:
    # One weight: the step is Adam's sign times rate times the weight.
    found = apply_twice(OptimConfig(optimizer="lamb"), 0.1, [2.0, 3.0])
    assert found == pytest.approx(1 * 0.9 * 0.9, rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adam", "adamw", "lamb"])
def test_decoupled_decay_takes_rate_times_decay_of_the_decayed_weights(optimizer: str) -> None:
    plain, config = (
        OptimConfig(optimizer=optimizer, weight_decay=decay, weight_decay_kind="decoupled")  # type: ignore[arg-type]
        for decay in (0.0, 0.5)
    )
    without = apply_twice(plain, 0.1, [2.0])
    assert apply_twice(config, 0.1, [2.0], decayed=False) == without
    shrunk = 1 - 0.1 * 0.5
    expected = shrunk * without if optimizer == "lamb" else without - 0.1 * 0.5
    assert apply_twice(config, 0.1, [2.0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "kind", "decoupled"),
    [
        ("sgd", None, False), ("adam", None, False), ("adamw", None, True), ("lamb", None, True),
        ("lamb", "l2", False), ("adam", "decoupled", True),
    ],
)  # fmt: skip
def test_weight_decay_is_of_the_optimizers_own_kind_unless_given(
    optimizer: str, kind: str | None, decoupled: bool
) -> None:
    config = OptimConfig(optimizer=optimizer, weight_decay_kind=kind)  # type: ignore[arg-type]
    assert config.decays_decoupled == decoupled


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)])
def test_smoothing_is_the_cross_entropy_against_spread_labels(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=shape), rng.integers(0, 4, shape[:-1])
    log = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    target = 0.7 * np.eye(4)[labels] + 0.3 / 4
    plain = -(np.eye(4)[labels] * log).reshape(5, -1).sum(axis=1)
    found = smoothed(tf.constant(plain), tf.constant(logits), 0.3)
    np.testing.assert_allclose(found, -(target * log).reshape(5, -1).sum(axis=1))
    assert smoothed(plain, logits, 0.0) is plain


def test_the_loss_scale_halves_to_1_at_least_and_doubles_after_2000_finite_steps() -> None:
    scale = LossScale()

    @tf.function
    def update(steps: tf.Tensor, finite: tf.Tensor) -> None:
        for _ in tf.range(steps):
            scale.update(finite)

    good, bad = tf.constant(True), tf.constant(False)
    for steps, finite, expected in (
        (1, bad, 2**14), (1999, good, 2**14), (1, bad, 2**13), (1999, good, 2**13),
        (1, good, 2**14), (13, bad, 2), (3, bad, 1), (2000, good, 2),
        (23 * 2000, good, 2**24), (2000, good, 2**24), (1, bad, 2**23),
    ):  # fmt: skip
        update(tf.constant(steps), finite)
        assert float(scale.scale.numpy()) == expected


def test_the_first_step_of_a_warm_up_moves_the_weights() -> None:
    config = OptimConfig(base_lr=0.1, global_batch=128, warmup_epochs=1.0)
    first = learning_rate(config, epoch=0.0, step_epochs=0.1, total_epochs=10.0)
    assert first == pytest.approx(0.01)
