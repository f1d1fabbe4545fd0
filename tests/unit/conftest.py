"""Runs commands in the process of the tests; TensorFlow is imported by those that need it."""

import contextlib
import io
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
from small_captchas import Ran, files_of

# A busy machine is no fault: no test depends on a timing.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def tf() -> ModuleType:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    return tf


@pytest.fixture(scope="session")
def tfds(tf: ModuleType) -> ModuleType:
    import tensorflow_datasets as tfds

    return tfds


def content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return bytes(stream.buffer.getvalue()).decode()  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def data_tools() -> Callable[..., Ran]:
    """`data_tools(*args)` runs the command in this process, which saves the start of another."""

    from data_tools import cli, console

    console.LINE_SECONDS = math.inf  # a slow machine is no fault: standard error stays empty

    def run(*args: object) -> Ran:
        # With an encoding, as a terminal has it: a StringIO has none.
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                rc = cli.main([str(arg) for arg in args])
            except SystemExit as stop:  # --help
                rc = int(stop.code or 0)
        return Ran(rc=rc, stdout=content(out), stderr=content(err))

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the test puts its images."""
    return tmp_path / "images"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the data set shall be."""
    return tmp_path / "set"


@pytest.fixture
def convert(data_tools: Callable[..., Ran], folder: Path, out: Path) -> Callable[..., Ran]:
    """Converts the captchas in images/ with labels.csv to set/; a fault leaves no output."""

    def run(*flags: object) -> Ran:
        csv = folder.parent / "labels.csv"
        before = files_of(out) if out.is_dir() else None
        ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--workers", 1, *flags)
        assert not out.with_name("set.incomplete").exists()
        if ran.rc != 0:
            assert (files_of(out) if out.is_dir() else None) == before
            assert ran.error.startswith("error: ")
            assert "Traceback" not in ran.stderr
        return ran

    return run


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Where the test puts its file of labels."""
    return tmp_path / "labels.csv"


@pytest.fixture
def convert_labels(
    data_tools: Callable[..., Ran], folder: Path, csv: Path, out: Path
) -> Callable[..., Ran]:
    """Converts images/ to set/ with labels.csv or, where there is none, `-`; faults leave nothing.

    Labels of any length are allowed.
    """

    def run(*flags: object) -> Ran:
        labels = csv if csv.exists() else "-"
        ran = data_tools(
            "captcha-to-tfrecord", folder, labels, out, "--workers", 1, "--variable-length", *flags
        )
        assert ran.rc == 0 or not out.exists()
        assert not out.with_name("set.incomplete").exists()
        return ran

    return run


@pytest.fixture
def strace() -> None:
    """Skips where strace isn't there or may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace, to kill a process at a system call")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.decode().strip()}")
