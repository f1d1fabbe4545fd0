"""What makes a run stop: the votes of its ranks, a time limit, evaluations that get no better."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hvd_train import stop
from hvd_train.config import RunConfig
from hvd_train.stop import Best, Requests, Signals

ROOT = Path(__file__).resolve().parents[2]


def requests(signals: Signals | None = None, *, is_chief: bool = True, **run: float) -> Requests:
    return Requests(RunConfig(**run), signals or Signals(), is_chief=is_chief)  # type: ignore[arg-type]


def noted(number: signal.Signals) -> Signals:
    signals = Signals()
    signals.begin()
    signals.note(number)
    return signals


def test_a_rank_that_nothing_was_asked_of_asks_nothing() -> None:
    asks = requests()
    assert asks.votes() == [0.0] * 5
    assert not asks.stops
    assert stop.decide(np.zeros(5)) == (None, False)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]
)
def test_a_signal_of_one_rank_is_what_all_decide_by(number: signal.Signals, code: int) -> None:
    asks = requests(noted(number))
    assert asks.stops
    decided, to_save = stop.decide(np.array(asks.votes()) + requests().votes())
    assert decided is not None
    assert (decided.reason, decided.code, to_save) == (number.name, code, False)


def test_the_chiefs_clock_alone_decides() -> None:
    for is_chief in (True, False):
        asks = requests(is_chief=is_chief, max_minutes=1e-9, checkpoint_minutes=1e-9)
        time.sleep(0.001)
        assert asks.stops == is_chief
        decided, to_save = stop.decide(np.array(asks.votes()))
        assert decided == (stop.Stop("--max-minutes", 143) if is_chief else None)
        assert to_save == is_chief


def test_minutes_to_a_checkpoint_count_from_the_last_one_and_0_is_never() -> None:
    asks = requests(checkpoint_minutes=1e-4)
    time.sleep(0.02)
    assert stop.decide(np.array(asks.votes())) == (None, True)
    asks.restart()
    assert stop.decide(np.array(asks.votes())) == (None, False)
    never = requests(checkpoint_minutes=0.0)
    assert stop.decide(np.array(never.votes())) == (None, False)


def test_the_first_of_several_signals_counts_and_a_burst_is_one() -> None:
    signals = noted(signal.SIGINT)
    signals.note(signal.SIGTERM)
    assert signals.first == signal.SIGINT


LISTENER = """
import signal, sys, time
from hvd_train import stop
signals = stop.signals()
assert stop.signals() is signals
stop.BURST_SECONDS = 0.2
if sys.argv[1] == "noted":
    signals.begin()
print("ready", flush=True)
while signals.first is None:
    time.sleep(0.001)
print(signals.first.name, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
@pytest.mark.parametrize("when", ["before", "noted"])
def test_a_signal_ends_the_process_before_the_run_and_the_second_during_it(
    number: signal.Signals, when: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER, when], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        if when == "noted":
            assert process.stdout.readline() == f"{number.name}\n"
            time.sleep(0.3)
            process.send_signal(number)
        assert process.wait(10) == (130 if number == signal.SIGINT else 143)
        assert process.stderr.read() == f"ended by {number.name}\n"


def test_a_signal_that_the_shell_ignores_is_ignored() -> None:
    program = "import os, signal; from hvd_train import stop; stop.signals(); "
    program += "os.kill(os.getpid(), signal.SIGINT); print('alive')"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, text=True, capture_output=True, check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert ran.stdout == "alive\n"


def test_better_is_more_right_or_as_many_at_a_lower_loss() -> None:
    best = stop.better(None, 10, correct=5, loss=1.0)
    assert best == Best(step=10, correct=5, loss=1.0, since=0)
    best = stop.better(best, 20, correct=4, loss=0.5)
    assert best == Best(step=10, correct=5, loss=1.0, since=1)
    best = stop.better(best, 30, correct=5, loss=1.0)
    assert best == Best(step=10, correct=5, loss=1.0, since=2)
    best = stop.better(best, 40, correct=5, loss=0.9)
    assert best == Best(step=40, correct=5, loss=0.9, since=0)
    assert stop.better(best, 50, correct=6, loss=7.0) == Best(step=50, correct=6, loss=7.0)
