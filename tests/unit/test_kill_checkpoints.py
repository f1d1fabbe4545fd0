"""A killed writer of checkpoints leaves whole ones; `make kill-checkpoints` tries every point."""

from pathlib import Path

import kill_checkpoints
import kill_points
import pytest

from hvd_train import checkpoint

POINTS = {"write": (3, 9, 30), "fsync": (4, 6, 29), "rename": (1, 4), "renameat2": (1,)}


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("call", POINTS)
def test_what_a_killed_save_leaves_is_the_last_or_the_one_being_saved(
    tmp_path: Path, call: str
) -> None:
    for point in POINTS[call]:
        run = tmp_path / str(point)
        run.mkdir()
        command = kill_checkpoints.writer(run, 4, pause=0)
        ran = kill_points.strace(call, point, command)
        assert ran.returncode != 0
        kill_checkpoints.check(run, ran.stdout.decode(), 0)


def test_a_newest_that_is_damaged_or_another_is_found(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, kill_checkpoints.made(step), keep=2)
    assert kill_checkpoints.check(tmp_path, "2 begun\n2 saved\n", 1) == (2, "between saves")
    with pytest.raises(AssertionError, match="'between saves', 2, 3, None"):
        kill_checkpoints.check(tmp_path, "3 begun\n3 saved\n", 2)
    (checkpoint.folder_of(tmp_path, 2) / "ema.npz").write_bytes(b"")
    with pytest.raises(AssertionError, match="the checkpoint is damaged"):
        kill_checkpoints.check(tmp_path, "2 begun\n", 1)
