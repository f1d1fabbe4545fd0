"""The error contract: what is wrong, where, and how to mend it, as one line on stderr.

    error: KIND: WHERE: reason; fix

Several faults are a line each (at most 50, and the count) before that last line. There is no
traceback unless `--debug` is given, and the exit code tells the kind.
"""

import contextlib
import enum
import errno
import functools
import io
import itertools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

MAX_FAULTS_SHOWN = 50


class Kind(enum.StrEnum):
    """What went wrong, by who can mend it."""

    CONFIG = "CONFIG"
    INPUT = "INPUT"
    LABEL = "LABEL"
    INTEGRITY = "INTEGRITY"
    SPACE = "SPACE"
    HOST = "HOST"
    RANK = "RANK"
    NUMERIC = "NUMERIC"


CONFIG, INPUT, LABEL, INTEGRITY = Kind.CONFIG, Kind.INPUT, Kind.LABEL, Kind.INTEGRITY
SPACE, HOST, RANK, NUMERIC = Kind.SPACE, Kind.HOST, Kind.RANK, Kind.NUMERIC

EXIT_CODES = {
    CONFIG: 2, INPUT: 3, LABEL: 3, INTEGRITY: 4, SPACE: 5, HOST: 6, RANK: 7, NUMERIC: 8
}  # fmt: skip


class DataError(Exception):
    """A fault that the user can mend.

    Example: `DataError(INPUT, path, f"byte {offset}", "the file is cut short", fix="...")`

    Args:
        kind: what went wrong.
        where_then_reason: path, flag, host or rank, optionally a row, record or byte in it, and
            last the reason.
        fix: what the user does about it.
        faults: one line for each fault when there are several; printed before the error line.
    """

    def __init__(
        self, kind: Kind, *where_then_reason: object, fix: str, faults: Sequence[str] = ()
    ) -> None:
        *where, reason = map(str, where_then_reason)
        self.kind = kind
        self.where = ":".join(where)
        self.reason = reason
        self.fix = fix
        self.faults = tuple(faults)
        super().__init__(f"error: {kind.name}: {self.where}: {reason}; {fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets the error come whole out of a worker process."""
        rebuild = functools.partial(DataError, fix=self.fix, faults=self.faults)
        return rebuild, (self.kind, self.where, self.reason)

    def report(self) -> str:
        """The whole message: the faults, at most 50 and the count, then the error line."""
        shown = list(self.faults[:MAX_FAULTS_SHOWN])
        if len(self.faults) > MAX_FAULTS_SHOWN:
            shown.append(f"... {len(self.faults)} faults, {MAX_FAULTS_SHOWN} shown")
        return "\n".join(map(one_line, [*shown, str(self)]))

    def print(self) -> None:
        """Writes the message to standard error, at once, or a launcher's tags would part it."""
        to_stderr(self.report())


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one row or its image; the others may be right."""

    number: int
    kind: Kind
    where: str
    reason: str
    fix: str

    def line(self) -> str:
        """The fault as a line under an error that counts several."""
        return f"{self.where}: {self.reason}"

    def error(self) -> DataError:
        """The fault as the only error."""
        return DataError(self.kind, self.where, self.reason, fix=self.fix)


def to_stderr(text: str) -> None:
    """Writes a line to standard error, which may be closed or full: the exit code still tells."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        _discard(sys.stderr)


def to_stdout(text: str) -> None:
    """Writes lines to standard output; where it is closed or full, says so once and goes on.

    For work that is worth more than what it tells on the way.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        to_stderr(f"warning: standard output: {error.strerror}; nothing more is written there")
        _discard(sys.stdout)


def one_line(text: str) -> str:
    """Replaces line breaks and all that isn't printable, which would split or hide the message."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def from_os_error(error: OSError, where: object = "standard output") -> DataError:
    """Names what the operating system refused: no space, no permission, no such file.

    Args:
        error: what was raised.
        where: named when the error itself names no file.
    """
    where = error.filename or where
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(SPACE, where, reason, fix="free some space or choose another folder")
    fix = "check that the path exists and its permissions"
    if error.errno == errno.EBUSY:
        fix = "wait until it is free, or choose another name"
    return DataError(INPUT, where, reason, fix=fix)


@contextlib.contextmanager
def os_errors(where: object) -> Iterator[None]:
    """Turns an OSError in the block into the DataError that names `where`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, where) from error


def parse_flags(
    config_type: Callable[..., T], *, prog: str, argv: Sequence[str], **tyro_options: Any
) -> T:
    """Parses flags with tyro; what it refuses is one CONFIG line in place of its box."""
    import tyro

    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            parsed: T = tyro.cli(config_type, prog=prog, args=list(argv), **tyro_options)
            return parsed
    except SystemExit as stop:
        if not stop.code:
            raise
        reason = _boxed_text(captured.getvalue())
        raise DataError(CONFIG, "command line", reason, fix=f"see {prog} --help") from None


def unknown_command(name: str, commands: Iterable[str]) -> DataError:
    """The error of a command line whose first word is missing or is no command."""
    reason = f"no command {name!r}" if name else "no command is given"
    return DataError(CONFIG, "command line", reason, fix=f"the commands: {', '.join(commands)}")


NO_NUMBER = tuple(
    (rf"^Error parsing (--\S+): {said}", rf"\1 is \2; it must be {number}")
    for kind, literal, number in (
        ("INT", r"invalid literal for int\(\) with base 10", "a whole number"),
        ("FLOAT", "could not convert string to float", "a number"),
    )
    for said in (
        rf"no type matching \{{None\}}\|{kind} could be instantiated from \[(.*?)\]\. .*",
        rf"{literal}: (.*)",
    )
)
"""What tyro says of a word in place of a number, and what is said instead."""


def _boxed_text(box: str) -> str:
    """The sentence in tyro's error box, without the frame, the title and the help below a rule.

    Where the terminal has no box characters, the title is a line with a rule below it.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()
    framed = [line.strip("│ ") for line in lines if line.startswith("│")]
    unframed = [line.strip() for line in lines[2:]]
    body = itertools.takewhile(lambda line: not re.match("[─-]{3}", line), framed or unframed)
    sentence = re.sub(r"\s+", " ", " ".join(body)).strip(" .")
    for pattern, text in NO_NUMBER:
        sentence = re.sub(pattern, text, sentence)
    return re.sub(r"^Error parsing \w+: ", "", sentence)


def run_main(main: Callable[[], None], *, debug: bool = False) -> int:
    """Runs a command and returns its exit code; a DataError is reported as the contract says."""
    _prepare_stdout()
    try:
        main()
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        # The reader of our standard output went away (`| head`); nothing is left to say.
        _discard(sys.stdout)
        return 1
    except KeyboardInterrupt:
        to_stderr("interrupted")
        return 130
    except (DataError, OSError) as error:
        if debug:
            traceback.print_exc()
        fault = from_os_error(error) if isinstance(error, OSError) else error
        fault.print()
        if isinstance(error, OSError):
            _discard(sys.stdout)
        return EXIT_CODES[fault.kind]


def _prepare_stdout() -> None:
    """Lets standard output take any file name, and be there where the shell has closed it."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Sends what a stream still holds nowhere, or Python would try to write it at exit."""
    with contextlib.suppress(OSError, ValueError):  # closed, or held in memory by a caller
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
