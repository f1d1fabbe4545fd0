"""A killed conversion leaves no set or a whole one; `make kill-points` tries every point."""

import shutil
from collections import Counter
from pathlib import Path

import kill_points
import pytest

pytestmark = pytest.mark.usefixtures("strace")
SAMPLES = {
    "captcha": {"write": (1, 4, 9), "fsync": (2, 8), "rename": (1, 5), "unlink": (2, 5)},
    "captcha, --overwrite": {"renameat2": (1,), "fsync": (9, 10), "unlink": (5,), "rmdir": (1,)},
    "captcha, 2 workers": {"write": (3, 9), "fsync": (2,)},
    "cifar": {"write": (2,), "rename": (1,), "fsync": (3,)},
    "cifar, its thread": {"write": (1, 3), "fsync": (2,)},
    "cifar, --overwrite": {"renameat2": (1,), "fsync": (7,), "unlink": (4, 9)},
}


@pytest.mark.parametrize("name", kill_points.CASES)
def test_what_a_killed_run_leaves_trains_right_or_not_at_all(name: str, tmp_path: Path) -> None:
    prepared = kill_points.prepare(tmp_path, kill_points.CASES[name])
    left = Counter[str]()
    for call, points in SAMPLES[name].items():
        left += kill_points.kill_at(prepared, call, points)
    assert left.total() >= len(SAMPLES[name])


def test_a_set_that_is_gone_or_cut_is_found(tmp_path: Path) -> None:
    prepared = kill_points.prepare(tmp_path, kill_points.CASES["captcha, --overwrite"])
    kill_points.reset(prepared)
    kill_points.check(prepared, "the old set is there")
    shutil.rmtree(prepared.out)
    with pytest.raises(AssertionError, match="the old set is gone"):
        kill_points.check(prepared, "nothing is there")
    kill_points.reset(prepared)
    (prepared.out / "manifest.json").unlink()
    with pytest.raises(AssertionError, match="neither the old set nor the new"):
        kill_points.check(prepared, "a part is there")
