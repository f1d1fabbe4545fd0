"""Bad input is one line on one rank, the same on one and on two, and nothing is left behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bad_input
import pytest
from bad_input import CASES, GOOD, STOPPED, WHOLE, Place
from small_runs import TEST, metrics, once

EXIT_CODES = {"CONFIG": 2, "INPUT": 3, "LABEL": 3, "INTEGRITY": 4, "SPACE": 5, "NUMERIC": 8}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a case ended on every rank."""

    place: Place
    codes: list[object]
    outputs: list[str]
    errors: list[str]
    before: dict[str, str]

    @property
    def error_lines(self) -> list[str]:
        """What all ranks together wrote to standard error from the first fault or error on."""
        lines = [line for text in self.errors for line in text.splitlines()]
        return [line for line in lines if line.startswith(("error:", "skipped "))]

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.place.cwd / "runs" / "captcha"


@pytest.fixture(scope="session")
def ended(
    sets: Path,
    tmp_path_factory: pytest.TempPathFactory,
    run_cli: Callable[..., Any],
    mpirun: Callable[..., Any],
) -> Callable[[str, int], Ended]:
    """`ended(name, size)` tells how a case ended on so many ranks; all run in one start a size."""

    def start(size: int) -> Path:
        out = tmp_path_factory.mktemp(f"bad-{size}")
        (out / "sets").symlink_to(sets)
        command = ["python", Path(__file__).parent / "bad_ranks.py", sets, out]
        done = run_cli(command, timeout=300) if size == 1 else mpirun(size, command, timeout=300)
        # A case that broke the ranks leaves no report, and then only its own tests fail.
        print(done.rc, done.stdout[-3000:], done.stderr[-3000:])
        return out

    found = once(start)

    def find(name: str, size: int) -> Ended:
        out = found(size)

        def read(rank: int, suffix: str) -> str:
            return (out / f"{name}-{rank}").with_suffix(suffix).read_text()

        return Ended(
            place=Place(cwd=out / name, sets=sets, out=out, size=size),
            codes=[json.loads(read(rank, ".code")) for rank in range(size)],
            outputs=[read(rank, ".out") for rank in range(size)],
            errors=[read(rank, ".err") for rank in range(size)],
            before=json.loads((out / f"{name}.json").read_text()),
        )

    return find


def cases(*, all_of_them: bool = True) -> list[Any]:
    return [
        pytest.param(name, size, id=f"{name}-{size}")
        for size in (1, 2)
        for name, case in CASES.items()
        if size in case.sizes and (case.unchanged or all_of_them)
    ]


