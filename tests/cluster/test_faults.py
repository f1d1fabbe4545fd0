"""Each fault of `benchmarks/soak.py` under two launchers; `make soak` does many more.

Rows of the failure cases: B72, B73, B76.
"""

from pathlib import Path

import pytest
import soak
import virtual_hosts
from soak import FAULTS, Soak

STEPS = 40 * len(FAULTS) + 80


@pytest.fixture(scope="module", params=["mpirun", "horovodrun --gloo"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Soak:
    """The runs of a launcher, each going on with the one before."""
    if lacks := virtual_hosts.missing():
        pytest.skip(f"hosts of our own need {', '.join(lacks)}")
    folder: Path = tmp_path_factory.mktemp("soak")
    return Soak(folder, request.param, steps=STEPS)


def test_every_fault_ends_all_processes_names_its_cause_and_can_be_gone_on_from(runs: Soak) -> None:
    wrong = {}
    step = 0
    for number, fault in enumerate(FAULTS):
        outcome = runs.hurt(fault, after=step + 5, delay=number % 4 * 0.05)
        step = outcome.step
        wrong[fault] = outcome.wrong
    assert wrong == {fault: [] for fault in FAULTS}
    assert runs.ends_as_undisturbed()


def test_what_is_missing_in_the_output_is_told() -> None:
    said = "runs/a goes on from step 20\nerror: RANK: rank 1 on host2: process 7 ended while"
    assert soak.missing(said, "rank killed", 20) == []
    assert soak.missing(said, "chief killed", 2) == [
        FAULTS["chief killed"].cause, r"goes on from step 2\b"
    ]  # fmt: skip
    assert soak.missing("", "launcher SIGKILL", 0) == []
