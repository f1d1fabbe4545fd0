"""The hosts that are there now, as a script of the user's prints them for `hvd_train launch`."""

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from data_tools.errors import CONFIG, INPUT, DataError, from_os_error
from hvd_train import tied
from hvd_train.hosts import Slots, cut, read_lines, to_list

SECONDS = 10.0
"""How long the script may take."""


def read(script: Path) -> Slots:
    """Runs the hosts script and returns what it prints.

    Raises:
        DataError: CONFIG for a command with arguments; INPUT when it can't be run, fails, takes too
            long or prints what is no host.
    """
    with (
        _os_errors(script),
        tied.started([str(script.absolute())], text=True, errors="replace") as process,
    ):
        try:
            stdout, stderr = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            reason = f"it takes more than {SECONDS:g} s"
            raise DataError(INPUT, script, reason, fix="let it answer sooner") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.wait()
    if process.returncode:
        said = stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise DataError(
            INPUT, script, f"it ended with code {process.returncode}: {cut(said[0])}",
            fix="mend the script",
        )  # fmt: skip
    found = read_lines(stdout, script)
    to_list(found, "mpirun")  # or raises what it doesn't take
    return found


@contextlib.contextmanager
def _os_errors(script: Path) -> Iterator[None]:
    """Says why the system didn't start the hosts script."""
    try:
        yield
    except OSError as error:
        raise _fault(script, error) from error


def _fault(script: Path, error: OSError) -> DataError:
    """What is wrong with a hosts script that the system didn't start, and its fix."""
    if not os.access(script, os.F_OK):
        if " " not in str(script):
            return from_os_error(error, script)
        return DataError(
            CONFIG, "--hosts-script",
            f"no file is named {str(script)!r}; it is one program, without arguments",
            fix="put the command into a script that begins with #!/bin/sh",
        )  # fmt: skip
    if script.is_dir():
        return DataError(INPUT, script, "it is a folder", fix="name the script in it")
    if not os.access(script, os.X_OK):
        return DataError(INPUT, script, "it isn't executable", fix=f"chmod +x {script}")
    if error.errno == errno.ENOEXEC:
        return DataError(INPUT, script, "it has no #! line", fix="begin it with #!/bin/sh")
    if error.errno == errno.ENOENT:
        return DataError(
            INPUT, script, "the interpreter that its #! line names isn't there",
            fix="begin it with #!/bin/sh, and end that line without a carriage return",
        )  # fmt: skip
    return from_os_error(error, script)
