"""tools/build_horovod.py: its pure parts, and its report of what is missing, run for real."""

import os
import re
import subprocess
import sys
import threading
import venv
from pathlib import Path

import build_horovod
import pytest
from build_horovod import BuildError, Mpi, Target
from horovod.runner.common.util import safe_shell_exec

from hvd_train.config import RunConfig

SCRIPT = Path(build_horovod.__file__)
OWN = Mpi("openmpi4", Path("/venv/bin"), own=True)
SYSTEM = Mpi("mpich4", Path("/usr/bin"), own=False)


@pytest.mark.parametrize(
    ("target", "version"),
    [
        (Target("2.21.0", OWN, gpu=False), "0.28.1+tf2.21.openmpi4"),
        (Target("2.16.2", SYSTEM, gpu=False), "0.28.1+tf2.16.mpich4"),
        (Target("2.20.0rc0", OWN, gpu=True), "0.28.1+tf2.20.openmpi4.nccl"),
    ],
)
def test_the_local_version_tells_tensorflow_mpi_and_nccl(target: Target, version: str) -> None:
    assert target.version == version
    assert target.wheel.startswith(f"horovod-{version}-cp")


def test_the_wheel_is_named_as_pip_would_name_it() -> None:
    tags = subprocess.run(
        [sys.executable, "-m", "pip", "debug", "--verbose"], capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    _, _, *tag = Path(Target("2.21.0", OWN, gpu=False).wheel).stem.split("-")
    assert f"  {'-'.join(tag)}\n" in tags


@pytest.mark.parametrize("version", ["2.16.0", "2.21.3", "2.18.0rc1"])
def test_a_tensorflow_in_the_range_is_taken(version: str) -> None:
    build_horovod.check_tensorflow(version, "upgrade it")


@pytest.mark.parametrize("version", ["2.15.1", "2.22.0", "1.15.5", "3.0.0"])
def test_another_tensorflow_is_refused(version: str) -> None:
    with pytest.raises(BuildError) as refused:
        build_horovod.check_tensorflow(version, "upgrade it")
    assert str(refused.value) == (
        f"error: CONFIG: TensorFlow: version {version}, this script builds Horovod 0.28.1 on "
        "2.16 to 2.21; upgrade it"
    )


@pytest.mark.parametrize(
    ("output", "tag"),
    [
        ("mpirun (Open MPI) 4.1.8\n\nReport bugs to ...\n", "openmpi4"),
        ("mpirun (Open MPI) 5.0.6\n", "openmpi5"),
        ("HYDRA build details:\n    Version:           4.0.2\n    CC:  gcc\n", "mpich4"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 2023\n", "intelmpi2021"),
        ("mpirun (IBM Spectrum MPI) 10.4.0.6\n", "spectrummpi10"),
    ],
)
def test_the_mpi_is_told_by_its_mpirun(output: str, tag: str) -> None:
    assert build_horovod.mpi_tag(output, "mpirun") == tag


def test_an_mpi_that_horovodrun_cannot_drive_is_refused() -> None:
    with pytest.raises(BuildError, match="mpirun: an MPI that horovodrun doesn't know"):
        build_horovod.mpi_tag("prun 3.1\n", "mpirun")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment without TensorFlow."""
    folder = tmp_path_factory.mktemp("environments") / "bare"
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def test_all_that_is_missing_is_named_at_once_before_anything_is_done(
    tmp_path: Path, run_cli, bare_python: Path
) -> None:
    env = {"PATH": "", "CXX": None, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_cli([bare_python, SCRIPT, "--gpu"], env={**env, "CUDA_HOME": None})
    prefix = bare_python.parent.parent
    assert done.stdout == ""
    assert done.stderr == (
        f"TensorFlow: not installed in {prefix}; "
        f"{prefix}/bin/pip install tensorflow-cpu~=2.21.0\n"
        "g++: no C++ compiler found; apt-get install g++ (version 8 or later), or set CXX\n"
        "make: not found; apt-get install make\n"
        "nvcc: not found, and --gpu compiles CUDA code; "
        "install the CUDA toolkit and set CUDA_HOME\n"
        "nvidia-nccl-cu12: not installed, and --gpu takes NCCL from it; "
        f"{prefix}/bin/pip install tensorflow[and-cuda]~=2.21.0\n"
        f"error: CONFIG: {prefix}: 5 things are missing; mend each line above\n"
    )
    assert done.rc == 2
    assert not list(tmp_path.rglob("*")), "nothing may be written"


def test_one_thing_that_is_missing_is_one_line(run_cli, bare_python: Path, tmp_path: Path) -> None:
    env = {"CXX": "/no/such/c++", "XDG_CACHE_HOME": str(tmp_path)}
    done = run_cli(["python", SCRIPT], env=env)
    assert done.stderr == (
        "error: CONFIG: /no/such/c++: no C++ compiler found; "
        "apt-get install g++ (version 8 or later), or set CXX\n"
    )
    assert done.rc == 2


def test_help_shows_defaults(run_cli) -> None:
    done = run_cli(["python", SCRIPT, "--help"])
    assert done.rc == 0
    jobs = build_horovod.default_jobs()
    assert f"compilers at once (default: {jobs})" in done.stdout


def test_horovod_tells_its_build_and_where_an_mpi_of_pip_lies() -> None:
    init = "from horovod.runner import run\n\n__version__ = '0.28.1'\n"
    text = build_horovod.with_version(init, Target("2.16.2", SYSTEM, gpu=False))
    assert text == init.replace("0.28.1", "0.28.1+tf2.16.mpich4")
    text = build_horovod.with_version(init, Target("2.21.0", OWN, gpu=False))
    tell = "import os, sys\nos.environ.setdefault('OPAL_PREFIX', sys.prefix)\n"
    assert text == init.replace("0.28.1", "0.28.1+tf2.21.openmpi4") + tell


def test_horovodrun_learns_to_tell_mpich_by_its_launcher() -> None:
    text = build_horovod.knowing_hydra("    elif 'MPICH' in output:\n")
    assert text == "    elif 'MPICH' in output or 'HYDRA' in output:\n"


def test_horovodrun_never_succeeds_when_it_has_ended_its_ranks() -> None:
    ended = threading.Event()
    threading.Timer(1.0, ended.set).start()
    assert safe_shell_exec.execute("sleep 60; exit 0", events=[ended]) > 0
    assert safe_shell_exec.execute("exit 0", events=[threading.Event()]) == 0


def test_only_the_line_of_the_xla_source_is_taken_out() -> None:
    cmake = 'before\nlist(APPEND TF_SOURCES "horovod/tensorflow/xla_mpi_ops.cc")\nafter\n'
    assert build_horovod.without_xla(cmake) == "before\nafter\n"


def test_the_wheel_gets_no_path_of_the_environment() -> None:
    text = build_horovod.without_paths("project(horovod CXX)\nx\n")
    assert text == "project(horovod CXX)\nset(CMAKE_SKIP_RPATH ON)\nx\n"


def test_other_sources_are_refused_rather_than_half_patched() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        build_horovod.without_paths("project(other)\n")


def test_the_build_is_shielded_from_the_callers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_WITH_PYTORCH", "CMAKE_GENERATOR", "MAKELEVEL", "PYTHONPATH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("MAKEFLAGS", "n")
    env = build_horovod.build_settings(Target("2.21.0", OWN, gpu=False), "/usr/bin/g++", jobs=3)
    assert not {"HOROVOD_WITH_PYTORCH", "CMAKE_GENERATOR", "MAKELEVEL", "PYTHONPATH"} & set(env)
    assert env["MAKEFLAGS"] == "-j3"
    assert env["PATH"].split(os.pathsep)[0] == "/venv/bin"
    assert env["LDFLAGS"] == "-Wl,-rpath,'$ORIGIN/../../../..'"


def test_the_launch_agent_is_set_once_and_other_lines_stay() -> None:
    name, value = "orte_launch_agent", "env OPAL_PREFIX=/v /v/bin/orted"
    assert build_horovod.mpi_parameters(Path("/v"))[name] == value
    line = f"{name} = {value}\n"
    once = build_horovod.with_parameter("# comment\nbtl = ^openib", name, value)
    assert once == f"# comment\nbtl = ^openib\n{line}"
    assert build_horovod.with_parameter(once, name, value) == once
    assert build_horovod.with_parameter("", name, value) == line


def test_the_launch_agent_follows_a_moved_environment_but_not_over_the_users_own() -> None:
    name, value = "orte_launch_agent", "env OPAL_PREFIX=/new /new/bin/orted"
    moved = build_horovod.with_parameter(
        "orte_launch_agent = env OPAL_PREFIX=/old /old/bin/orted\nx = 1\n", name, value
    )
    assert moved == "orte_launch_agent = env OPAL_PREFIX=/new /new/bin/orted\nx = 1\n"
    users = "orte_launch_agent = /site/orted\n"
    assert build_horovod.with_parameter(users, name, value) == users


def test_mpirun_gives_up_on_a_silent_host_only_after_the_watchdog_has_named_it() -> None:
    parameters = build_horovod.mpi_parameters(Path("/v"))
    interval, count = map(int, re.findall(r"=(\d+)", parameters["plm_rsh_args"]))
    idle, between, probes = (
        int(parameters[f"oob_tcp_keepalive_{name}"]) for name in ("time", "intvl", "probes")
    )
    limit = RunConfig().stall_seconds
    assert limit < interval * count < limit + 30
    assert limit < idle + between * probes < limit + 30


def test_a_machine_without_ssh_gets_an_agent_that_fails_and_keeps_the_users_own() -> None:
    name, value = "plm_rsh_agent", build_horovod.mpi_parameters(Path("/v"))["plm_rsh_agent"]
    once = build_horovod.with_parameter("", name, value)
    assert once == "plm_rsh_agent = ssh : rsh : false\n"
    assert build_horovod.with_parameter(once, name, value) == once
    users = "plm_rsh_agent = ssh -p 2222\n"
    assert build_horovod.with_parameter(users, name, value) == users


REPORT = """
Available Frameworks:
    [X] TensorFlow
    [ ] MXNet
Available Controllers:
    [X] MPI
    [{gloo}] Gloo
Available Tensor Operations:
    [ ] NCCL
    [X] MPI
    [X] Gloo
"""


def test_a_part_that_is_not_marked_everywhere_is_missing() -> None:
    wanted = ["TensorFlow", "MPI", "Gloo"]
    assert build_horovod.unmarked(REPORT.format(gloo="X"), wanted) == []
    assert build_horovod.unmarked(REPORT.format(gloo=" "), [*wanted, "NCCL"]) == ["Gloo", "NCCL"]
    assert build_horovod.unmarked("", wanted) == wanted


def test_a_failed_build_shows_the_lines_that_tell_why() -> None:
    noise = [f"[ {n}%] Building CXX object" for n in range(50)]
    output = "\n".join([*noise, "x.cc:7: error: no type named 'y'", "make: *** [all] Error 2"])
    telling = ["x.cc:7: error: no type named 'y'", "make: *** [all] Error 2"]
    assert build_horovod.telling_lines(output) == telling
    pips = "error: subprocess-exited-with-error\nERROR: Failed to build one or more wheels"
    assert build_horovod.telling_lines(f"{output}\n{pips}") == telling
    assert build_horovod.telling_lines(pips) == pips.splitlines()
    assert build_horovod.telling_lines("\n".join(noise)) == noise[-15:]
    assert build_horovod.hint("g++: fatal error: Killed signal terminated program cc1plus") == (
        "the compiler ran out of memory, pass --jobs 1"
    )


def test_a_failed_step_keeps_its_log_and_names_it(tmp_path: Path) -> None:
    log = build_horovod.Log(tmp_path / "build.log")
    with pytest.raises(BuildError) as failed:
        log.pip("install", "--no-index", "no-such-package-x", fix="see the log")
    *_, last = str(failed.value).splitlines()
    assert last == (
        f"error: CONFIG: {log.path}: pip install failed with exit code 1, this is its log; "
        "see the log"
    )
    assert "ERROR: No matching distribution found for no-such-package-x" in str(failed.value)
    assert failed.value.code == 1
    assert log.path.read_text().startswith("+ ")


def test_a_damaged_bundle_installs_nothing(tmp_path: Path, run_cli) -> None:
    (tmp_path / "a.whl").write_bytes(b"damaged")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  a.whl\n")
    done = run_cli(["python", SCRIPT, "--offline", tmp_path])
    assert done.rc == 2
    assert done.stderr == (
        f"error: CONFIG: {tmp_path}/a.whl: missing or not as in SHA256SUMS; copy the bundle again\n"
    )


def test_a_bundle_for_another_python_is_refused(tmp_path: Path, run_cli) -> None:
    wheel = tmp_path / "horovod-0.28.1+tf2.21.openmpi4-cp39-cp39-linux_s390x.whl"
    wheel.write_bytes(b"")
    (tmp_path / "SHA256SUMS").write_text(f"{build_horovod.sha256(wheel)}  {wheel.name}\n")
    done = run_cli(["python", SCRIPT, "--offline", tmp_path])
    assert done.rc == 2
    assert done.error == (
        f"error: CONFIG: {tmp_path}: made for cp39 on linux_s390x, this is "
        f"{build_horovod.PYTHON_TAG} on {build_horovod.SYSTEM_TAG}; "
        "write the bundle with this Python on such a system"
    )
