"""Changes pictures at random in ways that leave their labels right, or mixes the labels alike.

The numbers depend on seed, epoch and example alone, so an example is changed in the same way on
whichever rank it comes.
"""

import enum
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hvd_train.data.source import Batch


class Stream(enum.IntEnum):
    """Which numbers of an epoch: those of one stream are drawn apart from all others'."""

    PLACE = 0  # of shift and of distort, which don't meet
    CROP = 1
    CUTOUT = 2
    MIXUP = 3
    ROTATION = 4
    NOISE = 5
    NOISE_FIELD = 6


def draw(
    count: int,
    ids: np.ndarray,
    epochs: np.ndarray,
    *,
    seed: int,
    num_examples: int,
    stream: Stream = Stream.PLACE,
) -> np.ndarray:
    """Returns `count` numbers in [0, 1) for each of these examples, float64 [n, count]."""
    draws = np.empty((len(ids), count))
    for epoch in set(epochs.tolist()):
        rows = epochs == epoch
        table = uniform(num_examples, count, seed=seed, epoch=epoch, stream=stream)
        draws[rows] = table[ids[rows]]
    return draws


# An epoch's end needs the tables of two epochs, of as many streams as are in use.
@functools.lru_cache(maxsize=8)
def uniform(
    num_examples: int, draws: int, *, seed: int, epoch: int, stream: Stream = Stream.PLACE
) -> np.ndarray:
    """Returns `draws` numbers in [0, 1) for each example of an epoch, float64.

    The streams are apart from that of the order of the epoch: their keys have the highest bit set.
    """
    key = np.array([seed, epoch | stream << 56 | 1 << 63], np.uint64)
    raw = np.random.Philox(key=key).random_raw(num_examples * draws)
    return (raw >> 11).reshape(num_examples, draws) * 2.0**-53


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
    count, height, width = images.shape[:3]
    draws = draw(2, ids, epochs, seed=seed, num_examples=num_examples)
    reach = (round(SHIFT_SHARE[0] * height), round(SHIFT_SHARE[1] * width))
    down, right = (
        (draws[:, axis] * (2 * reach[axis] + 1)).astype(int) - reach[axis] for axis in (0, 1)
    )
    from_row = np.clip(np.arange(height) - down[:, None], 0, height - 1)
    from_column = np.clip(np.arange(width) - right[:, None], 0, width - 1)
    rows = np.arange(count)[:, None, None]
    moved: np.ndarray = images[rows, from_row[:, :, None], from_column[:, None, :]]
    return moved


ROTATION = 5.0
"""How far a picture is turned at most, in degrees."""


def rotate(
    images: np.ndarray, ids: np.ndarray, epochs: np.ndarray, *, seed: int, num_examples: int
) -> np.ndarray:
    """Turns each picture about its middle by up to 5 degrees, repeating the pixels of its edge.

    Between pixels it interpolates linearly, in steps of 1 / 256. Arguments and result as `shift`.
    """
    draws = draw(1, ids, epochs, seed=seed, num_examples=num_examples, stream=Stream.ROTATION)
    angles = np.radians(ROTATION) * (2 * draws[:, 0] - 1)
    count, height, width, channels = images.shape
    cos, sin = (f(angles).astype(np.float32)[:, None, None] for f in (np.cos, np.sin))
    last_row, last_column = np.float32(height - 1), np.float32(width - 1)
    down = np.arange(height, dtype=np.float32)[:, None] - last_row / 2
    right = np.arange(width, dtype=np.float32) - last_column / 2
    row = np.clip(cos * down - sin * right + last_row / 2, 0, last_row)
    column = np.clip(sin * down + cos * right + last_column / 2, 0, last_column)
    above, left = row.astype(np.int32), column.astype(np.int32)
    below, beside = np.minimum(above + 1, height - 1), np.minimum(left + 1, width - 1)
    of_row, of_column = (
        (share * 256).astype(np.uint16)[..., None] for share in (row - above, column - left)
    )
    pixels = images.reshape(-1, channels)
    start = (np.arange(count, dtype=np.int32) * (height * width))[:, None, None]

    def along_row(at: np.ndarray) -> np.ndarray:
        first = start + at * width
        a, b = (pixels.take(first + x, axis=0).astype(np.uint16) for x in (left, beside))
        return _between(a, b, of_column)

    return _between(along_row(above), along_row(below), of_row).astype(np.uint8)


