"""Runs that are stopped end at one step on all ranks, and gone on with they are the whole run."""

import json
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import metrics, once
from small_sets import texts, write_set

from hvd_train import checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / "hvd_train" / "captcha.py"
STEPS = 30
STOPPED = {
    "mid_epoch": ("SIGTERM", 143, 6),
    "epochs_end": ("SIGINT", 130, 11),
    "in_evaluation": ("SIGUSR1", 143, 21),
    "in_save": ("SIGTERM", 143, 15),
    "last_step": ("SIGUSR1", 143, STEPS),
    "time": ("--max-minutes", 143, 1),
}
"""What stops each run of stop_ranks.py, the exit code, and the updates done."""

Start = Callable[[int], "Ended"]


@dataclass(frozen=True, slots=True)
class Ended:
    """What so many ranks left."""

    out: Path
    size: int

    def codes(self, report: str) -> list[object]:
        """The exit codes of a case, by rank."""
        return [self._read(report, rank, "code") for rank in range(self.size)]

    def text(self, report: str, suffix: str = "out") -> str:
        """What all ranks printed in a case."""
        files = [self.out / f"{report}-{rank}.{suffix}" for rank in range(self.size)]
        return "".join(file.read_text() for file in files)

    def _read(self, report: str, rank: int, suffix: str) -> object:
        return json.loads((self.out / f"{report}-{rank}.{suffix}").read_text())

    def run(self, name: str) -> Path:
        """A run folder."""
        return self.out / "runs" / name

    def losses(self, name: str) -> list[tuple[object, ...]]:
        """Step, split and loss of each line of a run."""
        return [(line["step"], line["split"], line["loss"]) for line in metrics(self.run(name))]

    def result(self, name: str) -> dict[str, Any]:
        """What eval.json says, without what differs between two processes."""
        found = json.loads((self.run(name) / "eval.json").read_text())
        return {k: v for k, v in found.items() if k not in ("time", "memory_mib", "seconds")}


@pytest.fixture(scope="session")
def ended(
    tmp_path_factory: pytest.TempPathFactory,
    run_cli: Callable[..., Any],
    mpirun: Callable[..., Any],
) -> Start:
    """`ended(size)` starts stop_ranks.py on so many ranks, once a session."""

    def start(size: int) -> Ended:
        out = tmp_path_factory.mktemp(f"stop-{size}")
        handed = [] if size == 2 else [found(2).out / "stopped"]
        command = ["python", Path(__file__).parent / "stop_ranks.py", out, *handed]
        done = run_cli(command, timeout=300) if size == 1 else mpirun(size, command, timeout=300)
        assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return Ended(out, size)

    found = once(start)
    return found


INTERRUPTED = [
    *((2, name) for name in STOPPED),
    *((1, name) for name in ("mid_epoch", "in_evaluation", "last_step")),
]  # fmt: skip


def newest(run: Path) -> checkpoint.Checkpoint:
    skipped: list[str] = []
    found = checkpoint.restore_newest(run, skipped=skipped)
    assert found is not None
    assert not skipped
    return found


def bits(saved: checkpoint.Checkpoint) -> dict[str, object]:
    """All that a checkpoint holds."""
    groups = {name: getattr(saved, name) for name in checkpoint.ARRAYS}
    arrays = {f"{g}/{k}": v.tobytes() for g, values in groups.items() for k, v in values.items()}
    return {**arrays, "progress": saved.state["progress"]}


@pytest.mark.parametrize(("size", "name"), INTERRUPTED)
def test_a_request_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(
    ended: Start, size: int, name: str
) -> None:
    ranks = ended(size)
    reason, code, step = STOPPED[name]
    assert ranks.codes(name) == [code] * ranks.size
    said = f": stopped by {reason} after {step} of {STEPS} steps; --resume goes on from there\n"
    assert ranks.text(name).endswith(said)
    assert ranks.text(name).count("stopped by") == 1
    assert "error:" not in ranks.text(name, "err")
    assert f"runs/{name} goes on from step {step}" in ranks.text(f"{name}-resumed")


@pytest.mark.parametrize(("size", "name"), INTERRUPTED)
def test_a_run_that_was_stopped_and_gone_on_with_is_the_whole_run_bit_for_bit(
    ended: Start, size: int, name: str
) -> None:
    ranks = ended(size)
    assert ranks.codes(f"{name}-resumed") == ranks.codes("whole") == [0] * ranks.size
    whole, found = newest(ranks.run("whole")), newest(ranks.run(name))
    assert found.step == whole.step == STEPS
    assert len(bits(whole)) > 8
    assert bits(found) == bits(whole)
    assert ranks.losses(name) == ranks.losses("whole")
    assert ranks.result(name) == ranks.result("whole")


def test_the_validation_split_is_evaluated_each_epoch_and_the_test_split_once(
    ended: Start,
) -> None:
    two = ended(2)
    evaluated = [(step, split) for step, split, _ in two.losses("whole") if split != "train"]
    assert evaluated == [
        *((step, "validation") for step in (11, 21, STEPS)), (STEPS, "test"),
    ]  # fmt: skip
    assert two.result("whole")["best"]["split"] == "validation"


