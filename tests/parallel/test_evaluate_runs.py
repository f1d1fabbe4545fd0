"""`hvd_train evaluate` finds on any number of ranks what the trainer found, and tells it once."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bad_input import DIGITS, MAKE, UPPER, host, sha256
from small_runs import TEST, TRAIN, once

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "hvd_train"]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: "


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What evaluate_ranks.py left."""

    out: Path
    sets: Path
    size: int

    def codes(self, case: str) -> list[int]:
        """The exit codes by rank."""
        files = [self.out / f"{case}-{rank}.code" for rank in range(self.size)]
        return [json.loads(file.read_text()) for file in files]

    def text(self, case: str, suffix: str = "out") -> str:
        """What all ranks printed."""
        files = [self.out / f"{case}-{rank}.{suffix}" for rank in range(self.size)]
        return "".join(file.read_text() for file in files)

    def lines(self, case: str) -> list[str]:
        """What all ranks printed after the first line, of the launcher, without the times."""
        first, *rest = self.text(case).splitlines()
        assert first.startswith("ranks: ")
        return [re.sub(f"^{TIME}", "TIME: ", line) for line in rest]

    def result(self, case: str) -> dict[str, Any]:
        """What eval.json said after the case."""
        return dict(json.loads((self.out / f"{case}.json").read_text()))


Start = Callable[[int], Evaluated]


@pytest.fixture(scope="module")
def evaluated(
    sets: Path,
    tmp_path_factory: pytest.TempPathFactory,
    run_cli: Callable[..., Any],
    mpirun: Callable[..., Any],
) -> Start:
    """`evaluated(size)` starts evaluate_ranks.py on so many ranks, once."""

    def start(size: int) -> Evaluated:
        out = tmp_path_factory.mktemp(f"evaluate-{size}")
        command = ["python", Path(__file__).parent / "evaluate_ranks.py", sets, out]
        done = run_cli(command, timeout=300) if size == 1 else mpirun(size, command, timeout=300)
        assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return Evaluated(out, sets, size)

    return once(start)


@pytest.fixture(params=[1, 2])
def ranks(evaluated: Start, request: pytest.FixtureRequest) -> Evaluated:
    return evaluated(request.param)


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def rows(positions: list[float], examples: int) -> list[str]:
    return [
        f"  position {n}  {share:.3f}  {round(share * examples)} of {examples}"
        for n, share in enumerate(positions, start=1)
    ]


def test_it_finds_what_the_trainer_found_and_says_it_once_in_its_words(ranks: Evaluated) -> None:
    assert ranks.codes("plain") == [0] * ranks.size
    trained, found = ranks.result("trained"), ranks.result("plain")
    assert found["time"] > trained["time"]
    assert found["loss"] == pytest.approx(trained["loss"], rel=1e-6)
    assert without(found, "time", "loss") == without(trained, "time", "loss")
    assert found["examples"] == TEST
    assert ranks.lines("plain") == [
        f"data: {ranks.sets / 'captcha'}, {TEST} examples in test",
        f"TIME: accuracy = {found['accuracy']:.3f}",
        f"TIME: test: {found['correct']} of {TEST} right after 6 steps",
        *rows(found["accuracy_by_position"], TEST),
    ]
    assert re.search(f"^{TIME}accuracy = ", ranks.text("plain"), re.MULTILINE)
    assert "error:" not in ranks.text("plain", "err")