def _between(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Goes from `a` to `b` by `share` / 256, rounded; all uint16, `a` and `b` up to 255."""
    mixed: np.ndarray = (a * (256 - share) + b * share + 128) >> 8
    return mixed


NOISE = 16.0
"""Standard deviation of the strongest noise, in levels of 255."""


def noise(
    images: np.ndarray, ids: np.ndarray, epochs: np.ndarray, *, seed: int, num_examples: int
) -> np.ndarray:
    """Adds noise, near to normal, apart for each value of a pixel; its strength differs by picture.

    A picture takes its noise from a place of its own in one long field, since to draw millions of
    numbers a batch would take longer than to train on it. Arguments and result as `shift`.
    """
    draws = draw(2, ids, epochs, seed=seed, num_examples=num_examples, stream=Stream.NOISE)
    values = math.prod(images.shape[1:])
    places = (draws[:, 0] * FIELD_LENGTH).astype(int)
    noises = sliding_window_view(noise_field(FIELD_LENGTH + values, seed=seed), values)[places]
    strengths = (NOISE * draws[:, 1]).astype(np.float32)[:, None]
    changed: np.ndarray = np.rint(images.reshape(len(images), values) + noises * strengths)
    changed = np.clip(changed, 0, 255, out=changed)
    return changed.astype(np.uint8).reshape(images.shape)


FIELD_LENGTH = 1 << 18
"""Places where the noise of a picture may begin."""


@functools.lru_cache(maxsize=1)
def noise_field(length: int, *, seed: int) -> np.ndarray:
    """Returns noise of mean 0 and variance 1, float32 [length].

    Each is the sum of 8 random bytes: whole numbers, which come out alike on every machine.
    """
    key = np.array([seed, Stream.NOISE_FIELD << 56 | 1 << 63], np.uint64)
    raw = np.random.Philox(key=key).random_raw(length)
    sums = raw.view(np.uint8).reshape(length, 8).sum(axis=1, dtype=np.int16)
    deviation = math.sqrt(8 * (256**2 - 1) / 12)
    field: np.ndarray = (sums - np.int16(4 * 255)).astype(np.float32) / np.float32(deviation)
    return field


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
    draws = draw(4, ids, epochs, seed=seed, num_examples=num_examples)
    height, width = images.shape[1:3]
    top = (draws[:, 0] * (height - size + 1)).astype(int)
    left = (draws[:, 1] * (width - size + 1)).astype(int)
    least, most = CONTRAST
    contrast = least + (most - least) * draws[:, 3]
    crops = crop(images, top, left, size=size, mirrored=draws[:, 2] < 0.5)
    return standardize(crops, contrast.astype(np.float32))


PADDING = 4
"""Pixels that a picture is extended by at each side before a crop."""


def random_crop(
    images: np.ndarray,
    ids: np.ndarray,
    epochs: np.ndarray,
    *,
    size: int,
    seed: int,
    num_examples: int,
) -> np.ndarray:
    """Extends each picture by 4 pixels of its reflection, crops, mirrors half, and standardises.

    As is usual for CIFAR since He et al. 2015, who extend by 0. Arguments and result as `distort`.
    """
    draws = draw(3, ids, epochs, seed=seed, num_examples=num_examples, stream=Stream.CROP)
    height, width = images.shape[1:3]
    pad = min(PADDING, height - 1, width - 1)
    rows, columns = (np.pad(np.arange(n), pad, mode="reflect") for n in (height, width))
    extended = images.take(rows, axis=1).take(columns, axis=2)
    top = (draws[:, 0] * (height + 2 * pad - size + 1)).astype(int)
    left = (draws[:, 1] * (width + 2 * pad - size + 1)).astype(int)
    crops = crop(extended, top, left, size=size, mirrored=draws[:, 2] < 0.5)
    return standardize(crops, np.float32(1))


def cutout(
    inputs: np.ndarray,
    ids: np.ndarray,
    epochs: np.ndarray,
    *,
    side: int,
    seed: int,
    num_examples: int,
) -> None:
    """Sets a square of each picture to 0, in place (DeVries and Taylor 2017).

    Its middle is any pixel, so part of it may lie outside.

    Args:
        inputs: standardised, float32 [n, height, width, channels].
        ids: the examples' numbers in the split, int64 [n].
        epochs: the epoch in which each is visited, int64 [n].
        side: of the square, in pixels.
        seed: the run's seed.
        num_examples: size of the split.
    """
    draws = draw(2, ids, epochs, seed=seed, num_examples=num_examples, stream=Stream.CUTOUT)
    corners = (draws * inputs.shape[1:3]).astype(int) - side // 2
    for picture, (top, left) in zip(inputs, corners.tolist(), strict=True):
        picture[max(top, 0) : top + side, max(left, 0) : left + side] = 0


def mixup(
    prepare: Callable[[np.ndarray, np.ndarray], Batch],
    ids: np.ndarray,
    epochs: np.ndarray,
    *,
    alpha: float,
    seed: int,
    num_examples: int,
    num_classes: int,
) -> Batch:
    """Mixes each example with a partner drawn from the whole split (Zhang et al. 2018).

    A picture becomes w x itself + (1 - w) x its partner's, w drawn from Beta(alpha, alpha). Cross-
    entropy with the classes mixed alike is w x its loss for the own class + (1 - w) x that for the
    partner's.

    Args:
        prepare: ids and epochs to a batch of standardised pictures, labels [n, 1].
        ids: the examples' numbers in the split, int64 [n].
        epochs: the epoch in which each is visited, int64 [n].
        alpha: of the Beta distribution; the larger, the nearer w is to a half.
        seed: the run's seed.
        num_examples: size of the split.
        num_classes: of the data set.

    Returns:
        A batch whose labels are the shares of the classes, float32 [n, classes].
    """
    draws = draw(3, ids, epochs, seed=seed, num_examples=num_examples, stream=Stream.MIXUP)
    partners = (draws[:, 0] * num_examples).astype(int)
    own, partner = prepare(ids, epochs), prepare(partners, epochs)
    weights = symmetric_beta(draws[:, 1], draws[:, 2], alpha=alpha).astype(np.float32)[:, None]
    shares = np.eye(num_classes, dtype=np.float32)
    of_pictures = weights[:, :, None, None]
    return Batch(
        ids,
        of_pictures * own.images + (1 - of_pictures) * partner.images,
        weights * shares[own.labels[:, 0]] + (1 - weights) * shares[partner.labels[:, 0]],
    )


def symmetric_beta(u: np.ndarray, v: np.ndarray, *, alpha: float) -> np.ndarray:
    """Turns pairs of numbers in [0, 1) into numbers from Beta(alpha, alpha).

    Exact, by one formula for any alpha (Devroye 1996, "Random variate generation in one line of
    code"), so each example needs the same two numbers in every release of NumPy.
    """
    cos = np.cos(2 * np.pi * v)
    z = (1 - u) ** (1 / alpha)
    beta: np.ndarray = 0.5 + 0.5 * cos * np.sqrt((1 - z) / (z + (1 - z) * cos**2))
    return beta.clip(0.0, 1.0)


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
