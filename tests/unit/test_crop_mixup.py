"""Crops with reflection, cut squares and mixed pairs, by seed, epoch and example alone."""

from types import ModuleType

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from hvd_train.data.augment import (
    Stream,
    cutout,
    mixup,
    random_crop,
    standardize,
    symmetric_beta,
    uniform,
)
from hvd_train.data.source import Batch

COUNT = 1000
SIZE = 32


def pictures(count: int, *, height: int = SIZE, width: int = SIZE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def cropped(images: np.ndarray, *, size: int = SIZE, seed: int = 0, epoch: int = 0) -> np.ndarray:
    count = len(images)
    epochs = np.full(count, epoch)
    return random_crop(
        images, np.arange(count), epochs, size=size, seed=seed, num_examples=count
    )  # fmt: skip


# Crops


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (32, 32, 24), (30, 41, 28)])
def test_a_crop_is_cut_from_the_picture_extended_by_its_reflection(
    height: int, width: int, size: int
) -> None:
    images = pictures(60, height=height, width=width)
    found = cropped(images, size=size, seed=4, epoch=2)
    assert (found.dtype, found.shape) == (np.float32, (60, size, size, 3))
    draws = uniform(60, 3, seed=4, epoch=2, stream=Stream.CROP)
    for image, out, (down, right, side) in zip(images, found, draws, strict=True):
        extended = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        top, left = int(down * (height + 9 - size)), int(right * (width + 9 - size))
        expected = extended[top : top + size, left : left + size]
        expected = expected[:, ::-1] if side < 0.5 else expected
        assert (out == standardize(expected[None], np.float32(1))).all()


def test_crops_are_taken_at_every_place_and_half_are_mirrored() -> None:
    draws = uniform(COUNT, 3, seed=0, epoch=0, stream=Stream.CROP)
    for axis in (0, 1):
        counts = np.bincount((draws[:, axis] * 9).astype(int), minlength=9)
        assert np.abs(counts / COUNT - 1 / 9).max() < 0.04
    assert (draws[:, 2] < 0.5).mean() == pytest.approx(0.5, abs=0.05)


@given(height=st.integers(1, 6), width=st.integers(1, 6))
def test_small_pictures_are_extended_by_what_they_can_reflect(height: int, width: int) -> None:
    images = pictures(5, height=height, width=width)
    assert np.isfinite(cropped(images, size=min(height, width))).all()


def test_an_example_is_cropped_alike_to_the_bit_in_whatever_batch_it_comes() -> None:
    images, ids = pictures(50), np.array([49, 0, 7, 7])
    found = random_crop(images[ids], ids, np.zeros(4, int), size=32, seed=0, num_examples=50)
    assert (found == cropped(images)[ids]).all()
    assert (cropped(images, epoch=1) != cropped(images)).any(axis=(1, 2, 3)).mean() > 0.9
    assert (images == pictures(50)).all()


def test_the_crops_are_the_golden_ones() -> None:
    # Never edit a number: runs would no longer repeat.
    draws = uniform(COUNT, 3, seed=0, epoch=0, stream=Stream.CROP)[:4]
    found = [(int(d * 9), int(r * 9), bool(side < 0.5)) for d, r, side in draws]
    assert found == [(1, 6, True), (6, 1, False), (1, 2, True), (7, 5, False)]


# Squares


