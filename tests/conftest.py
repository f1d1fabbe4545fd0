"""Fixtures that run our commands and real ranks in subprocesses, and find the real test data.

`run_cli`, `mpirun` and `horovodrun` take a command as a list. A first word `python`, `data_tools`
or `hvd_train` stands for this interpreter and for the two console scripts, installed or not. Each
returns a `Result` and never outlives its timeout: when that passes, every process that the command
started is killed, on whichever process group or session a launcher has put it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TEST_DATA = "HVD_TRAIN_TEST_DATA"
# A test there that didn't run has proved nothing about ranks or hosts: with CI=true it fails.
NEVER_SKIPPED = ("tests/parallel/", "tests/cluster/")
# Marks everything a command starts, since launchers give their children sessions of their own.
MARK = "HVD_TRAIN_TEST_RUN"
# A shell lets its background jobs ignore Ctrl-C, and so would all that the tests start there.
signal.signal(signal.SIGINT, signal.default_int_handler)
CONSOLE_SCRIPT = "import sys; from {0}.cli import main; sys.argv[0] = '{0}'; sys.exit(main())"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a finished command left: its exit code (negative for a signal), output and processes."""

    rc: int
    stdout: str
    stderr: str
    left: Sequence[int] = ()
    """Processes that it had started and that still ran some seconds after its end."""

    @property
    def error(self) -> str:
        """The last line of standard error, where the error contract puts the error line."""
        lines = self.stderr.rstrip("\n").splitlines()
        return lines[-1] if lines else ""