def test_one_and_two_ranks_count_the_same_of_the_same_run(
    evaluated: Start, run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    """The run that two ranks trained, evaluated by one."""
    two = evaluated(2)
    run = shutil.copytree(two.out / "runs" / "captcha", tmp_path / "captcha")
    done = run_cli(["hvd_train", "evaluate", run, "--split", "train"])
    assert done.rc == 0, done.stderr
    found = json.loads((run / "eval.json").read_text())["evaluations"]
    (alone,) = [one for one in found if one["split"] == "train"]
    (together,) = [one for one in two.result("train")["evaluations"] if one["split"] == "train"]
    assert alone["time"] > together["time"]
    assert alone["loss"] == pytest.approx(together["loss"], rel=1e-6)
    assert without(alone, "time", "loss") == without(together, "time", "loss")
    assert alone["examples"] == TRAIN


def test_both_tells_the_averages_and_the_weights_themselves(ranks: Evaluated) -> None:
    assert ranks.codes("both") == [0] * ranks.size
    found = ranks.result("both")
    (own,) = found["evaluations"]
    assert (own["split"], own["weights"], own["examples"]) == ("test", "weights", TEST)
    assert own["loss"] != pytest.approx(found["loss"], rel=1e-3)
    assert without(found, "time", "evaluations") == without(ranks.result("plain"), "time")
    assert ranks.lines("both")[1:] == [
        f"TIME: accuracy = {found['accuracy']:.3f}",
        f"TIME: test: {found['correct']} of {TEST} right after 6 steps",
        *rows(found["accuracy_by_position"], TEST),
        f"TIME: accuracy = {own['accuracy']:.3f}, without moving averages",
        f"TIME: test: {own['correct']} of {TEST} right after 6 steps, without moving averages",
        *rows(own["accuracy_by_position"], TEST),
    ]


def test_other_splits_and_sets_are_told_as_such_and_kept_beside_the_run_s_figure(
    ranks: Evaluated,
) -> None:
    assert ranks.codes("train") == ranks.codes("other_data") == [0] * ranks.size
    found = ranks.result("other_data")
    of_run = ranks.result("plain")
    assert without(found, "time", "evaluations") == without(of_run, "time")
    _, train, other = found["evaluations"]
    assert (train["split"], train["weights"], train["examples"]) == (
        "train", "moving averages", TRAIN,
    )  # fmt: skip
    assert (other["split"], other["weights"], other["examples"]) == ("test", "weights", TEST - 1)
    assert train["data"] == of_run["data"] == sha256(ranks.sets / "captcha" / "manifest.json")
    assert other["data"] == sha256(ranks.sets / "fewer" / "manifest.json")
    assert ranks.lines("train")[:2] == [
        f"data: {ranks.sets / 'captcha'}, {TRAIN} examples in train",
        f"TIME: train accuracy = {train['accuracy']:.3f}",
    ]
    assert ranks.lines("other_data")[0] == (
        f"data: {ranks.sets / 'fewer'}, {TEST - 1} examples in test, another data set than the "
        "run's"
    )


def test_a_finished_run_is_watched_once(ranks: Evaluated) -> None:
    assert ranks.codes("watched") == [0] * ranks.size
    assert ranks.lines("watched") == ranks.lines("plain")


def test_a_damaged_newest_is_passed_over_and_said_so(ranks: Evaluated) -> None:
    assert ranks.codes("newest_damaged") == [0] * ranks.size
    lines = ranks.lines("newest_damaged")
    assert lines[1] == skipped("newest_damaged", 6)
    assert re.fullmatch(rf"TIME: test: \d+ of {TEST} right after 4 steps", lines[3])
    assert lines[-1] == "eval.json stays that of step 6"
    result = json.loads((ranks.out / "runs" / "newest_damaged" / "eval.json").read_text())
    assert result == ranks.result("trained")


def skipped(run: str, step: int) -> str:
    return (
        f"skipped runs/{run}/checkpoints/step-{step:08d}: the checkpoint is damaged "
        "(weights.npz has another SHA-256 than state.json says)"
    )


def test_tensorboard_shows_numbers_and_confusion_by_split(ranks: Evaluated) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = ranks.out / "runs" / "captcha" / "tensorboard"
    tags = {"loss", "accuracy", "confusion"}
    for name, splits in (("evaluate", {"test", "train"}), ("evaluate-no-ema", {"test"})):
        shown = EventAccumulator(str(folder / name)).Reload()
        assert set(shown.Tags()["tensors"]) == {f"{s}/{tag}" for s in splits for tag in tags}
        assert {event.step for event in shown.Tensors("test/accuracy")} == {6}


FIX = "name another data set with --data"
LINES = {
    "no_folder": (3, "INPUT: runs/nothing: no such folder; name one such as runs/captcha"),
    "no_run": (
        3, "INPUT: runs: no config.yaml, so no run was started in it by this version; "
        "name a folder such as runs/captcha",
    ),
    "no_checkpoint": (
        3, "INPUT: runs/no_checkpoint: it has no checkpoint; "
        "wait for its first (--checkpoint-minutes), or train again if it has ended",
    ),
    "no_data": (2, f"CONFIG: nowhere: no data set there; {MAKE}"),
    "other_kind": (
        2, "CONFIG: {sets}/cifar10: a data set of kind classes, captcha needs captcha; "
        "name another with --data",
    ),
    "other_charset": (
        2, f"CONFIG: runs/captcha: the checkpoint's charset is '{UPPER}', the data set's is "
        f"'{DIGITS}{UPPER}{UPPER.lower()}'; {FIX}",
    ),
    "other_size": (2, f"CONFIG: wide: images of 160x20x3, the run's are 80x20x3; {FIX}"),
    "other_lengths": (
        2, f"CONFIG: long: labels of 4 to 5 characters, the run's have 4 to 4; {FIX}"
    ),
    "unknown_split": (
        2, "CONFIG: {sets}/captcha: no split 'val'; the splits are train, test"
    ),
    "empty_split": (
        2, "CONFIG: empty: the split test has no examples to evaluate on; "
        "convert more images, give it a larger share, or name another with --split",
    ),
    "all_damaged": (
        4, "INTEGRITY: runs/all_damaged/checkpoints: no checkpoint is whole; "
        "start a new run with --name, or bring back a copy",
    ),
    "others_can_write": (
        2, "CONFIG: runs/others_can_write: other users can write to the folder; "
        "check what is in it, then: chmod o-w runs/others_can_write",
    ),
    "no_task": (
        2, "CONFIG: task: photos:TASK can't be imported: No module named 'photos'; "
        "write it as MODULE:NAME, and start in the folder of that module",
    ),
    "both_and_one": (
        2, "CONFIG: command line: --both evaluates without moving averages too; leave --no-ema "
        "out; see hvd_train evaluate --help",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*LINES, "broken_shard"])
def test_what_is_wrong_is_one_line_of_one_rank(ranks: Evaluated, case: str) -> None:
    if case == "broken_shard":
        path = next((ranks.out / "broken").glob("*-test.tfrecord-00000-*"))
        wanted = next((ranks.sets / "captcha").glob("*-test.tfrecord-00000-*"))
        code, line = 4, (
            f"INTEGRITY: broken/{path.name}: SHA-256 {sha256(path)[:12]}..., the manifest says "
            f"{sha256(wanted)[:12]}...; run data_tools verify to find the record, then convert "
            "the data set again"
        )  # fmt: skip
    else:
        code, line = LINES[case]
    said = [one for one in ranks.text(case, "err").splitlines() if one.startswith("error: ")]
    assert said == ["error: " + line.format(sets=ranks.sets)]
    assert ranks.codes(case) == [code] * ranks.size
    assert "Traceback" not in ranks.text(case, "err")
    assert "right after" not in ranks.text(case)
    assert ranks.result(case) == ranks.result("watched")
    if case == "all_damaged":
        before = [skipped("all_damaged", step) for step in (6, 4, 2)]
        assert ranks.text(case, "err").splitlines()[-4:-1] == before


def test_ranks_with_other_flags_are_named(evaluated: Start) -> None:
    two = evaluated(2)
    assert two.codes("other_flags") == [2, 2]
    assert two.text("other_flags", "err").splitlines()[-1] == (
        f"error: CONFIG: flags: rank 1 on {host()} has split = train, rank 0 has None; "
        "give every rank the same flags"
    )


def test_every_case_has_its_line_and_nothing_unfinished_stays(ranks: Evaluated) -> None:
    good = {"trained", "plain", "both", "train", "other_data", "watched", "newest_damaged"}
    told = good | {*LINES, "broken_shard"} | ({"other_flags"} if ranks.size > 1 else set())
    assert {path.stem for path in ranks.out.glob("*.json")} == told
    assert list(ranks.out.rglob("*.incomplete")) == []


# Beside a trainer


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_is_watched_while_it_trains_to_its_end(
    sets: Path, mpirun: Callable[..., Any], tmp_path: Path
) -> None:
    """The trainer starts late, rests until its first checkpoint was evaluated, removes old ones."""
    run, steps = tmp_path / "runs" / "captcha", 300
    train = [
        *COMMAND, "captcha", "--data", str(sets / "captcha"), "--runs-dir", str(run.parent),
        "--model", "linear", "--global-batch", "10", "--steps", str(steps), "--eval-every", "0",
        "--checkpoint-every", "5", "--keep-checkpoints", "1", "--summary-every", "0",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "HVD_TRAIN_DATA"}

    def train_and_rest() -> None:
        deadline = time.monotonic() + 120
        while not (log.exists() and waits in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with subprocess.Popen(
            train, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as trainer:
            try:
                wait_for(lambda: bool(list(run.glob("checkpoints/step-*5"))), trainer)
                trainer.send_signal(signal.SIGSTOP)
                wait_for(lambda: (run / "eval.json").exists(), trainer)
                trainer.send_signal(signal.SIGCONT)
                codes.append(trainer.wait(120))
            finally:
                trainer.kill()

    log, codes = tmp_path / "log", list[int]()
    waits = f"waiting until a run starts in {run}\n"
    helper = threading.Thread(target=train_and_rest)
    helper.start()
    watch = ["hvd_train", "evaluate", run, "--watch", "--interval", "0.01"]
    done = mpirun(2, ["sh", "-c", 'exec "$@" >>"$0"', log, *watch], cwd=tmp_path)
    helper.join()
    assert codes == [0]
    assert done.rc == 0, done.stderr
    stdout = log.read_text()
    assert stdout.count(waits) == 1
    assert "error:" not in done.stderr
    told = [int(step) for step in re.findall(r"right after (\d+) steps", stdout)]
    assert told == sorted(set(told))
    assert len(told) > 1
    assert told[-1] == steps
    assert all(step % 5 == 0 for step in told)
    assert "skipped" not in stdout
    assert stdout.count(": accuracy = ") == len(told)
    result = json.loads((run / "eval.json").read_text())
    assert (result["step"], result["ranks"], "seconds" in result) == (steps, 1, True)
    accuracy = re.findall(r": accuracy = (.*)", stdout)[-1]
    assert f"{result['accuracy']:.3f}" == accuracy


def test_ctrl_c_ends_a_watch_with_130(
    evaluated: Start, kill_when: Callable[..., int | None], tmp_path: Path
) -> None:
    run = shutil.copytree(evaluated(2).out / "runs" / "captcha", tmp_path / "captcha")
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    (run / "eval.json").unlink()
    log = tmp_path / "log"
    command = ["hvd_train", "evaluate", run, "--watch", "--interval", "0.01"]
    code = kill_when(
        lambda: "right after 4 steps" in log.read_text() and (run / "eval.json").exists(),
        command, log=log, number=signal.SIGINT,
    )  # fmt: skip
    assert code == 130
    result = json.loads((run / "eval.json").read_text())
    assert (result["step"], result["examples"], "seconds" in result) == (4, TEST, False)
    assert log.read_text().count("right after") == 1
    assert log.read_text().endswith("ended by SIGINT\n")
