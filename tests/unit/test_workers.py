"""Tasks in several processes; the functions stand here so that a worker can import them."""

import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_tools import interrupts, workers
from data_tools.errors import INPUT, DataError

# More than a pipe holds: a worker may be killed while a task is on its way to it.
LONG = b"x" * 1_000_000


def length(task: bytes) -> int:
    return len(task)


def slower_the_earlier(task: int) -> int:
    time.sleep(0.02 * (5 - task))
    return task


def refuse_the_third(task: int) -> int:
    if task == 2:
        raise DataError(INPUT, "a.jpg", "row 3", "no such image", fix="add it", faults=["one"])
    time.sleep(60 * (task > 2))
    return task


def fill_the_disk(task: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device", f"shard {task}")


def be_killed(task: bytes) -> int:
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
    return len(task)


def which_process(task: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def run_all(function, tasks, num_workers):  # type: ignore[no-untyped-def]
    return list(workers.run_tasks(function, tasks, workers=num_workers, title="testing"))


TOLD_BY_WORKERS = """
import threading, time
from data_tools.workers import run_tasks

mark = "imported anew"

def told(task):
    return mark

if __name__ == "__main__":
    mark = "forked"
    print(list(run_tasks(told, [1, 2], workers=2, title="")))
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    print(list(run_tasks(told, [1, 2], workers=2, title="")))
"""


@pytest.fixture(autouse=True)
def no_worker_is_left():  # type: ignore[no-untyped-def]
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [1, 2, 3, 9])
def test_results_come_in_the_order_of_the_tasks_for_any_number_of_workers(num_workers: int) -> None:
    assert run_all(slower_the_earlier, range(5), num_workers) == [0, 1, 2, 3, 4]


def test_no_tasks_give_no_results() -> None:
    assert run_all(length, [], 2) == []


def test_tasks_longer_than_a_pipe_holds_reach_the_workers() -> None:
    assert run_all(length, [LONG] * 5, 2) == [len(LONG)] * 5


def test_several_workers_are_several_other_processes() -> None:
    pids = set(run_all(which_process, range(20), 2))
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_a_process_is_forked_unless_another_thread_may_hold_a_lock(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TOLD_BY_WORKERS)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout.splitlines() == [str([how] * 2) for how in ("forked", "imported anew")]


def test_an_error_of_a_task_comes_whole_and_stops_the_tasks_that_run() -> None:
    begin = time.monotonic()
    with pytest.raises(DataError) as raised:
        run_all(refuse_the_third, range(6), 2)
    assert time.monotonic() - begin < 30
    assert raised.value.report() == "one\nerror: INPUT: a.jpg:row 3: no such image; add it"


def test_an_error_of_the_system_in_a_worker_keeps_its_number_and_file() -> None:
    with pytest.raises(OSError, match="No space left on device") as raised:
        run_all(fill_the_disk, range(4), 2)
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename in ("shard 0", "shard 1")  # whichever failed first


def test_a_killed_worker_is_host_even_with_long_tasks_on_their_way() -> None:
    with pytest.raises(DataError) as raised:
        run_all(be_killed, [LONG] * 8, 2)
    assert str(raised.value) == (
        f"error: HOST: {socket.gethostname()}: a worker process was killed, "
        "perhaps for want of memory; free some memory or lower --workers"
    )


def test_results_that_nobody_takes_leave_no_worker() -> None:
    results = workers.run_tasks(length, [b"a", b"b", b"c"], workers=2, title="testing")
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]


def test_workers_never_see_ctrl_c_or_sigterm_and_the_parent_does_again() -> None:
    masks = run_all(blocked_signals, range(4), 2)
    assert all(mask >= interrupts.INTERRUPTS for mask in masks)
    assert not interrupts.INTERRUPTS & signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("number", sorted(interrupts.INTERRUPTS))
def test_an_interrupt_while_workers_start_is_answered_when_they_have(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    start = workers._start
    started = []

    def interrupted_start(function, method):  # type: ignore[no-untyped-def]
        signal.raise_signal(number)
        started.append(start(function, method))
        return started[-1]

    monkeypatch.setattr(workers, "_start", interrupted_start)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all(length, [LONG] * 4, 2)
    finally:
        signal.signal(number, before)
    assert len(started) == 2


def blocked_signals(task: int) -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def end_by_itself(task: int) -> int:
    os._exit(3 + task)


def test_a_worker_that_ends_by_itself_is_named_with_its_exit_code() -> None:
    with pytest.raises(DataError) as caught:
        run_all(end_by_itself, [0, 0, 0], 2)
    assert str(caught.value) == (
        f"error: HOST: {socket.gethostname()}: a worker process ended with exit code 3; "
        "see its message above"
    )


def test_a_file_of_the_current_folder_is_not_taken_for_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("signal", "socket", "struct", "pickle"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert run_all(length, [LONG] * 3, 2) == [len(LONG)] * 3
    assert "PYTHONSAFEPATH" not in os.environ
