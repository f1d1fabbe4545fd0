"""Which examples a rank trains on at a step: a pure function of seed, step and global batch.

The order of the examples never depends on the number of ranks. Epoch e visits them in the order
perm_e; the orders follow one another as one endless stream perm_0, perm_1, ..., of which step s
takes the G examples from s x G on. So none is dropped or repeated at an epoch's end.
"""

import functools
import math

import numpy as np


@functools.lru_cache(maxsize=4)
def epoch_order(num_examples: int, *, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Returns the order of an epoch, int64 [num_examples].

    Philox's stream is the same in every NumPy release, unlike Generator.permutation.
    """
    if not shuffle:
        return np.arange(num_examples)
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_examples)
    return np.argsort(keys, kind="stable")


def global_batch(
    step: int, *, size: int, num_examples: int, seed: int, shuffle: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of the examples of a step over all ranks and their epochs, int64 [size]."""
    places = np.arange(step * size, (step + 1) * size)
    epochs = places // num_examples
    ids = np.empty_like(places)
    for epoch in range(epochs[0], epochs[-1] + 1):
        order = epoch_order(num_examples, seed=seed, epoch=epoch, shuffle=shuffle)
        ids[epochs == epoch] = order[places[epochs == epoch] % num_examples]
    return ids, epochs


def even_split(num_examples: int, *, rank: int, size: int) -> range:
    """Returns this rank's examples; the first `num_examples % size` ranks get one more."""
    share, more = divmod(num_examples, size)
    start = rank * share + min(rank, more)
    return range(start, start + share + (rank < more))


def own_places(num_examples: int, *, accumulate: int, rank: int, size: int) -> np.ndarray:
    """Returns this rank's places in a global batch, micro-batch by micro-batch, int64 [n].

    The batch is cut into `accumulate` equal parts, each of which all ranks share evenly, so that
    what is in a micro-batch over all ranks doesn't depend on their number.
    """
    part = num_examples // accumulate
    share = even_split(part, rank=rank, size=size)
    starts = part * np.arange(accumulate)[:, None]
    return (starts + np.arange(share.start, share.stop)).ravel()


def total_steps(num_examples: int, *, epochs: float, global_batch_size: int) -> int:
    """Returns the steps that cover `epochs` passes, the last batch reaching past the end."""
    return math.ceil(epochs * num_examples / global_batch_size)
