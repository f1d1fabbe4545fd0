"""The fixtures and hooks of tests/conftest.py do what every other test relies on."""

import contextlib
import shutil
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"


@pytest.mark.parametrize("where", ["parallel", "cluster"])
@pytest.mark.parametrize(
    "body", ["def test_skip(): pytest.skip('no')", "pytest.skip('no', allow_module_level=True)"]
)
def test_a_skip_of_a_rank_test_fails_ci_only(
    tmp_path: Path, run_cli, where: str, body: str
) -> None:
    folder = tmp_path / "tests" / where
    folder.mkdir(parents=True)
    shutil.copy(CONFTEST, tmp_path / "tests" / "conftest.py")
    (folder / "test_it.py").write_text(f"import pytest\n{body}\n")
    (folder / "test_other.py").write_text("def test_passes(): pass\n")
    command = ["python", "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", tmp_path, "tests"]
    for ci, code in (("true", 1), (None, 0)):
        done = run_cli(command, cwd=tmp_path, env={"CI": ci})
        assert done.rc == code, done.stdout
        assert ("skips that CI=true doesn't accept" in done.stdout) == (code == 1)


def test_a_timeout_kills_a_child_that_left_the_process_group(tmp_path: Path, run_cli) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time; os.setsid(); open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    parent = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {child + '; time.sleep(60)'!r}]); time.sleep(60)"
    )
    with pytest.raises(pytest.fail.Exception, match="not done in 3 s"):
        run_cli(["python", "-c", parent], timeout=3)
    with contextlib.suppress(OSError):  # gone, or a zombie, which has no environment
        assert not (Path("/proc") / pid_file.read_text() / "environ").read_bytes()


def test_a_command_is_killed_with_its_children_once_the_moment_comes(
    tmp_path: Path, kill_when
) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time; os.setsid(); open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    parent = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {child + '; time.sleep(60)'!r}]); time.sleep(60)"
    )

    def started() -> bool:
        return pid_file.exists() and bool(pid_file.read_text())

    kill_when(started, ["python", "-c", parent], log=tmp_path / "log")
    with contextlib.suppress(OSError):  # gone, or a zombie, which has no environment
        assert not (Path("/proc") / pid_file.read_text() / "environ").read_bytes()


def test_a_command_that_ends_before_its_moment_fails_the_test(tmp_path: Path, kill_when) -> None:
    with pytest.raises(pytest.fail.Exception, match="the moment to kill never came"):
        kill_when(lambda: False, ["python", "-c", "print()"], log=tmp_path / "log")
