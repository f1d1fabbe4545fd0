"""Captchas are turned and get noise by numbers that depend on seed, epoch and example alone."""

import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given
from hypothesis import strategies as st

from hvd_train.data.augment import NOISE, ROTATION, Stream, noise, noise_field, rotate, uniform

COUNT = 400
HEIGHT, WIDTH = 20, 80
CHANGES = (rotate, noise)


def pictures(count: int, *, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def turned(image: np.ndarray, degrees: float) -> np.ndarray:
    """The picture turned about its middle, by SciPy's linear interpolation."""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    matrix = np.array([[cos, -sin], [sin, cos]])
    middle = (np.array(image.shape[:2]) - 1) / 2
    channels = [
        scipy.ndimage.affine_transform(
            image[..., channel].astype(float), matrix, offset=middle - matrix @ middle,
            order=1, mode="nearest",
        )
        for channel in range(image.shape[2])
    ]  # fmt: skip
    return np.stack(channels, axis=2)


@pytest.mark.parametrize(("height", "width"), [(HEIGHT, WIDTH), (33, 17), (2, 5)])
def test_rotate_turns_each_picture_by_its_own_angle(height: int, width: int) -> None:
    images = pictures(30, height=height, width=width)
    ids = np.arange(30)[::-1]
    found = rotate(images, ids, np.full(30, 2), seed=5, num_examples=COUNT)
    draws = uniform(COUNT, 1, seed=5, epoch=2, stream=Stream.ROTATION)[ids, 0]
    assert (found.dtype, found.shape) == (np.uint8, images.shape)
    for image, out, number in zip(images, found, draws, strict=True):
        # Shares of a pixel in steps of 1 / 256, cut, along two axes, and the result rounded.
        np.testing.assert_allclose(out, turned(image, ROTATION * (2 * number - 1)), atol=3)


@given(height=st.integers(1, 9), width=st.integers(1, 9), value=st.integers(0, 255))
def test_a_picture_of_one_color_is_turned_to_itself(height: int, width: int, value: int) -> None:
    images = np.full((4, height, width, 1), value, np.uint8)
    found = rotate(images, np.arange(4), np.zeros(4, int), seed=0, num_examples=4)
    assert (found == images).all()


def test_the_angles_and_the_noise_are_the_golden_ones() -> None:
    # Never edit a number: runs would no longer repeat.
    angles = uniform(COUNT, 1, seed=0, epoch=0, stream=Stream.ROTATION)[:3, 0]
    assert angles == pytest.approx([0.068576, 0.058314, 0.341525], abs=1e-6)
    assert noise_field(3, seed=0) == pytest.approx([1.353927, -0.722414, -1.009465], abs=1e-6)


def added(images: np.ndarray) -> np.ndarray:
    """What noise adds to each value."""
    count = len(images)
    found = noise(images, np.arange(count), np.zeros(count, int), seed=0, num_examples=count)
    assert (found.dtype, found.shape) == (np.uint8, images.shape)
    return found.astype(int) - images


def test_noise_has_mean_0_and_a_strength_spread_evenly_from_none_to_the_strongest() -> None:
    differences = added(np.full((COUNT, HEIGHT, WIDTH, 3), 128, np.uint8))
    strengths = differences.std(axis=(1, 2, 3))
    assert abs(differences.mean()) < 0.05
    assert strengths.min() < 0.3
    assert strengths.max() < NOISE * 1.05
    counts, _ = np.histogram(strengths, 4, (0, NOISE))
    assert np.abs(counts / COUNT - 1 / 4).max() < 0.06


def test_noise_is_near_to_normal_and_apart_for_neighbours_and_channels() -> None:
    field = noise_field(300_000, seed=1).astype(float)
    assert [field.mean(), field.var()] == pytest.approx([0, 1], abs=0.01)
    assert (np.abs(field) < 1).mean() == pytest.approx(0.683, abs=0.01)
    assert (np.abs(field) < 2).mean() == pytest.approx(0.954, abs=0.01)
    for apart in (1, 3, 3 * WIDTH):
        assert abs(np.corrcoef(field[apart:], field[:-apart])[0, 1]) < 0.01


def test_noise_stays_within_0_to_255_and_never_wraps() -> None:
    for value in (0, 255):
        differences = added(np.full((COUNT, 4, 8, 3), value, np.uint8))
        assert (differences >= 0).all() if value == 0 else (differences <= 0).all()
        assert differences.any()


def test_pictures_larger_than_the_field_get_noise_too() -> None:
    assert added(np.full((1, 400, 400, 3), 128, np.uint8)).any()


@pytest.mark.parametrize("change", CHANGES)
def test_an_example_is_changed_alike_in_whatever_batch_it_comes(change: object) -> None:
    assert callable(change)
    images = pictures(50)
    whole = change(images, np.arange(50), np.zeros(50, int), seed=3, num_examples=50)
    assert (whole != images).any(axis=(1, 2, 3)).mean() > 0.9
    for ids in ([7], [49, 0, 7, 7, 30]):
        rows = np.array(ids)
        found = change(images[rows], rows, np.zeros(len(rows), int), seed=3, num_examples=50)
        assert (found == whole[rows]).all()
    both = change(images[[5, 5]], np.array([5, 5]), np.array([1, 0]), seed=3, num_examples=50)
    assert (both[1] == whole[5]).all()
    assert (both[0] != whole[5]).any()
    assert (images == pictures(50)).all()


def test_the_streams_of_numbers_are_drawn_apart() -> None:
    streams = [uniform(5000, 1, seed=0, epoch=0, stream=stream)[:, 0] for stream in Stream]
    together = np.corrcoef(streams)
    assert np.abs(together - np.eye(len(streams))).max() < 0.06
