"""Which examples a rank trains on is a pure function that never changes."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_train.data.sharding import (
    epoch_order,
    even_split,
    global_batch,
    own_places,
    total_steps,
)

SIZES = st.integers(1, 40)


def order(num_examples: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    return epoch_order(num_examples, seed=seed, epoch=epoch, shuffle=True).tolist()


# A change here would make every earlier run unrepeatable and break --resume: never edit a number.
@pytest.mark.parametrize(
    ("num_examples", "seed", "epoch", "first"),
    [
        (10, 0, 0, [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]),
        (10, 0, 1, [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]),
        (10, 1, 0, [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]),
        (1000, 0, 0, [998, 162, 670, 664, 185, 322, 431, 318, 207, 66]),
        (1000, 0, 1, [338, 261, 724, 958, 333, 497, 17, 614, 812, 639]),
    ],
)
def test_the_order_of_an_epoch_is_the_golden_one(
    num_examples: int, seed: int, epoch: int, first: list[int]
) -> None:
    assert order(num_examples, seed=seed, epoch=epoch)[:10] == first


def philox(seed: int, epoch: int, count: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011), written down from the paper."""
    mask = (1 << 64) - 1
    values: list[int] = []
    for block in range(1, count // 4 + 2):
        counter, key = [block, 0, 0, 0], [seed, epoch]
        for _ in range(10):
            low, high = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
            counter = [
                (high >> 64) ^ counter[1] ^ key[0], high & mask,
                (low >> 64) ^ counter[3] ^ key[1], low & mask,
            ]  # fmt: skip
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        values += counter
    return values[:count]


@given(SIZES, st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_the_order_sorts_the_numbers_of_philox(num_examples: int, seed: int, epoch: int) -> None:
    keys = philox(seed, epoch, num_examples)
    expected = sorted(range(num_examples), key=keys.__getitem__)
    assert order(num_examples, seed=seed, epoch=epoch) == expected


def test_without_shuffling_the_order_is_that_of_the_split() -> None:
    unshuffled = epoch_order(7, seed=3, epoch=5, shuffle=False)
    assert unshuffled.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    orders = [tuple(order(50, seed=s, epoch=e)) for s, e in itertools.product(range(4), range(4))]
    assert len(set(orders)) == 16


def test_changing_a_returned_batch_does_not_change_the_next_call() -> None:
    ids, _ = global_batch(0, size=10, num_examples=10, seed=0)
    ids[:] = 0
    assert global_batch(0, size=10, num_examples=10, seed=0)[0].tolist() == order(10)


@given(num_examples=SIZES, size=SIZES, steps=SIZES, seed=st.integers(0, 100))
def test_the_batches_cut_the_stream_of_epochs_without_gap_or_overlap(
    num_examples: int, size: int, steps: int, seed: int
) -> None:
    batches = [
        global_batch(step, size=size, num_examples=num_examples, seed=seed) for step in range(steps)
    ]
    endless = (
        (example, epoch)
        for epoch in itertools.count()
        for example in order(num_examples, seed=seed, epoch=epoch)
    )
    visited = [visit for ids, epochs in batches for visit in zip(ids, epochs, strict=True)]
    assert all(len(ids) == size for ids, _ in batches)
    assert visited == list(itertools.islice(endless, steps * size))


@given(num_examples=SIZES, size=SIZES, seed=st.integers(0, 100))
def test_an_epoch_of_batches_holds_every_example_exactly_once(
    num_examples: int, size: int, seed: int
) -> None:
    steps = total_steps(num_examples, epochs=1, global_batch_size=size)
    batches = [
        global_batch(step, size=size, num_examples=num_examples, seed=seed) for step in range(steps)
    ]
    seen = np.concatenate([ids for ids, _ in batches])
    assert sorted(seen[:num_examples]) == list(range(num_examples))


@given(num_examples=st.integers(0, 300), size=SIZES)
def test_the_shares_join_to_the_whole_in_the_order_of_the_ranks(
    num_examples: int, size: int
) -> None:
    shares = [even_split(num_examples, rank=rank, size=size) for rank in range(size)]
    assert list(itertools.chain(*shares)) == list(range(num_examples))


@given(num_examples=st.integers(0, 300), size=SIZES)
def test_the_first_ranks_get_one_more(num_examples: int, size: int) -> None:
    lengths = [len(even_split(num_examples, rank=rank, size=size)) for rank in range(size)]
    share, more = divmod(num_examples, size)
    assert lengths == [share + 1] * more + [share] * (size - more)


def test_three_ranks_share_ten_examples_as_4_3_3() -> None:
    shares = [list(even_split(10, rank=rank, size=3)) for rank in range(3)]
    assert shares == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


@given(num_examples=st.integers(1, 500), epochs=st.integers(1, 20), batch=SIZES)
def test_the_steps_are_the_fewest_that_cover_the_epochs(
    num_examples: int, epochs: int, batch: int
) -> None:
    steps = total_steps(num_examples, epochs=epochs, global_batch_size=batch)
    assert (steps - 1) * batch < epochs * num_examples <= steps * batch


def test_a_part_of_an_epoch_is_rounded_up_to_whole_steps() -> None:
    assert total_steps(101, epochs=0.5, global_batch_size=10) == math.ceil(5.05)
    assert total_steps(10, epochs=0.01, global_batch_size=10) == 1


@given(part=SIZES, accumulate=st.integers(1, 5), size=st.integers(1, 7))
def test_the_ranks_share_each_micro_batch_evenly(part: int, accumulate: int, size: int) -> None:
    batch = part * accumulate
    places = [own_places(batch, accumulate=accumulate, rank=r, size=size) for r in range(size)]
    micro_batches = [np.split(own, accumulate) for own in places]
    for micro in range(accumulate):
        shared = [own[micro] for own in micro_batches]
        assert np.concatenate(shared).tolist() == list(range(micro * part, (micro + 1) * part))
        assert max(map(len, shared)) - min(map(len, shared)) <= 1


def test_without_accumulation_a_ranks_places_are_its_even_split() -> None:
    for rank in range(3):
        places = own_places(10, accumulate=1, rank=rank, size=3)
        assert places.tolist() == list(even_split(10, rank=rank, size=3))
