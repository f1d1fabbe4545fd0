"""CTC: the loss and the decoder against all paths written out, the model's shapes, its limits."""

import itertools
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.manifest import ImageSpec, LabelSpec
from hvd_train.models import ctc


def log_softmax(logits: np.ndarray) -> np.ndarray:
    values = logits.astype(np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=-1, keepdims=True))


def written(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """What a path writes: repeats merged, then blanks taken out."""
    return tuple(symbol for symbol, _ in itertools.groupby(path) if symbol != blank)


def paths(logits: np.ndarray) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every path through [columns, symbols] and its log-probability."""
    columns, symbols = logits.shape
    log = log_softmax(logits)
    for path in itertools.product(range(symbols), repeat=columns):
        yield path, float(sum(log[column, symbol] for column, symbol in enumerate(path)))


def best_label(logits: np.ndarray, lengths: range) -> tuple[int, ...]:
    blank = logits.shape[1] - 1
    allowed = (
        (score, written(path, blank))
        for path, score in paths(logits)
        if len(written(path, blank)) in lengths
    )
    return max(allowed)[1]


def unfilled(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in row if value >= 0)


@settings(deadline=None, max_examples=60)
@given(
    columns=st.integers(1, 6), symbols=st.integers(2, 4), seed=st.integers(0, 10**6),
    bounds=st.tuples(st.integers(0, 3), st.integers(0, 3)), spread=st.sampled_from([0.3, 3.0]),
)  # fmt: skip
def test_decoding_finds_the_best_path_of_an_allowed_length(
    columns: int, symbols: int, seed: int, bounds: tuple[int, int], spread: float
) -> None:
    shortest = min(*bounds, columns)
    longest = min(max(*bounds), columns)
    if symbols == 2:  # one character: a blank must part its repeats
        shortest, longest = (min(n, (columns + 1) // 2) for n in (shortest, longest))
    logits = np.random.default_rng(seed).normal(0, spread, (3, columns, symbols))
    found = ctc.decode(logits, min_length=shortest, max_length=longest)
    assert (found.dtype, found.shape) == (np.int32, (3, longest))
    expected = [best_label(row, range(shortest, longest + 1)) for row in logits]
    assert [unfilled(row) for row in found] == expected


@pytest.mark.parametrize("levels", [2, 50, 10**6])
def test_the_best_path_of_all_gives_the_label_that_the_search_does(levels: int) -> None:
    rng = np.random.default_rng(levels)
    logits = rng.integers(0, levels, (2000, 8, 4)).astype(np.float32)  # of 2 levels most tie
    for shortest, longest in ((0, 4), (2, 2), (1, 3)):
        searched = ctc._best_allowed(logits, shortest, longest)
        found = ctc.decode(logits, min_length=shortest, max_length=longest)
        np.testing.assert_array_equal(found, searched)
    assert ctc._best_of_all(logits, 0, 4)[1].any() == (levels > 2)


def test_a_label_shorter_than_the_longest_is_filled_up_at_its_end() -> None:
    logits = np.full((1, 5, 3), -9.0)
    logits[0, :, 2] = 0
    logits[0, 1, 0] = 9
    found = ctc.decode(logits, min_length=1, max_length=3)
    assert found.tolist() == [[0, -1, -1]]


def test_a_doubled_letter_needs_a_blank_between() -> None:
    logits = np.full((2, 4, 3), -9.0)
    for row, path in enumerate([(0, 0, 2, 0), (0, 0, 0, 0)]):
        for column, symbol in enumerate(path):
            logits[row, column, symbol] = 9
    found = ctc.decode(logits, min_length=1, max_length=2)
    assert found.tolist() == [[0, 0], [0, -1]]


def test_the_probability_of_the_paths_not_the_size_of_the_logits_decides() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 6, 5))
    shifted = logits + np.arange(24).reshape(4, 6, 1) * 1000.0
    arguments = {"min_length": 2, "max_length": 4}
    expected = ctc.decode(logits, **arguments).tolist()
    assert ctc.decode(shifted, **arguments).tolist() == expected


def test_an_example_is_decoded_alike_alone_and_in_a_batch() -> None:
    logits = np.random.default_rng(1).normal(size=(9, 7, 4))
    together = ctc.decode(logits, min_length=1, max_length=3)
    alone = [ctc.decode(row[None], min_length=1, max_length=3)[0] for row in logits]
    assert together.tolist() == np.array(alone).tolist()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), label=st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_the_loss_is_minus_the_log_of_the_sum_over_all_paths(seed: int, label: list[int]) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, (2, 5, 4))
    labels = np.full((2, 3), -1, np.int32)
    labels[:, : len(label)] = label
    found = ctc.losses(tf.constant(logits), tf.constant(labels)).numpy()
    expected = [
        -np.logaddexp.reduce([s for path, s in paths(row) if written(path, 3) == tuple(label)])
        for row in logits
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_loss_of_labels_of_several_lengths_is_that_of_each_alone() -> None:
    logits = tf.constant(np.random.default_rng(0).normal(size=(3, 9, 5)))
    labels = np.array([[0, 1, 2, 3], [4, -1, -1, -1], [2, 2, -1, -1]], np.int32) % 5
    labels = np.where(labels == 4, -1, labels)
    labels[1] = [3, -1, -1, -1]
    together = ctc.losses(logits, tf.constant(labels)).numpy()
    alone = [
        ctc.losses(logits[i : i + 1], tf.constant(labels[i : i + 1])).numpy()[0] for i in range(3)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def built(height: int = 20, width: int = 80, *, length: int = 4) -> keras.Model:
    image = ImageSpec(height=height, width=width, channels=3, encoding="raw")
    label = LabelSpec(charset=UPPER, min_length=1, max_length=length, case="keep")
    return ctc.build(image, label, batch_norm="sync")


def test_the_model_gives_logits_for_each_column_the_blank_last() -> None:
    keras.config.set_floatx("float32")
    assert built().output_shape == (None, 20, 27)


@pytest.mark.parametrize(
    ("height", "width", "length", "columns"),
    [
        (20, 80, 4, 20),
        (20, 80, 10, 40),  # halved once: a quarter would leave 2 columns a character
        (20, 80, 20, 80),  # not halved
        (60, 200, 5, 50),
        (1, 12, 1, 3),
        (33, 77, 4, 20),  # odd sizes are rounded up
    ],
)
def test_the_width_is_halved_only_while_three_columns_a_character_remain(
    height: int, width: int, length: int, columns: int
) -> None:
    assert built(height, width, length=length).output_shape[1] == columns


def test_the_default_model_has_the_number_of_parameters_of_the_prototype() -> None:
    assert abs(built().count_params() - 140_795) < 2_000


@pytest.mark.parametrize("value", [0, 128, 255])
def test_a_picture_of_one_color_gives_finite_numbers(value: int) -> None:
    images = tf.constant(np.full((2, 20, 80, 3), value, np.uint8))
    logits = built()(images, training=False)
    assert np.isfinite(logits.numpy()).all()
    labels = tf.constant(np.array([[0, 0, 0, 0], [1, -1, -1, -1]], np.int32))
    assert np.isfinite(ctc.losses(logits, labels).numpy()).all()
