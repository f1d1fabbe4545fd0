"""The distortions are the tutorial's, and depend on seed, epoch and example alone."""

import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_train.data.augment import center, crop, distort, standardize, uniform

COUNT = 2000
SIZE, WHOLE = 24, 32
MIDDLE = 16
"""A row and a column that every crop holds."""


def pictures(count: int, *, height: int = WHOLE, width: int = WHOLE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def distorted(
    images: np.ndarray, ids: list[int] | np.ndarray, epochs: list[int] | int = 0, *,
    seed: int = 0, num_examples: int = COUNT, size: int = SIZE,
) -> np.ndarray:  # fmt: skip
    epochs = np.broadcast_to(np.array(epochs), len(images))
    return distort(images, np.array(ids), epochs, size=size, seed=seed, num_examples=num_examples)


def marked(count: int) -> np.ndarray:
    """Pictures from whose crop one can tell place, mirroring and contrast.

    Channels 0 and 1 are checkerboards about 50 and 150, of which each crop has equally many fields;
    channel 2 has one white pixel in the middle and a grey one to the right of it.
    """
    images = np.zeros((count, WHOLE, WHOLE, 3), np.uint8)
    fields = (np.indices((WHOLE, WHOLE)).sum(axis=0) % 2 * 100).astype(np.uint8)
    images[..., 0], images[..., 1] = fields, fields + 100
    images[:, MIDDLE, MIDDLE, 2], images[:, MIDDLE, MIDDLE + 1, 2] = 255, 200
    return images


def told(crops: np.ndarray) -> list[tuple[int, int, bool, float]]:
    """Row and column of each crop of `marked`, whether it is mirrored, and its contrast."""
    found = []
    for out in crops:
        white, grey = np.argsort(out[..., 2].reshape(-1))[[-1, -2]]
        row, column = divmod(int(white), SIZE)
        mirrored = bool(grey < white)
        left = MIDDLE - (SIZE - 1 - column if mirrored else column)
        spread = out[..., 0].std(dtype=np.float64) / 50
        apart = (out[..., 1] - out[..., 0]).mean(dtype=np.float64) / 100
        found.append((MIDDLE - row, left, mirrored, spread / apart))
    return found


@pytest.fixture(scope="module")
def many() -> list[tuple[int, int, bool, float]]:
    return told(distorted(marked(COUNT), np.arange(COUNT)))


def standardized_by_tutorial(
    tf: ModuleType, images: np.ndarray, draws: np.ndarray, delta: float
) -> np.ndarray:
    """The tutorial's operations one after the other, with these draws in place of its own."""
    outs = []
    for image, (down, right, side, contrast) in zip(images, draws, strict=True):
        height, width = image.shape[0] - SIZE + 1, image.shape[1] - SIZE + 1
        x = tf.image.crop_to_bounding_box(
            tf.cast(image, tf.float32), int(down * height), int(right * width), SIZE, SIZE
        )
        x = tf.image.flip_left_right(x) if side < 0.5 else x
        x = tf.image.adjust_brightness(x, delta)
        x = tf.image.adjust_contrast(x, 0.2 + 1.6 * contrast)
        outs.append(tf.image.per_image_standardization(x).numpy())
    return np.stack(outs)


@pytest.mark.parametrize("delta", [0.0, -63.0, 17.5, 62.9])
def test_distort_is_the_tutorials_operations_whatever_the_brightness(
    tf: ModuleType, delta: float
) -> None:
    images = pictures(40)
    draws = uniform(40, 4, seed=5, epoch=2)
    expected = standardized_by_tutorial(tf, images, draws, delta)
    found = distorted(images, np.arange(40), 2, seed=5, num_examples=40)
    assert (found.dtype, found.shape) == (np.float32, (40, SIZE, SIZE, 3))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_distort_of_oblong_pictures_is_the_tutorials_operations(tf: ModuleType) -> None:
    images = pictures(20, height=30, width=41)
    draws = uniform(20, 4, seed=0, epoch=0)
    expected = standardized_by_tutorial(tf, images, draws, 0.0)
    found = distorted(images, np.arange(20), num_examples=20)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [24, 23, 32, 1])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 40)])
def test_center_is_the_tutorials_middle_standardised(
    tf: ModuleType, size: int, height: int, width: int
) -> None:
    images = pictures(8, height=height, width=width)
    expected = [
        tf.image.per_image_standardization(tf.image.resize_with_crop_or_pad(image, size, size))
        for image in images
    ]
    found = center(images, size=size)
    assert (found.dtype, found.shape) == (np.float32, (8, size, size, 3))
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-5)


def test_the_whole_picture_can_be_the_crop() -> None:
    images = pictures(30)
    for out, image in zip(distorted(images, np.arange(30), size=WHOLE), images, strict=True):
        gains = [np.corrcoef(out[..., 0].ravel(), x.ravel())[0, 1]
                 for x in (image[..., 0], image[:, ::-1, 0])]  # fmt: skip
        assert max(gains) == pytest.approx(1, abs=1e-6)


