import errno
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from data_tools import errors
from data_tools.errors import CONFIG, HOST, INPUT, INTEGRITY, LABEL, NUMERIC, RANK, SPACE, DataError


def test_the_message_is_kind_where_reason_and_fix() -> None:
    fault = DataError(INPUT, Path("set/a.bin"), "byte 12", "cut short", fix="download it again")
    assert str(fault) == "error: INPUT: set/a.bin:byte 12: cut short; download it again"
    assert (fault.kind, fault.where, fault.reason) == (INPUT, "set/a.bin:byte 12", "cut short")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (CONFIG, 2), (INPUT, 3), (LABEL, 3), (INTEGRITY, 4), (SPACE, 5), (HOST, 6), (RANK, 7),
        (NUMERIC, 8),
    ],
)  # fmt: skip
def test_each_kind_has_its_exit_code_and_its_line_is_last_on_stderr(
    kind: errors.Kind, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        print("some output")
        raise DataError(kind, "here", "why", fix="do this")

    assert errors.run_main(main) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("some output\n", f"error: {kind.name}: here: why; do this\n")


def test_a_fault_comes_whole_out_of_another_process() -> None:
    fault = DataError(LABEL, "a.csv", "row 3", "bad", fix="mend", faults=["one", "two"])
    copy = pickle.loads(pickle.dumps(fault))
    assert type(copy) is DataError
    assert copy.report() == fault.report()
    assert (copy.kind, copy.where, copy.reason, copy.fix) == (
        LABEL, "a.csv:row 3", "bad", "mend",
    )  # fmt: skip


def test_several_faults_are_a_line_each_before_the_error_line() -> None:
    fault = DataError(INPUT, "images", "2 of 9 are bad", fix="mend them", faults=["a", "b"])
    assert fault.report() == "a\nb\nerror: INPUT: images: 2 of 9 are bad; mend them"


def test_50_faults_are_all_shown_and_of_51_fifty_and_the_count() -> None:
    lines = [f"row {number}" for number in range(51)]
    for_50 = DataError(INPUT, "x", "bad", fix="mend", faults=lines[:50]).report().splitlines()
    for_51 = DataError(INPUT, "x", "bad", fix="mend", faults=lines).report().splitlines()
    assert for_50 == [*lines[:50], "error: INPUT: x: bad; mend"]
    assert for_51 == [*lines[:50], "... 51 faults, 50 shown", "error: INPUT: x: bad; mend"]


@pytest.mark.parametrize(
    "hostile",
    ["a\nb", "a\r\nb", "a\x1b[31mb", "a\x00b", "a\tb\x7f", "a\x85b", "a\x9b31mb", "a\u2028b"],
)
def test_control_characters_in_a_name_cannot_split_or_hide_the_line(hostile: str) -> None:
    fault = DataError(INPUT, hostile, "bad", fix="mend")
    report = fault.report()
    assert report.isprintable()
    assert report.startswith("error: INPUT: a")
    assert report.endswith(": bad; mend")


def test_control_characters_in_a_fault_cannot_split_its_line() -> None:
    fault = DataError(INPUT, "images", "bad", fix="mend", faults=["row 1: 'a\nb\x1b[2J'", "row 2"])
    lines = fault.report().split("\n")
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_a_quota_and_a_file_size_limit_are_space(number: int) -> None:
    fault = errors.from_os_error(OSError(number, os.strerror(number)), "out")
    assert str(fault) == (
        f"error: SPACE: out: {os.strerror(number)}; free some space or choose another folder"
    )


def test_other_refusals_of_the_system_are_input() -> None:
    with pytest.raises(DataError) as caught, errors.os_errors("somewhere"):
        Path("/no/such/file").read_bytes()
    assert str(caught.value) == (
        "error: INPUT: /no/such/file: No such file or directory; "
        "check that the path exists and its permissions"
    )


def test_os_errors_names_the_place_it_was_given_when_the_system_names_none() -> None:
    with pytest.raises(DataError) as caught, errors.os_errors("somewhere"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.where == "somewhere"


def test_other_exceptions_pass_through_os_errors() -> None:
    with pytest.raises(DataError) as caught, errors.os_errors("somewhere"):
        raise DataError(LABEL, "inner", "bad", fix="mend")
    assert caught.value.where == "inner"
    with pytest.raises(ZeroDivisionError), errors.os_errors("somewhere"):
        raise ZeroDivisionError


def test_an_os_error_nobody_caught_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.run_main(lambda: Path("/no/such/file").unlink()) == 3
    assert capsys.readouterr().err == (
        "error: INPUT: /no/such/file: No such file or directory; "
        "check that the path exists and its permissions\n"
    )


def test_an_os_error_without_a_file_name_does_not_say_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert errors.run_main(main) == 5
    line = capsys.readouterr().err
    assert line.startswith("error: SPACE: ")
    assert "None" not in line


def test_debug_shows_the_traceback_before_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise DataError(INPUT, "here", "why", fix="do this")

    assert errors.run_main(main, debug=True) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "error: INPUT: here: why; do this"


def test_an_interrupt_is_130_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise KeyboardInterrupt

    assert errors.run_main(main) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_our_own_bugs_keep_their_traceback() -> None:
    def main() -> None:
        assert False, "a bug"  # noqa: B011

    with pytest.raises(AssertionError, match="a bug"):
        errors.run_main(main)


def test_success_is_0_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.run_main(lambda: None) == 0
    assert capsys.readouterr() == ("", "")


TO_STDOUT = """
import sys
from data_tools import errors
sys.exit(errors.run_main(lambda: print("x" * 100)))
"""


def test_a_reader_of_stdout_that_went_away_leaves_nothing_on_stderr() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end) as closed_pipe:
        ran = subprocess.run(
            [sys.executable, "-c", TO_STDOUT], stdout=closed_pipe, stderr=subprocess.PIPE,
            check=False, text=True,
        )  # fmt: skip
    assert ran.stderr == ""
    assert ran.returncode != 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_one_space_line() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", TO_STDOUT], stdout=full, stderr=subprocess.PIPE,
            check=False, text=True,
        )  # fmt: skip
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.startswith("error: SPACE: ")
    assert "None" not in ran.stderr
    assert ran.returncode == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_work_goes_on_without_a_stdout_that_is_full_and_says_so_once() -> None:
    code = "from data_tools.errors import to_stdout\nfor line in 'abc': to_stdout(line)"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE,
            check=False, text=True,
        )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (
        0,
        "warning: standard output: No space left on device; nothing more is written there\n",
    )