@pytest.mark.parametrize("side", [1, 8, 13, 31])
def test_cutout_sets_one_square_about_a_drawn_pixel_to_0(side: int) -> None:
    inputs = np.ones((200, SIZE, SIZE, 3), np.float32)
    ids = np.arange(200)[::-1]
    cutout(inputs, ids, np.full(200, 3), side=side, seed=6, num_examples=200)
    draws = uniform(200, 2, seed=6, epoch=3, stream=Stream.CUTOUT)[ids]
    for out, (down, right) in zip(inputs, draws, strict=True):
        row, column = int(down * SIZE), int(right * SIZE)
        rows, columns = (np.arange(SIZE) - middle + side // 2 for middle in (row, column))
        inside = ((rows >= 0) & (rows < side))[:, None] & ((columns >= 0) & (columns < side))
        assert inside[row, column]
        assert (out == ~inside[..., None]).all()


# Mixing


def prepare(ids: np.ndarray, epochs: np.ndarray) -> Batch:
    """A picture that tells its example and epoch, and a class."""
    images = np.zeros((len(ids), 2, 2, 1), np.float32)
    images[:, 0, 0, 0], images[:, 1, 1, 0] = ids, epochs
    return Batch(ids, images, (ids % 10)[:, None].astype(np.int32))


def mixed(ids: np.ndarray, epochs: np.ndarray, *, alpha: float = 0.5, seed: int = 1) -> Batch:
    return mixup(prepare, ids, epochs, alpha=alpha, seed=seed, num_examples=COUNT, num_classes=10)


def test_pictures_and_classes_are_mixed_with_a_drawn_partner_by_the_same_weight() -> None:
    ids, epochs = np.arange(COUNT)[::-1], np.full(COUNT, 3)
    batch = mixed(ids, epochs)
    draws = uniform(COUNT, 3, seed=1, epoch=3, stream=Stream.MIXUP)[ids]
    partners = (draws[:, 0] * COUNT).astype(int)
    weights = symmetric_beta(draws[:, 1], draws[:, 2], alpha=0.5)
    assert (batch.images.dtype, batch.labels.dtype) == (np.float32, np.float32)
    assert (batch.ids == ids).all()
    np.testing.assert_allclose(
        batch.images[:, 0, 0, 0], weights * ids + (1 - weights) * partners, rtol=1e-5, atol=1e-3
    )
    np.testing.assert_allclose(batch.images[:, 1, 1, 0], 3, rtol=1e-6)
    expected = np.zeros((COUNT, 10))
    np.add.at(expected, (np.arange(COUNT), ids % 10), weights)
    np.add.at(expected, (np.arange(COUNT), partners % 10), 1 - weights)
    np.testing.assert_allclose(batch.labels, expected, atol=1e-6)


def test_the_loss_of_mixed_classes_is_the_mean_of_both_losses_by_weight(tf: ModuleType) -> None:
    from hvd_train.models import tutorial

    ids, epochs = np.arange(40), np.zeros(40, int)
    batch = mixed(ids, epochs)
    draws = uniform(COUNT, 3, seed=1, epoch=0, stream=Stream.MIXUP)[ids]
    partners = (draws[:, 0] * COUNT).astype(int)
    weights = symmetric_beta(draws[:, 1], draws[:, 2], alpha=0.5)
    logits = tf.constant(np.random.default_rng(0).normal(size=(40, 10)))
    own, other = (
        tutorial.losses(logits, prepare(which, epochs).labels).numpy() for which in (ids, partners)
    )
    found = tutorial.losses(logits, batch.labels).numpy()
    np.testing.assert_allclose(found, weights * own + (1 - weights) * other, atol=1e-6)


def test_an_example_is_mixed_alike_to_the_bit_in_whatever_batch_it_comes() -> None:
    whole = mixed(np.arange(COUNT), np.zeros(COUNT, int))
    ids = np.array([999, 0, 7, 7])
    found = mixed(ids, np.array([0, 0, 0, 1]))
    for part in ("images", "labels"):
        assert (getattr(found, part)[:3] == getattr(whole, part)[ids[:3]]).all()
        assert (getattr(found, part)[3] != getattr(whole, part)[7]).any()


def test_partners_are_drawn_evenly_and_apart_from_the_weights() -> None:
    draws = uniform(COUNT, 3, seed=0, epoch=0, stream=Stream.MIXUP)
    weights = symmetric_beta(draws[:, 1], draws[:, 2], alpha=1.0)
    assert abs(np.corrcoef(draws[:, 0], weights)[0, 1]) < 0.08
    assert scipy.stats.kstest(draws[:, 0], "uniform").pvalue > 0.01


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 4.0])
def test_the_weights_have_the_beta_distribution(alpha: float) -> None:
    draws = np.random.default_rng(0).random((20_000, 2))
    weights = symmetric_beta(draws[:, 0], draws[:, 1], alpha=alpha)
    # Below 0.01 SciPy's own quantiles of a very uneven distribution lie beyond float64's.
    inner = weights[(weights > 0.01) & (weights < 0.99)]
    beta = scipy.stats.beta(alpha, alpha)
    low, high = beta.cdf([0.01, 0.99])
    assert len(inner) / len(weights) == pytest.approx(high - low, abs=0.015)
    assert scipy.stats.kstest(inner, lambda w: (beta.cdf(w) - low) / (high - low)).pvalue > 0.01


@given(u=st.floats(0, 1, exclude_max=True), v=st.floats(0, 1, exclude_max=True),
       alpha=st.floats(1e-3, 1e3))  # fmt: skip
def test_a_weight_lies_in_0_to_1_whatever_is_drawn(u: float, v: float, alpha: float) -> None:
    (weight,) = symmetric_beta(np.array([u]), np.array([v]), alpha=alpha)
    assert 0 <= weight <= 1