@pytest.mark.parametrize("size", [1, 4])
def test_a_run_of_two_ranks_goes_on_with_the_same_losses_on_one_and_on_four(
    ended: Start, size: int
) -> None:
    found, whole = ended(size), ended(2)
    assert found.codes("handed") == [0] * size
    places, losses = zip(*[(line[:2], line[2]) for line in found.losses("handed")], strict=True)
    wanted = [line[2] for line in whole.losses("whole")]
    assert list(places) == [line[:2] for line in whole.losses("whole")]
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    assert list(losses) != wanted, "or nothing was summed in another order"


# Only on two ranks


def test_checkpoints_by_time_are_agreed_and_written_by_one_rank_of_all_hosts(ended: Start) -> None:
    two = ended(2)
    assert two.codes("saves") == [0, 0]
    run = two.run("saves")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        f"step-{step:08d}" for step in (3, 4, 5)
    ]
    assert len(list((run / "tensorboard").iterdir())) == 1
    assert [line["step"] for line in metrics(run) if line["split"] == "train"] == [0, 1, 2, 3, 4]
    assert two.text("saves").count("ranks: ") == 1


def test_early_stop_ends_all_ranks_at_one_step_and_the_best_is_kept(ended: Start) -> None:
    two = ended(2)
    assert two.codes("early") == two.codes("early-resumed") == [0, 0]
    steps = [json.loads((two.out / f"early-{rank}.steps").read_text()) for rank in range(2)]
    evaluated = [line for line in metrics(two.run("early")) if line["split"] == "validation"]
    before, last = evaluated[-2:]
    assert (last["accuracy"], -last["loss"]) <= (before["accuracy"], -before["loss"])
    assert steps == [last["step"]] * 2
    assert last["step"] < 90
    result = two.result("early")
    assert (result["step"], result["best"]["step"]) == (last["step"], before["step"])
    assert result["best"]["loss"] == before["loss"]
    best = newest(two.run("early") / "best")
    assert (best.step, newest(two.run("early")).step) == (before["step"], last["step"])
    assert f"stops early: no evaluation since step {best.step} was better" in two.text("early")
    assert f"all {last['step']} steps are done already" in two.text("early-resumed")


def test_what_ranks_wait_for_between_steps_is_never_judged_as_a_step(ended: Start) -> None:
    two = ended(2)
    found = [json.loads((two.out / f"early-{rank}.watch").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    assert set(found[0]["doing"]) == {
        "starting", "starting a trace", "writing summaries", "evaluating",
        "writing an evaluation", "saving a checkpoint", "writing a trace", "writing the result",
    }  # fmt: skip
    assert list((two.run("early") / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb"))


def test_a_run_that_goes_on_keeps_its_watchdogs_limit(ended: Start) -> None:
    two = ended(2)
    for report in ("early", "early-resumed"):
        for rank in range(2):
            assert json.loads((two.out / f"{report}-{rank}.watch").read_text())["limits"] == [77]


def test_fine_tuning_starts_every_rank_at_the_averages_but_for_another_charsets_outputs(
    ended: Start,
) -> None:
    two = ended(2)
    assert two.codes("taught") == two.codes("tuned") == [0, 0]
    starts = [newest(two.out / f"tuned-{rank}") for rank in range(2)]
    assert bits_of(starts[0].weights) == bits_of(starts[1].weights)
    averages, drawn = newest(two.run("taught")).ema, {"characters/kernel", "characters/bias"}
    assert len(averages) > 20
    for held in (starts[0].weights, starts[0].ema):
        for name in averages.keys() - drawn:
            assert np.array_equal(held[name], averages[name]), name
    assert starts[0].weights["characters/kernel"].shape[1] == 63
    assert not any(array.any() for array in starts[0].optimizer.values())
    lines = two.text("tuned").splitlines()
    at = lines.index("starts from the moving averages of runs/taught, step 2")
    assert lines[at + 1] == (
        "drawn anew, since they have another shape there: characters/kernel, characters/bias"
    )


def bits_of(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def test_a_run_of_another_model_is_nothing_to_start_from(ended: Start) -> None:
    two = ended(2)
    assert two.codes("tuned_linear") == [2, 2]
    assert two.text("tuned_linear", "err").splitlines()[-1:] == [
        "error: CONFIG: --init-from: runs/taught is a run of another model; "
        "name a run of the same --model"
    ]
    assert not two.run("tuned_linear").exists()


# What a scheduler sends to mpirun


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_signal_to_mpirun_reaches_all_ranks(
    tmp_path: Path, kill_when: Callable[..., int | None], when: str
) -> None:
    write_set(tmp_path / "set", train=texts(40), test=texts(9))
    run, log = tmp_path / "runs" / "captcha", tmp_path / "log"

    def has_come() -> bool:
        return ": step 3," in log.read_text() if when != "before" else "ranks: " in log.read_text()

    command = [
        "python", SCRIPT, "--data", "set", "--model", "linear", "--global-batch", "4",
        "--steps", "100000", "--log-every", "1",
    ]  # fmt: skip
    options = {"np": 2, "cwd": tmp_path, "log": log, "number": signal.SIGUSR1}
    assert kill_when(has_come, command, **options) == 143
    if when == "before":
        assert "ended by SIGUSR1" in log.read_text()
        assert not run.exists()
    else:
        (step,) = re.findall(r"stopped by SIGUSR1 after (\d+) of 100000 steps", log.read_text())
        assert newest(run).step == int(step)
