"""Changes pictures at random in ways that leave their labels right.

The numbers depend on seed, epoch and example alone, so an example is changed in the same way on
whichever rank it comes.
"""

import functools

import numpy as np

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
    for epoch in np.unique(epochs):
        rows = np.flatnonzero(epochs == epoch)
        draws = uniform(num_examples, 2, seed=seed, epoch=int(epoch))[ids[rows]]
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
