"""What a run has measured is read back from files that may be cut, damaged or still written."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def history(tf: ModuleType) -> ModuleType:
    from hvd_train import history

    return history


def line(second: float, split: str = "train", step: int = 0, **numbers: float) -> str:
    """A line of metrics.jsonl, so many seconds after noon."""
    time = f"2026-12-01 12:{int(second) // 60:02}:{second % 60:09.6f}"
    return json.dumps({"step": step, "split": split, "time": time, **numbers}) + "\n"


def write(folder: Path, *lines: str) -> Path:
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_lines_that_are_cut_damaged_or_of_another_form_are_left_out(
    history: ModuleType, tmp_path: Path
) -> None:
    whole = line(0, loss=2.5, sec_per_batch=1)
    run = write(
        tmp_path, whole, "[]\n", "7\n", "{}\n", "\x00\n", "[" * 9999 + "\n",
        '{"step": "1", "split": "train", "time": "2026-12-01 12:00:00"}\n',
        '{"step": 1, "split": "train", "time": "noon"}\n',
        '{"step": 1, "split": "train", "time": "2026-12-01 12:00:00", "loss": "high"}\n',
        '{"step": 1, "split": "train", "time": "2026-12-01 12:00:00", "loss": NaN}\n',
        '{"step": 1, "split": "train", "time": "2026-12-01 12:00:00", "loss": %s}\n' % ("9" * 400),
        '{"step": 1, "split": "train", "time": "2026-12-01 12:00:00+01:00", "loss": 1}\n',
        line(9, "test", 2, loss=1)[:-9],
    )  # fmt: skip
    found = history.read_lines(run)
    assert [(one["step"], one["split"], one["loss"]) for one in found] == [(0, "train", 2.5)]


def test_a_run_that_has_measured_nothing_is_one_line(history: ModuleType, tmp_path: Path) -> None:
    for make in (lambda: None, lambda: write(tmp_path, "")):
        make()
        with pytest.raises(Exception, match="measured nothing") as raised:
            history.read_lines(tmp_path)
        assert str(raised.value) == (
            f"error: INPUT: {tmp_path}: the run has measured nothing yet; wait for its first step"
        )


def test_pauses_before_a_run_goes_on_are_no_time_of_training(
    history: ModuleType, tmp_path: Path
) -> None:
    run = write(
        tmp_path,
        line(10, step=0, input_wait_sec=0.1, sec_per_batch=5),
        line(12, step=10, input_wait_sec=0.2, sec_per_batch=0.2),
        line(13, "test", 11, loss=1),
        # Stopped here, went on with an evaluation: neither the pause nor that counts.
        line(500, "test", 12, loss=1),
        line(510, step=20, input_wait_sec=0.05, sec_per_batch=4),
        line(512, step=30, input_wait_sec=0.06, sec_per_batch=0.2),
        line(515, "test", 31, loss=1),
    )  # fmt: skip
    elapsed = [one[history.ELAPSED] for one in history.read_lines(run)]
    assert elapsed == [5, 7, 7, 7, 11, 13, 16]


def test_rates_leave_out_the_first_line_unless_it_is_the_only_one(
    history: ModuleType, tmp_path: Path
) -> None:
    lines = [line(n, step=n, examples_per_sec=rate) for n, rate in enumerate((1, 50, 60, 70))]
    assert history.examples_per_sec(history.read_lines(write(tmp_path, *lines))) == 60
    assert history.examples_per_sec(history.read_lines(write(tmp_path, lines[0]))) == 1
    assert history.examples_per_sec(history.read_lines(write(tmp_path, line(0, "test")))) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119.4, "119 s"), (120, "2 min 0 s"), (7260, "2 h 1 min")],
)  # fmt: skip
def test_durations_in_words(history: ModuleType, seconds: float, words: str) -> None:
    assert history.duration(seconds) == words.replace(" ", "\N{NO-BREAK SPACE}")


def test_a_result_of_before_the_run_went_on_is_none_of_its_result(
    history: ModuleType, tmp_path: Path
) -> None:
    result: dict[str, Any] = {"step": 12, "evaluations": []}
    (tmp_path / "eval.json").write_text(json.dumps(result))
    ended = history.read_lines(write(tmp_path, line(0, step=11)))
    goes_on = history.read_lines(write(tmp_path, line(0, step=11), line(1, step=12)))
    assert history.result_of(tmp_path, ended) == result
    assert history.result_of(tmp_path, goes_on) == {}
    (tmp_path / "eval.json").unlink()
    assert history.result_of(tmp_path, ended) == {}
