"""Damaged inputs are refused in one line; `make fuzz` tries 50 times as many."""

import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import fuzz
import pytest
from harness import ROOT

from data_tools.errors import INPUT, RANK, DataError

SCRIPT = ROOT / "benchmarks" / "fuzz.py"


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_thousand_damaged_inputs_convert_whole_or_are_refused(
    target: str, run_cli: Callable[..., Any]
) -> None:
    done = run_cli(["python", SCRIPT, "--only", target, "--cases", 1000], timeout=600)
    assert done.rc == 0, done.stderr[-3000:]
    row = next(line for line in done.stdout.splitlines() if line.startswith(f"| {target} | yes |"))
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) ([A-Za-z]+)", row)}
    assert sum(counts.values()) == 1000
    # Both ways are taken often: the inputs are neither all broken nor all whole.
    assert min(counts["ok"], 1000 - counts["ok"]) > 50


def test_a_case_is_a_function_of_seed_target_and_number() -> None:
    assert fuzz.damage(random.Random("a"), bytes(99)) == fuzz.damage(random.Random("a"), bytes(99))
    made = {fuzz.damage(random.Random(number), bytes(99)) for number in range(50)}
    assert len(made) > 25


def test_what_a_case_may_not_do_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: random.Random) -> None:
        raise ValueError("a fault of ours")

    def hang(_: random.Random) -> None:
        time.sleep(60)

    def compute(_: random.Random) -> None:
        while True:
            pass

    def blame_a_rank(_: random.Random) -> None:
        raise DataError(RANK, "rank 1", "a kind that no input has", fix="none")

    def warn(_: random.Random) -> None:
        print("a warning", file=sys.stderr)

    def refuse(_: random.Random) -> None:
        raise DataError(INPUT, "a.jpg", "refused", fix="replace it")

    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "MAX_WAIT", 2)
    for case, told in (
        (fail, "ValueError: a fault of ours"), (hang, "TooLongError"), (compute, "TooLongError"),
        (blame_a_rank, "AssertionError: error: RANK: rank 1: a kind that no input has; none"),
        (warn, "AssertionError: a warning"), (refuse, ""),
    ):  # fmt: skip
        monkeypatch.setitem(fuzz.TARGETS, "csv", lambda _, case=case: case)
        outcomes, faults, peak, _ = fuzz.run_cases("csv", range(7, 8), seed=0)
        assert outcomes == {"FAULT" if told else "INPUT": 1}
        assert told in "\n".join(faults)
        assert all(fault.startswith("csv, case 7: ") for fault in faults)
        assert peak > 1_000_000
