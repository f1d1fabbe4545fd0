"""What packs rows and names gives them back as they were."""

import pickle
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.sources.names import Names
from data_tools.sources.rows import Row, Rows

# Of any bytes but NUL, as file systems have them; bytes that are no UTF-8 are lone surrogates.
TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\0"), max_size=8),
    st.binary(max_size=8).map(
        lambda data: data.replace(b"\0", b"").decode(errors="surrogateescape")
    ),
)
NUMBERS = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(st.lists(st.builds(Row, NUMBERS, TEXTS, TEXTS)))
def test_packed_rows_are_the_rows_in_order(rows: list[Row]) -> None:
    packed = Rows.of(rows)
    assert list(packed) == rows
    assert len(packed) == len(rows)
    assert list(packed.images()) == [row.image for row in rows]
    assert list(packed.labels()) == [row.label for row in rows]
    assert pickle.loads(pickle.dumps(packed)) == packed


def test_many_rows_are_cut_into_parts_that_follow_on_each_other() -> None:
    rows = [Row(n, f"{n}é.jpg", f"{n:04d}") for n in range(20_000)]
    parts = Rows.of(rows).parts([range(7), range(7, 7), range(7, 19_000), range(19_000, 20_000)])
    assert [list(part) for part in parts] == [rows[:7], [], rows[7:19_000], rows[19_000:]]


@settings(deadline=None)
@given(st.sets(TEXTS), TEXTS)
def test_packed_names_are_sorted_and_found_and_no_others(names: set[str], other: str) -> None:
    packed = Names(names)
    assert list(packed) == sorted(names)
    assert len(packed) == len(names)
    assert [packed.place(name) for name in sorted(names)] == list(range(len(names)))
    assert (other in packed) == (other in names)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 1000])
def test_each_of_many_names_is_found_but_none_of_its_parts(count: int) -> None:
    names = [f"{n:04d}.png" for n in range(count)]
    packed = Names(reversed(names))
    assert [packed.place(name) for name in names] == list(range(count))
    assert not any(part in packed for name in names for part in (name[:-1], name[1:], name + "x"))


def test_rows_take_bytes_not_objects() -> None:
    count = 100_000
    rows = Rows.of(Row(n, f"{n}.png", f"{n:06d}") for n in range(count))
    taken = sys.getsizeof(rows.joined_numbers) + sys.getsizeof(rows.joined_images)
    assert taken + sys.getsizeof(rows.joined_labels) < 32 * count
