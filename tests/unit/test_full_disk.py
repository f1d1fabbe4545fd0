"""Disks of 32 sizes, from one page to enough."""

import re
from collections.abc import Callable
from typing import Any

import full_disk
import pytest
from harness import ROOT


def test_a_disk_too_small_is_space_and_leaves_what_was_there(run_cli: Callable[..., Any]) -> None:
    done = run_cli(["python", ROOT / "benchmarks" / "full_disk.py"], timeout=300)
    if done.rc == full_disk.CANNOT_MOUNT or "unshare failed" in done.stderr:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    assert done.rc == 0, done.stderr[-3000:]
    rows = re.findall(r"^\| (c.*) \| (\d+) \| (\d+) \| \d+ \|$", done.stdout, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(full_disk.CONVERSIONS)
    for _, refused, whole in rows:
        assert int(refused) + int(whole) == full_disk.SIZES