# Flags


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Some flags."""

    count: int = 3
    """How many."""


def parse(*argv: str) -> Flags:
    return errors.parse_flags(Flags, prog="data_tools thing", argv=argv)


def refused(*argv: str) -> str:
    with pytest.raises(DataError) as caught:
        parse(*argv)
    assert caught.value.kind is CONFIG
    return str(caught.value)


def test_flags_are_parsed() -> None:
    assert parse("--count", "7") == Flags(count=7)
    assert parse() == Flags(count=3)


def test_an_unknown_flag_is_one_config_line() -> None:
    assert refused("--cuont", "7") == (
        "error: CONFIG: command line: Unrecognized options: --cuont, 7; see data_tools thing --help"
    )


def test_a_value_of_the_wrong_type_is_one_config_line_without_a_frame() -> None:
    assert refused("--count", "many") == (
        "error: CONFIG: command line: --count is 'many'; it must be a whole number; "
        "see data_tools thing --help"
    )


def test_help_is_printed_and_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code in (0, None)
    assert "--count" in capsys.readouterr().out


def test_a_narrow_terminal_does_not_change_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = refused("--count", "many")
    monkeypatch.setenv("COLUMNS", "30")
    assert refused("--count", "many") == wide


PARSE = """
from dataclasses import dataclass
import sys
from data_tools import errors

@dataclass
class Flags:
    count: int

sys.exit(errors.run_main(lambda: errors.parse_flags(Flags, prog="tool", argv=["--count", "many"])))
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_another_encoding_does_not_empty_the_line(encoding: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PARSE], capture_output=True, check=False, text=True,
        env={"PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stderr == (
        "error: CONFIG: command line: --count is 'many'; it must be a whole number; "
        "see tool --help\n"
    )


@pytest.mark.parametrize("stderr", ["closed", "full"])
def test_the_exit_code_tells_the_kind_where_standard_error_is_of_no_use(stderr: str) -> None:
    script = (
        "import sys; from data_tools.errors import *\n"
        "def main(): raise DataError(INTEGRITY, 'a', 'b', fix='c')\n"
        "sys.exit(run_main(main))"
    )
    redirect = "2>&-" if stderr == "closed" else "2>/dev/full"
    command = f'exec "{sys.executable}" -c "$1" {redirect}'
    assert subprocess.run(["sh", "-c", command, "sh", script], check=False).returncode == 4