def test_a_picture_of_one_color_becomes_all_0() -> None:
    images = np.empty((256, WHOLE, WHOLE, 3), np.uint8)
    images[:] = np.arange(256)[:, None, None, None]
    assert not distorted(images, np.arange(256)).any()
    assert not center(images, size=SIZE).any()
    assert not center(images, size=WHOLE).any()


@given(
    height=st.integers(1, 6), width=st.integers(1, 6), channels=st.sampled_from([1, 3]),
    contrast=st.floats(0.2, 1.8), values=st.integers(1, 256), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_picture_becomes_finite_numbers_of_mean_0_and_at_most_unit_variance(
    height: int, width: int, channels: int, contrast: float, values: int, seed: int
) -> None:
    shape = (2, height, width, channels)
    images = 255 - np.random.default_rng(seed).integers(0, values, shape, np.uint8)
    found = standardize(images, np.full(2, contrast, np.float32)).astype(np.float64)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.mean(axis=(1, 2, 3)), 0, atol=1e-3)
    assert (found.std(axis=(1, 2, 3)) < 1.001).all()


def test_crops_are_taken_at_every_place_and_none_beyond(
    many: list[tuple[int, int, bool, float]],
) -> None:
    for axis in (0, 1):
        places = np.array([found[axis] for found in many])
        counts = np.bincount(places, minlength=9)
        assert len(counts) == 9
        assert np.abs(counts / COUNT - 1 / 9).max() < 0.03


def test_about_half_are_mirrored(many: list[tuple[int, int, bool, float]]) -> None:
    assert np.mean([mirrored for _, _, mirrored, _ in many]) == pytest.approx(0.5, abs=0.04)


def test_the_contrast_is_spread_evenly_over_0_2_to_1_8(
    many: list[tuple[int, int, bool, float]],
) -> None:
    contrasts = np.array([contrast for *_, contrast in many])
    assert contrasts.min() > 0.2 - 1e-4
    assert contrasts.max() < 1.8 + 1e-4
    counts, _ = np.histogram(contrasts, 8, (0.2, 1.8))
    assert np.abs(counts / COUNT - 1 / 8).max() < 0.03


def test_place_mirroring_and_contrast_are_drawn_apart(
    many: list[tuple[int, int, bool, float]],
) -> None:
    together = np.corrcoef(np.array(many, float).T)
    assert np.abs(together - np.eye(4)).max() < 0.08


def test_the_distortions_are_the_golden_ones(many: list[tuple[int, int, bool, float]]) -> None:
    # Never edit a number: runs would no longer repeat.
    assert [found[:3] for found in many[:4]] == [
        (5, 4, True), (5, 3, False), (8, 1, True), (1, 7, False),
    ]  # fmt: skip
    assert [found[3] for found in many[:4]] == pytest.approx(
        [1.79245, 0.40191, 1.31025, 0.87941], abs=1e-4
    )


def test_an_example_is_distorted_alike_to_the_bit_in_whatever_batch_it_comes() -> None:
    images = pictures(50)
    whole = distorted(images, np.arange(50))
    for ids in ([7], [49, 0, 7, 7, 30], list(range(49, -1, -1))):
        assert (distorted(images[ids], ids) == whole[ids]).all()


def test_a_batch_over_the_end_of_an_epoch_is_distorted_as_in_both() -> None:
    images = pictures(4)
    both = distorted(images, [5, 6, 5, 6], [4, 3, 3, 4])
    assert (both[[0, 3]] == distorted(images[[0, 3]], [5, 6], 4)).all()
    assert (both[[1, 2]] == distorted(images[[1, 2]], [6, 5], 3)).all()


def test_each_epoch_and_each_seed_has_its_own_distortions(
    many: list[tuple[int, int, bool, float]],
) -> None:
    for others in (
        told(distorted(marked(60), np.arange(60), 1)),
        told(distorted(marked(60), np.arange(60), seed=1)),
    ):
        same = [one[:3] == other[:3] for one, other in zip(many, others, strict=False)]
        assert np.mean(same) < 0.1


def test_the_given_pictures_are_left_as_they_are() -> None:
    images = pictures(9)
    distorted(images, np.arange(9))
    center(images, size=WHOLE)
    assert (images == pictures(9)).all()


def test_a_crop_is_cut_before_it_is_mirrored() -> None:
    images = np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1)
    found = crop(
        images, np.array([1, 0]), np.array([0, 2]), size=2, mirrored=np.array([True, False])
    )
    assert found[..., 0].tolist() == [[[5, 4], [9, 8]], [[14, 15], [18, 19]]]


def test_the_deviation_is_at_least_1_over_the_root_of_the_number_of_values() -> None:
    images = np.full((1, 8, 8, 3), 9, np.uint8)
    images[0, 0, 0, 0] = 10
    # Its own deviation is 0.07; at a contrast of 0.2 it is less than 1 / sqrt(192) = 0.072.
    found = standardize(images, np.float32(0.2))
    mean = 1 / 64
    expected = (mean + 0.2 * (1 - mean) - mean / 3) * math.sqrt(192)
    assert found[0, 0, 0, 0] == pytest.approx(expected, rel=1e-4)
