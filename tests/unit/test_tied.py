"""A process that never outlives the one that started it, however early that is interrupted."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import signal, sys
from hvd_train import tied

def stop(number, _):
    raise SystemExit(128 + number)

signal.signal(signal.SIGTERM, stop)
with tied.started(["sh", "-c", sys.argv[1], sys.argv[2]]) as process:
    process.communicate()
"""


@pytest.mark.parametrize("before", ["", "sleep 0.5; "])
def test_all_that_was_started_ends_with_a_parent_that_is_interrupted(
    tmp_path: Path, before: str
) -> None:
    told = tmp_path / "pid"
    child = f'sleep 600 & echo $! > "$0"; {before}kill $PPID; wait'
    done = subprocess.run([sys.executable, "-c", PARENT, child, told], check=False, timeout=60)
    assert done.returncode == 143
    place, deadline = Path("/proc") / told.read_text().strip(), time.monotonic() + 20
    while place.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not place.exists()
