"""Changes pictures at random in ways that leave their labels right.

The numbers depend on seed, epoch and example alone, so an example is changed in the same way on
whichever rank it comes.
"""

import functools
import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

SHIFT_SHARE = (0.1, 0.08)
"""How far a picture is moved at most, as a share of its height and width."""


def shift(
    images: np.ndarray, ids: np.ndarray, epochs: np.ndarray, *, seed: int, num_examples: int
) -> np.ndarray:
    """Moves each picture up or down and sideways, repeating the pixels of its edge.

    Args:
        images: uint8 [n, height, width, channels].
        ids: the examples' numbers in the split, int64 [n].
        epochs: the epoch in which each is visited, int64 [n].
        seed: the run's seed.
        num_examples: size of the split.

    Returns:
        uint8 of the same shape.
    """
    moved = np.empty_like(images)
    height, width = images.shape[1:3]
    reach = (round(SHIFT_SHARE[0] * height), round(SHIFT_SHARE[1] * width))
    for epoch in set(epochs.tolist()):
        rows = np.flatnonzero(epochs == epoch)
        draws = uniform(num_examples, 2, seed=seed, epoch=epoch)[ids[rows]]
        down, right = (
            (draws[:, axis] * (2 * reach[axis] + 1)).astype(int) - reach[axis] for axis in (0, 1)
        )
        from_row = np.clip(np.arange(height) - down[:, None], 0, height - 1)
        from_column = np.clip(np.arange(width) - right[:, None], 0, width - 1)
        moved[rows] = images[rows[:, None, None], from_row[:, :, None], from_column[:, None, :]]
    return moved


@functools.lru_cache(maxsize=2)
def uniform(num_examples: int, draws: int, *, seed: int, epoch: int) -> np.ndarray:
    """Returns `draws` numbers in [0, 1) for each example of an epoch, float64.

    The stream is apart from that of the order of the epoch: its key has the highest bit set.
    """
    key = np.array([seed, epoch | 1 << 63], np.uint64)
    raw = np.random.Philox(key=key).random_raw(num_examples * draws)
    return (raw >> 11).reshape(num_examples, draws) * 2.0**-53


CONTRAST = (0.2, 1.8)
"""Factors of the contrast, from the least to the most."""


def distort(
    images: np.ndarray,
    ids: np.ndarray,
    epochs: np.ndarray,
    *,
    size: int,
    seed: int,
    num_examples: int,
) -> np.ndarray:
    """Crops, mirrors, changes the contrast and standardises, as the CIFAR-10 tutorial did.

    Its random_crop, random_flip_left_right, random_brightness(63), random_contrast(0.2, 1.8) and
    per_image_standardization. The brightness is left out, since it adds one number to all pixels,
    which standardisation takes away again. What is left of the rest is one subtraction and one
    multiplication of each pixel.

    Args:
        images: uint8 [n, height, width, channels].
        ids: the examples' numbers in the split, int64 [n].
        epochs: the epoch in which each is visited, int64 [n].
        size: height and width of the crop.
        seed: the run's seed.
        num_examples: size of the split.

    Returns:
        float32 [n, size, size, channels].
    """
    draws = np.empty((len(images), 4))
    for epoch in set(epochs.tolist()):
        rows = epochs == epoch
        draws[rows] = uniform(num_examples, 4, seed=seed, epoch=epoch)[ids[rows]]
    height, width = images.shape[1:3]
    top = (draws[:, 0] * (height - size + 1)).astype(int)
    left = (draws[:, 1] * (width - size + 1)).astype(int)
    least, most = CONTRAST
    contrast = least + (most - least) * draws[:, 3]
    crops = crop(images, top, left, size=size, mirrored=draws[:, 2] < 0.5)
    return standardize(crops, contrast.astype(np.float32))


def center(images: np.ndarray, *, size: int) -> np.ndarray:
    """Takes the middle of each image and standardises it, as the tutorial's evaluation did.

    Args:
        images: uint8 [n, height, width, channels].
        size: height and width of the crop.

    Returns:
        float32 [n, size, size, channels].
    """
    top, left = ((extent - size) // 2 for extent in images.shape[1:3])
    return standardize(images[:, top : top + size, left : left + size], np.float32(1))


def crop(
    images: np.ndarray, top: np.ndarray, left: np.ndarray, *, size: int, mirrored: np.ndarray
) -> np.ndarray:
    """Cuts a square out of each image and mirrors it left to right where `mirrored` is true."""
    count, height, width, channels = images.shape
    # Rows of values, not of pixels: NumPy is slow where the innermost axis has three.
    rows = images.reshape(count, height, width * channels)
    squares = sliding_window_view(rows, (size, size * channels), axis=(1, 2))[:, :, ::channels]
    crops: np.ndarray = squares[np.arange(count), top, left]
    backwards = np.arange(size * channels).reshape(size, channels)[::-1].ravel()
    crops[mirrored] = crops[mirrored][:, :, backwards]
    return crops.reshape(count, size, size, channels)


def standardize(images: np.ndarray, contrast: np.ndarray | np.float32) -> np.ndarray:
    """Changes the contrast of each channel about its mean, then gives each image mean 0 and var 1.

    As tf.image.adjust_contrast and tf.image.per_image_standardization do: the standard deviation is
    taken as at least 1 / sqrt(values of an image), so an image of one color becomes all 0.

    Args:
        images: uint8 [n, H, W, C].
        contrast: a factor for each image, float32 [n] or one number, not 0.

    Returns:
        float32 [n, H, W, C].
    """
    count, height, width, channels = images.shape
    contrast = np.broadcast_to(contrast, count)[:, None]
    pixels = images.reshape(count, -1).astype(np.float32)
    # Sums of whole numbers are exact, so the pixels of an image of one color are its mean.
    of_channel = np.tile(np.eye(channels, dtype=np.float32), (height * width, 1))
    means = pixels @ of_channel / np.float32(height * width)
    # With x, its channel's mean c and the image's mean m, the contrast k gives k (x - c) + c, less
    # the mean k (x - center) with this center:
    mean = means.mean(axis=1, keepdims=True)
    center = mean + (means - mean) * (1 - 1 / contrast)
    rows = pixels.reshape(count, height, -1)
    rows -= np.tile(center, (1, width))[:, None]
    power = np.einsum("ij,ij->i", pixels, pixels)[:, None] / np.float32(pixels.shape[1])
    least = np.float32(1 / math.sqrt(pixels.shape[1]))
    pixels *= contrast / np.maximum(contrast * np.sqrt(power), least)
    return pixels.reshape(images.shape)
