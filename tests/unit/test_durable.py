"""Files that are there whole or not at all."""

from pathlib import Path

import pytest

from data_tools.durable import atomic_file
from data_tools.errors import DataError, os_errors


def test_of_two_writers_at_a_time_one_gets_the_name_and_the_other_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(DataError) as told, os_errors(path), atomic_file(path) as first:
        first.write(b"half")
        with atomic_file(path) as second:
            second.write(b"whole")
        first.write(b" of it")
    assert told.value.report() == (
        f"error: INPUT: {path}: another process is writing it; "
        "wait until it is free, or choose another name"
    )
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_leaves_the_file_of_another_that_still_writes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first, second = atomic_file(path), atomic_file(path)
    first.__enter__()
    file = second.__enter__()
    file.write(b"whole")
    assert not first.__exit__(OSError, OSError("disk"), None)
    second.__exit__(None, None, None)
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]
