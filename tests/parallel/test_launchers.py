"""One run under every launcher, from any folder, killed in the middle and gone on with."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import TEST, metrics

from hvd_train import checkpoint

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "hvd_train" / "captcha.py"
STEPS, EVERY = 60, 20
FLAGS = [
    "--global-batch", "10", "--steps", STEPS, "--checkpoint-every", EVERY, "--log-every", "1",
    "--eval-every", "2",
]  # fmt: skip
EVALUATED = [21, 41, 60]
"""The first steps after 2 and 4 epochs of 101 examples, and the last."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that ended, and what it printed."""

    folder: Path
    stdout: str
    stderr: str

    def lines(self, split: str) -> list[tuple[int, float]]:
        """Step and loss of each line of metrics.jsonl about a split."""
        return [(m["step"], m["loss"]) for m in metrics(self.folder) if m["split"] == split]

    @property
    def result(self) -> dict[str, Any]:
        """What eval.json says."""
        return dict(json.loads((self.folder / "eval.json").read_text()))

    @property
    def arrays(self) -> dict[str, tuple[str, bytes]]:
        """Type and bits of every array of the last checkpoint."""
        saved = checkpoint.read(checkpoint.folder_of(self.folder, STEPS))
        return {
            f"{group}/{name}": (str(array.dtype), np.asarray(array).tobytes())
            for group in ("weights", "optimizer", "ema")
            for name, array in getattr(saved, group).items()
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Commands:
    """Ways to start processes, from tests/conftest.py."""

    run_cli: Callable[..., Any]
    mpirun: Callable[..., Any]
    horovodrun: Callable[..., Any]
    kill_when: Callable[..., None]


@pytest.fixture(scope="session")
def commands(
    run_cli: Callable[..., Any],
    mpirun: Callable[..., Any],
    horovodrun: Callable[..., Any],
    kill_when: Callable[..., None],
) -> Commands:
    return Commands(run_cli=run_cli, mpirun=mpirun, horovodrun=horovodrun, kill_when=kill_when)


def ended(done: Any, folder: Path) -> Run:
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Run(folder, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def alone(sets: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Run:
    """The uninterrupted run of one process, by the command of the README."""
    runs = tmp_path_factory.mktemp("alone")
    flags = [*FLAGS, "--data", sets / "captcha", "--runs-dir", runs]
    done = commands.run_cli(["python", "hvd_train/captcha.py", *flags], cwd=ROOT)
    return ended(done, runs / "captcha")


@pytest.fixture(scope="session")
def on_two(sets: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Run:
    """The uninterrupted run of two ranks under mpirun."""
    runs = tmp_path_factory.mktemp("mpirun")
    flags = [*FLAGS, "--data", sets / "captcha", "--runs-dir", runs]
    done = commands.mpirun(2, ["python", "hvd_train/captcha.py", *flags], cwd=ROOT)
    return ended(done, runs / "captcha")


@pytest.fixture(scope="session")
def by_horovodrun(sets: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Run:
    """Two ranks under horovodrun, with a thread setting of the user."""
    runs = tmp_path_factory.mktemp("horovodrun")
    flags = [*FLAGS, "--data", sets / "captcha", "--runs-dir", runs]
    command = ["python", "hvd_train/captcha.py", *flags]
    done = commands.horovodrun(2, command, cwd=ROOT, env={"OMP_NUM_THREADS": "3"})
    return ended(done, runs / "captcha")


@pytest.fixture(scope="session")
def by_gloo(sets: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Run:
    """Two ranks under horovodrun --gloo, by `hvd_train captcha` and from another folder."""
    cwd = tmp_path_factory.mktemp("gloo")
    flags = [*FLAGS, "--data", sets / "captcha"]
    env = {"PYTHONPATH": str(ROOT)}
    command = ["python", "-m", "hvd_train", "captcha", *flags]
    done = commands.horovodrun(2, command, gloo=True, cwd=cwd, env=env)
    return ended(done, cwd / "runs" / "captcha")


def kill_in_the_middle(size: int, cwd: Path, flags: list[Any], commands: Commands) -> None:
    """Starts a run in another folder than the project's and kills it after its 25th step."""
    run = cwd / "runs" / "captcha"

    def in_the_middle() -> bool:
        done = (run / "metrics.jsonl").exists() and len(metrics_so_far(run)) > 25
        return done and checkpoint.folder_of(run, EVERY).exists()

    command = ["python", SCRIPT, *FLAGS, *flags]
    commands.kill_when(in_the_middle, command, np=size, cwd=cwd, log=cwd / "killed.log")
    assert not (run / "eval.json").exists(), "it was done before the kill"
    assert not checkpoint.folder_of(run, STEPS).exists()


def metrics_so_far(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


@pytest.fixture(scope="session")
def alone_resumed(sets: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Run:
    """One process, killed in the middle, and gone on with by `hvd_train captcha --resume`."""
    cwd = tmp_path_factory.mktemp("killed-alone")
    kill_in_the_middle(1, cwd, ["--data", sets / "captcha"], commands)
    command = ["python", "-m", "hvd_train", "captcha", "--resume", "--runs-dir", cwd / "runs"]
    return ended(commands.run_cli(command, cwd=ROOT), cwd / "runs" / "captcha")


@pytest.fixture(scope="session")
def on_two_resumed(sets: Path, tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Run:
    """Two ranks, killed in the middle, and gone on with."""
    cwd = tmp_path_factory.mktemp("killed-two")
    kill_in_the_middle(2, cwd, ["--data", sets / "captcha"], commands)
    done = commands.mpirun(2, ["python", SCRIPT, "--resume"], cwd=cwd)
    return ended(done, cwd / "runs" / "captcha")


ALL = ("alone", "on_two", "by_horovodrun", "by_gloo", "alone_resumed", "on_two_resumed")


@pytest.fixture(params=ALL)
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    return found


# Every launcher


def test_every_start_writes_each_step_once(run: Run) -> None:
    assert [step for step, _ in run.lines("train")] == list(range(STEPS))


def test_every_start_writes_each_evaluation_once(run: Run) -> None:
    assert [step for step, _ in run.lines("test")] == EVALUATED


def test_every_start_gives_the_same_losses(run: Run, alone: Run) -> None:
    found, expected = (np.array([loss for _, loss in r.lines("train")]) for r in (run, alone))
    # Loosely: over 60 steps in float32 a ReLU or two turns out otherwise.
    np.testing.assert_allclose(found, expected, rtol=0.05)
    np.testing.assert_allclose(found[:5], expected[:5], rtol=1e-3)


def test_every_start_evaluates_the_whole_test_split_with_its_ranks(run: Run) -> None:
    assert (run.result["step"], run.result["examples"]) == (STEPS, TEST)
    assert run.result["loss"] == run.lines("test")[-1][1]


@pytest.mark.parametrize(
    ("name", "ranks"), [("alone", 1), ("on_two", 2), ("by_horovodrun", 2), ("by_gloo", 2)]
)
def test_the_result_tells_the_ranks(request: pytest.FixtureRequest, name: str, ranks: int) -> None:
    assert request.getfixturevalue(name).result["ranks"] == ranks


@pytest.mark.parametrize("name", ["alone", "on_two", "by_horovodrun", "by_gloo"])
def test_only_the_chief_writes(request: pytest.FixtureRequest, name: str) -> None:
    folder = request.getfixturevalue(name).folder
    assert len(list((folder / "tensorboard").iterdir())) == 1
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "eval.json", "manifest.json", "metrics.jsonl",
        "tensorboard",
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        f"step-{step:08d}" for step in (20, 40, 60)
    ]


STEP_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step (\d+), loss = \d+\.\d\d, accuracy = \d\.\d{3} "
    r"\(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)"
)


@pytest.mark.parametrize("name", ["alone", "on_two", "by_horovodrun", "by_gloo"])
def test_every_step_line_is_shown_once_with_loss_and_accuracy(
    request: pytest.FixtureRequest, name: str
) -> None:
    shown = [int(step) for step in STEP_LINE.findall(request.getfixturevalue(name).stdout)]
    assert shown == list(range(STEPS))


@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("alone", "ranks: 1, 1 on this host, launcher none; "),
        ("on_two", "ranks: 2, 2 on this host, launcher Open MPI; "),
        ("by_horovodrun", "ranks: 2, 2 on this host, launcher Open MPI; "),
        ("by_gloo", "ranks: 2, 2 on this host, launcher horovodrun --gloo; "),
    ],
)
def test_the_start_tells_ranks_launcher_and_threads_once(
    request: pytest.FixtureRequest, name: str, launcher: str
) -> None:
    stdout = request.getfixturevalue(name).stdout
    assert stdout.count("ranks: ") == 1
    assert launcher + "TF_NUM_INTRAOP_THREADS=" in stdout


def test_threads_that_the_user_set_are_kept_and_told(by_horovodrun: Run, on_two: Run) -> None:
    assert " OMP_NUM_THREADS=3 " in by_horovodrun.stdout
    assert " OMP_NUM_THREADS=3 " not in on_two.stdout


@pytest.mark.parametrize("name", ["alone", "on_two", "by_horovodrun", "by_gloo"])
def test_a_good_run_shows_no_error_and_no_traceback(
    request: pytest.FixtureRequest, name: str
) -> None:
    found = request.getfixturevalue(name)
    text = found.stdout + found.stderr
    assert not any(word in text for word in ("error:", "Traceback", "stalled", "Stall"))


# Killed in the middle and gone on with


@pytest.mark.parametrize(
    ("resumed", "whole"), [("alone_resumed", "alone"), ("on_two_resumed", "on_two")]
)
class TestResume:
    """A run that was killed and gone on with is the uninterrupted run, bit for bit."""

    @pytest.fixture
    def both(self, request: pytest.FixtureRequest, resumed: str, whole: str) -> tuple[Run, Run]:
        return request.getfixturevalue(resumed), request.getfixturevalue(whole)

    def test_weights_optimizer_and_averages_are_the_same_bits(self, both: tuple[Run, Run]) -> None:
        resumed, whole = both
        assert len(whole.arrays) > 40
        assert resumed.arrays == whole.arrays

    def test_every_loss_and_evaluation_is_the_same_number(self, both: tuple[Run, Run]) -> None:
        resumed, whole = both
        for split in ("train", "test"):
            assert resumed.lines(split) == whole.lines(split)

    def test_the_rate_goes_on_where_it_was(self, both: tuple[Run, Run]) -> None:
        rates = [
            [line["learning_rate"] for line in metrics(run.folder) if "learning_rate" in line]
            for run in both
        ]
        assert rates[0] == rates[1]

    def test_the_result_is_the_same(self, both: tuple[Run, Run]) -> None:
        resumed, whole = (run.result for run in both)
        of_the_process = {"time": "", "memory_mib": [], "seconds": []}
        assert {**resumed, **of_the_process} == {**whole, **of_the_process}

    def test_it_goes_on_from_the_last_checkpoint_and_says_so(self, both: tuple[Run, Run]) -> None:
        resumed, _ = both
        (step,) = re.findall(r"captcha goes on from step (\d+)", resumed.stdout)
        assert int(step) in (EVERY, 2 * EVERY)


# Faults under a launcher: one line, not 0, nothing left

NOWHERE = (
    "error: CONFIG: nowhere: no data set there; make one: data_tools make-captcha captcha-images; "
    "data_tools captcha-to-tfrecord captcha-images captcha-images/labels.csv datasets/captcha"
)


def error_lines(text: str) -> list[str]:
    """The error lines in what a launcher passed on, without the rank that it puts before."""
    return re.findall(r"^(?:\[[\d,]+\]<stderr>: ?)?(error:.*?)\r?$", text, re.MULTILINE)


def fails(commands: Commands, launcher: str, cwd: Path) -> Any:
    command = ["python", SCRIPT, "--data", "nowhere"]
    if launcher == "none":
        return commands.run_cli(command, cwd=cwd)
    if launcher == "mpirun":
        return commands.mpirun(2, command, cwd=cwd)
    return commands.horovodrun(2, command, gloo=launcher == "horovodrun --gloo", cwd=cwd)


@pytest.mark.parametrize("launcher", ["none", "mpirun", "horovodrun", "horovodrun --gloo"])
def test_a_fault_is_one_line_under_every_launcher_and_leaves_nothing(
    tmp_path: Path, commands: Commands, launcher: str
) -> None:
    done = fails(commands, launcher, tmp_path)
    assert error_lines(done.stderr) == [NOWHERE]
    assert done.rc == 2 if launcher == "none" else done.rc != 0
    if launcher != "horovodrun --gloo":  # which shows one of its own whenever a rank fails
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_horovod_that_does_not_see_the_other_ranks_is_config_before_anything_is_written(
    sets: Path, tmp_path: Path, commands: Commands
) -> None:
    command = ["python", SCRIPT, "--data", sets / "captcha"]
    env = {"HOROVOD_CONTROLLER": "gloo"}
    done = commands.mpirun(2, command, cwd=tmp_path, env=env)
    assert done.rc != 0
    # The ranks can't agree who speaks.
    assert set(error_lines(done.stderr)) == {
        "error: CONFIG: Open MPI: the launcher started 2 processes, Horovod sees 1; "
        "unset HOROVOD_CONTROLLER, use horovodrun, or a Horovod that was built for this MPI"
    }
    assert list(tmp_path.iterdir()) == []


def test_two_ranks_start_under_each_launcher(mpirun, horovodrun) -> None:
    show = ["python", "-c", "import os; print('size ' + os.environ['OMPI_COMM_WORLD_SIZE'])"]
    assert mpirun(2, show).stdout == "size 2\nsize 2\n"
    assert horovodrun(2, show).stdout.count("size 2") == 2
    show = ["python", "-c", "import os; print('size ' + os.environ['HOROVOD_SIZE'])"]
    assert horovodrun(2, show, gloo=True).stdout.count("size 2") == 2
