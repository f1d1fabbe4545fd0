"""Pictures are shifted by numbers that depend on seed, epoch and example alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_train.data.augment import shift, uniform

HEIGHT, WIDTH = 20, 80
DOWN, RIGHT = 2, 6
"""A tenth of the height and 0.08 of the width, in pixels."""


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, 3), np.uint8)


def moved(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """The picture moved, the pixels of its edge repeated; by padding and cutting."""
    padded = np.pad(image, ((DOWN, DOWN), (RIGHT, RIGHT), (0, 0)), mode="edge")
    top, left = DOWN - down, RIGHT - right
    return padded[top : top + HEIGHT, left : left + WIDTH]


def where(before: np.ndarray, after: np.ndarray) -> tuple[int, int]:
    """How far the picture was moved; fails unless it is a shift at all."""
    (found,) = [
        (down, right)
        for down in range(-DOWN, DOWN + 1)
        for right in range(-RIGHT, RIGHT + 1)
        if (moved(before, down, right) == after).all()
    ]
    return found


def shifts(ids: list[int], epochs: list[int], *, seed: int = 0, num_examples: int = 300):
    images = pictures(len(ids))
    after = shift(
        images, np.array(ids), np.array(epochs), seed=seed, num_examples=num_examples
    )  # fmt: skip
    return [where(*pair) for pair in zip(images, after, strict=True)]


@pytest.fixture(scope="module")
def many() -> list[tuple[int, int]]:
    return shifts(list(range(300)), [0] * 300)


def test_every_shift_up_to_the_reach_occurs_and_none_beyond(many: list[tuple[int, int]]) -> None:
    assert {down for down, _ in many} == set(range(-DOWN, DOWN + 1))
    assert {right for _, right in many} == set(range(-RIGHT, RIGHT + 1))


def test_the_shift_is_the_golden_one(many: list[tuple[int, int]]) -> None:
    # Never edit a number: runs would no longer repeat.
    assert many[:5] == [(0, 0), (-2, 6), (1, -1), (2, -5), (2, -5)]


def test_an_example_is_shifted_alike_in_whatever_batch_it_comes(
    many: list[tuple[int, int]],
) -> None:
    ids = [7, 299, 0, 7, 150]
    assert shifts(ids, [0] * 5) == [many[example] for example in ids]


def test_a_batch_over_the_end_of_an_epoch_uses_the_shifts_of_both() -> None:
    ids = [5, 6, 5, 6]
    both = shifts(ids, [3, 3, 4, 4])
    assert both[:2] == shifts([5, 6], [3, 3])
    assert both[2:] == shifts([5, 6], [4, 4])


def test_each_epoch_and_each_seed_has_its_own_shifts(many: list[tuple[int, int]]) -> None:
    ids = list(range(30))
    assert shifts(ids, [1] * 30) != many[:30]
    assert shifts(ids, [0] * 30, seed=1) != many[:30]


def test_the_given_pictures_are_left_as_they_are() -> None:
    images = pictures(9)
    shift(images, np.arange(9), np.zeros(9, int), seed=0, num_examples=9)
    assert (images == pictures(9)).all()


@given(
    count=st.integers(1, 200), draws=st.integers(1, 3), seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 10**6),
)  # fmt: skip
def test_the_numbers_lie_in_0_to_1(count: int, draws: int, seed: int, epoch: int) -> None:
    numbers = uniform(count, draws, seed=seed, epoch=epoch)
    assert (numbers.shape, numbers.dtype) == ((count, draws), np.float64)
    assert (numbers >= 0).all() and (numbers < 1).all()


def test_the_numbers_are_spread_evenly() -> None:
    numbers = uniform(20_000, 2, seed=0, epoch=0)
    shares = [np.histogram(numbers[:, axis], 10, (0, 1))[0] / 20_000 for axis in (0, 1)]
    assert np.abs(np.array(shares) - 0.1).max() < 0.01
    assert abs(np.corrcoef(numbers.T)[0, 1]) < 0.03