def run_command(
    args: Sequence[object],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
) -> Result:
    """Runs a command to its end.

    Args:
        args: the command; see the module's docstring for the words that stand for something else.
        cwd: the folder it runs in.
        env: variables to set, or to remove where the value is None. HVD_TRAIN_DATA is not passed
            on unless it is named here.
        timeout: in seconds; a command that needs longer fails the test.
    """
    mark = uuid.uuid4().hex
    environ: dict[str, str | None] = {
        **os.environ,
        "HVD_TRAIN_DATA": None,
        **(env or {}),
        MARK: mark,
    }
    process = subprocess.Popen(
        resolve(args), cwd=cwd, text=True, errors="replace", start_new_session=True,
        env={name: value for name, value in environ.items() if value is not None},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        left = still_there(mark)
    except subprocess.TimeoutExpired:
        kill_marked(mark)
        stdout, stderr = process.communicate()
        command = " ".join(map(str, args))
        pytest.fail(f"not done in {timeout} s: {command}\n{stdout[-4000:]}\n{stderr[-4000:]}")
    finally:
        kill_marked(mark)
    return Result(rc=process.returncode, stdout=stdout, stderr=stderr, left=left)


def resolve(args: Sequence[object]) -> list[str]:
    """Puts this interpreter in place of the words that stand for it or for a console script."""
    program, *rest = map(str, args)
    if program == "python":
        return [sys.executable, *rest]
    if program in ("data_tools", "hvd_train"):
        return [sys.executable, "-c", CONSOLE_SCRIPT.format(program), *rest]
    return [program, *rest]


def still_there(mark: str) -> list[int]:
    """The processes whose environment holds the mark, after some seconds in which they may end."""
    needle = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + 10
    while (pids := list(marked_pids(needle))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return pids


def kill_marked(mark: str) -> None:
    """Kills every process whose environment holds the mark, until there are none."""
    needle = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + 10
    while pids := list(marked_pids(needle)):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            pytest.fail(f"processes {pids} can't be killed")
        time.sleep(0.05)


def marked_pids(needle: bytes) -> Iterator[int]:
    """The running processes whose environment holds `needle`; zombies have none left."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (folder / "environ").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


def launcher(name: str) -> str:
    """The launcher of this environment, or the system's where MPI was not installed by pip."""
    found = BIN / name
    return str(found) if found.exists() else shutil.which(name) or str(found)


def launch_env(env: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """The variables for a launcher: it finds its own helpers, and Open MPI runs as root if we do.

    Only tests allow root silently; a user is told by Open MPI and decides.
    """
    allow_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        **(allow_root if os.geteuid() == 0 else {}),
        **(env or {}),
    }


def mpirun_command(np: int, args: Sequence[object]) -> list[object]:
    """The command that runs `np` ranks of a command, more than there are cores if need be."""
    crowded = ["--oversubscribe"] if np > len(os.sched_getaffinity(0)) else []
    return [launcher("mpirun"), "-np", np, *crowded, *resolve(args)]


@pytest.fixture(scope="session")
def run_cli() -> Callable[..., Result]:
    """`run_cli(args, cwd=, env=, timeout=120)` runs a command and returns its Result."""
    return run_command


@pytest.fixture(scope="session")
def mpirun() -> Callable[..., Result]:
    """`mpirun(np, args, cwd=, env=, timeout=180)` runs `np` ranks under plain mpirun."""

    def run(
        np: int,
        args: Sequence[object],
        *,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 180,
        **options: Path,
    ) -> Result:
        return run_command(
            mpirun_command(np, args), env=launch_env(env), timeout=timeout, **options
        )

    return run


@pytest.fixture(scope="session")
def kill_when() -> Callable[..., int | None]:
    """`kill_when(condition, args, np=1, cwd=, log=, timeout=120)` kills a command in the middle.

    It starts the command, under mpirun if `np` is more than 1, and sends SIGKILL to all that it
    started as soon as condition() holds; the test fails if the command ends before. With `number=`
    it sends that signal to the command itself in place of it and returns its exit code.
    """

    def run(
        condition: Callable[[], bool],
        args: Sequence[object],
        *,
        np: int = 1,
        cwd: Path = ROOT,
        log: Path,
        timeout: float = 120,
        number: signal.Signals | None = None,
    ) -> int | None:
        mark = uuid.uuid4().hex
        command = args if np == 1 else mpirun_command(np, args)
        environ = {**os.environ, **launch_env(None), MARK: mark}
        environ.pop("HVD_TRAIN_DATA", None)
        deadline = time.monotonic() + timeout
        with log.open("w") as file, subprocess.Popen(
            resolve(command), cwd=cwd, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                while not condition():
                    if process.poll() is not None or time.monotonic() > deadline:
                        pytest.fail(f"the moment to kill never came\n{log.read_text()[-4000:]}")
                    time.sleep(0.005)
                if number is None:
                    return None
                process.send_signal(number)
                return process.wait(timeout)
            finally:
                kill_marked(mark)

    return run


@pytest.fixture(scope="session")
def horovodrun() -> Callable[..., Result]:
    """`horovodrun(np, args, gloo=False, cwd=, env=, timeout=180)` runs `np` ranks under it.

    horovodrun puts `[1,RANK]<stdout>:` or `[1,RANK]<stderr>:` before each line of the ranks.
    """

    def run(
        np: int,
        args: Sequence[object],
        *,
        gloo: bool = False,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 180,
        **options: Path,
    ) -> Result:
        controller = ["--gloo"] if gloo else []
        command = [launcher("horovodrun"), *controller, "-np", np, *resolve(args)]
        return run_command(command, env=launch_env(env), timeout=timeout, **options)

    return run


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data sets, or a skip."""
    folder = os.environ.get(TEST_DATA)
    if not folder:
        pytest.skip(f"{TEST_DATA} is not set: CONTRIBUTING.md says what it points to")
    path = Path(folder).resolve()
    if not (path / "unpack.py").is_file():
        pytest.fail(f"{TEST_DATA} is {folder}, where there is no unpack.py")
    return path


@pytest.fixture(scope="session")
def captcha_sets(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked captcha sets, a folder each (genpics_digits, ...)."""
    out = tmp_path_factory.mktemp("captcha_sets")
    done = run_command(["python", test_data / "unpack.py", "captcha", out])
    assert done.rc == 0, done.stderr
    return out


SKIPS: list[str] = []


def note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Remembers a skip that CI doesn't accept."""
    refused = os.environ.get("CI") == "true" and report.nodeid.startswith(NEVER_SKIPPED)
    if refused and report.skipped and not hasattr(report, "wasxfail"):
        SKIPS.append(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    note_skip(report)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if SKIPS and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SKIPS:
        terminalreporter.section("skips that CI=true doesn't accept", red=True)
        for nodeid in SKIPS:
            terminalreporter.write_line(nodeid)