@pytest.fixture(params=(1, 2), ids="{} ranks".format)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize(("name", "size"), cases())
def test_the_whole_message_is_said_once_by_all_ranks_together(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    found, case = ended(name, size), CASES[name]
    place = found.place
    assert found.error_lines == [*case.faults(place), case.line(place)]


@pytest.mark.parametrize(("name", "size"), cases())
def test_the_error_is_the_last_line_and_no_traceback_is_shown(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    found, case = ended(name, size), CASES[name]
    (text,) = [text for text in found.errors if "error:" in text]
    assert text.splitlines()[-1] == case.line(found.place)
    assert not any("Traceback" in text for text in found.errors)


@pytest.mark.parametrize(("name", "size"), cases())
def test_every_rank_ends_with_the_exit_code_of_the_kind(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    found, case = ended(name, size), CASES[name]
    kind = case.line(found.place).split(": ")[1]
    assert EXIT_CODES[kind] == case.code
    assert found.codes == [case.code] * size


@pytest.mark.parametrize(("name", "size"), cases(all_of_them=False))
def test_nothing_is_left_behind_or_changed(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    found = ended(name, size)
    assert bad_input.files_below(found.place.cwd) == found.before


# Runs that end well, though something was wrong


@pytest.mark.parametrize("name", GOOD)
def test_a_run_that_can_go_on_ends_well_on_every_rank(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    found = ended(name, size)
    assert found.codes == [0] * size
    assert found.error_lines == []


def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_is_used(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    found = ended("resume_newest_damaged", size)
    lines = found.outputs[0].splitlines()
    at = lines.index(bad_input.damaged_line(found.place, 6))
    assert lines[at + 1] == "runs/captcha goes on from step 4"


def test_what_goes_on_from_an_older_checkpoint_is_the_uninterrupted_run(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    whole, found = ended(WHOLE, size), ended("resume_newest_damaged", size)
    assert steps(found.run) == steps(whole.run)
    assert result(found.run) == result(whole.run)


def steps(run: Path) -> list[tuple[object, ...]]:
    return [(line["split"], line["step"], line["loss"]) for line in metrics(run)]


def result(run: Path) -> dict[str, Any]:
    found = json.loads((run / "eval.json").read_text())
    del found["time"], found["memory_mib"], found["seconds"]
    return dict(found)


def test_resuming_a_finished_run_measures_it_again_and_writes_no_line_twice(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    whole, found = ended(WHOLE, size), ended("resume_finished", size)
    assert "runs/captcha goes on from step 6" in found.outputs[0].splitlines()
    assert "all 6 steps are done already" in found.outputs[0]
    assert (found.run / "metrics.jsonl").read_text() == (whole.run / "metrics.jsonl").read_text()
    assert result(found.run) == result(whole.run)


def test_resume_without_a_run_starts_fresh_and_says_so(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    whole, found = ended(WHOLE, size), ended("resume_nothing", size)
    assert "runs/captcha has nothing to go on with: starts fresh" in found.outputs[0].splitlines()
    assert steps(found.run) == steps(whole.run)


def test_only_the_chief_speaks(ended: Callable[[str, int], Ended], size: int) -> None:
    outputs = ended(WHOLE, size).outputs
    assert f"of {TEST} right after 6 steps" in outputs[0]
    assert outputs[1:] == [""] * (size - 1)


def test_the_remainder_of_an_epoch_and_the_rate_are_told(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    whole = ended(WHOLE, size)
    share = "10 a rank on 1 rank" if size == 1 else "5 a rank on 2 ranks"
    lines = whole.outputs[0].splitlines()
    assert f"data: {whole.place.data}, 101 to train on, 53 to test on, 80x20x3" in lines
    assert (
        f"batch: 10 a step, {share}; 6 steps = 0.5941 epochs; the order goes on over an epoch's "
        "end, so no example is dropped or repeated" in lines
    )
    assert (
        "adam, learning rate 0.00046875 = 0.006 x 10 / 128 after 1 epochs of warm-up, "
        "cosine schedule" in lines
    )


def test_a_full_disk_leaves_nothing_half_written(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    found = ended("full_disk", size)
    assert list((found.run / "checkpoints").iterdir()) == []
    assert not (found.run / "eval.json").exists()


# Runs that stop in the middle


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_that_must_stop_stops_on_all_ranks_with_one_line(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    found, case = ended(name, size), STOPPED[name]
    assert found.error_lines == [case.line(found.place)]
    assert found.codes == [case.code] * size
    assert not (found.run / "eval.json").exists()


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_that_stops_keeps_its_last_good_checkpoint(
    ended: Callable[[str, int], Ended], name: str, size: int
) -> None:
    from hvd_train import checkpoint

    found = ended(name, size)
    skipped: list[str] = []
    newest = checkpoint.restore_newest(found.run, skipped=skipped)
    assert newest is not None
    shown = [line["step"] for line in metrics(found.run) if line["split"] == "train"]
    assert newest.step == max(shown) + 1
    assert skipped == []
    for group in (newest.weights, newest.optimizer, newest.ema):
        assert all(bad_input.is_finite(array) for array in group.values())


def test_the_metrics_of_a_run_that_diverges_hold_numbers_only(
    ended: Callable[[str, int], Ended], size: int
) -> None:
    text = (ended("rate_of_1e6", size).run / "metrics.jsonl").read_text()
    assert '"loss"' in text
    assert not any(word in text for word in ("NaN", "Infinity"))
