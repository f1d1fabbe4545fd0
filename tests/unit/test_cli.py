import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from small_captchas import Ran, write_captchas
from small_cifar import write_cifar10

from data_tools import __version__
from hvd_train import cli

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
ROOT = Path(__file__).resolve().parents[2]
SUBCOMMANDS = [
    "download", "make-captcha", "captcha-to-tfrecord", "cifar-to-tfrecord", "folder-to-tfrecord",
    "svhn-to-tfrecord", "verify", "info", "preview", "reshard",
]  # fmt: skip
HELPS = [
    ["data_tools", "--help"],
    *(["data_tools", name, "--help"] for name in SUBCOMMANDS),
    ["hvd_train", "--help"],
    ["hvd_train", "captcha", "--help"],
    ["hvd_train", "cifar", "--help"],
    ["hvd_train", "doctor", "--help"],
    ["hvd_train", "evaluate", "--help"],
    ["hvd_train", "export", "--help"],
    ["hvd_train", "predict", "--help"],
    ["hvd_train", "hosts", "--help"],
    ["hvd_train", "report", "--help"],
    ["hvd_train", "compare", "--help"],
    ["hvd_train", "launch", "--help"],
]


def has_cli(package: str) -> bool:
    return (ROOT / package / "cli.py").exists()


HELP = """
import sys
from {package}.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code
heavy = {{"tensorflow", "horovod", "mpi4py", "keras", "captcha"}} & set(sys.modules)
print(sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_imports_nothing_that_is_slow_to_load(run_cli: RunCli, command: list[str]) -> None:
    package, *args = command
    if not has_cli(package):
        pytest.skip(f"there is no {package}/cli.py yet")
    ran = run_cli(["python", "-c", HELP.format(package=package), *args])
    assert (ran.rc, ran.stderr) == (0, "[]\n")
    assert "usage:" in ran.stdout.lower()


def test_no_command_of_data_tools_imports_tensorflow(run_cli: RunCli, tmp_path: Path) -> None:
    csv = write_captchas(tmp_path / "images", ["AB", "CD"])
    write_captchas(tmp_path / "tree" / "class", ["AB"])
    binary = write_cifar10(tmp_path / "binary", {"data_batch_1.bin": [3, 1]})
    (tmp_path / "svhn").mkdir()
    digits = {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": [[1]]}
    scipy.io.savemat(tmp_path / "svhn" / "test_32x32.mat", digits)
    script = """
import json, sys
from data_tools.cli import main
for argv in json.loads(sys.argv[1]):
    assert main(argv) in (0, None)
print(sorted({"tensorflow", "horovod", "keras"} & set(sys.modules)), file=sys.stderr)
"""
    out = str(tmp_path / "set")
    commands = [
        ["captcha-to-tfrecord", str(tmp_path / "images"), str(csv), out, "--workers", "1"],
        ["verify", out, "--deep"],
        ["info", out],
        ["preview", out, "--image", str(tmp_path / "preview.png")],
        ["reshard", out, str(tmp_path / "other"), "--shards", "1"],
        ["cifar-to-tfrecord", str(binary), str(tmp_path / "classes")],
        [
            "folder-to-tfrecord",
            str(tmp_path / "tree"),
            str(tmp_path / "folder"),
            "--workers",
            "1",
        ],
        ["svhn-to-tfrecord", str(tmp_path / "svhn"), str(tmp_path / "digits")],
        ["make-captcha", str(tmp_path / "made"), "--count", "2", "--workers", "1"],
    ]
    ran = run_cli(["python", "-c", script, json.dumps(commands)])
    assert (ran.rc, ran.stderr) == (0, "[]\n")


def test_help_lists_the_subcommands_with_a_line_each(data_tools: Tools) -> None:
    text = data_tools("--help").stdout
    for name in SUBCOMMANDS:
        assert name in text


def test_help_of_a_command_shows_its_flags_with_their_defaults(data_tools: Tools) -> None:
    text = " ".join(data_tools("captcha-to-tfrecord", "--help").stdout.split())
    for flag, default in (
        ("--shards", "4"), ("--split", "train=0.9,test=0.1"), ("--case", "keep"),
        ("--image-encoding", "original"), ("--name", "captcha"),
    ):  # fmt: skip
        assert flag in text
        assert f"(default: {default})" in text
    for flag in ("--charset", "--length", "--variable-length", "--skip-bad", "--overwrite",
                 "--workers", "--debug", "--separator", "--row-names", "--first-row",
                 "--label-from-name", "--split-folders", "--transcode", "--resize WxH",
                 "--pad WxH"):  # fmt: skip
        assert flag in text


def test_help_names_what_stands_before_the_flags(data_tools: Tools) -> None:
    for command, names in (
        ("captcha-to-tfrecord", "IMAGES LABELS OUT"), ("folder-to-tfrecord", "SRC OUT"),
        ("svhn-to-tfrecord", "SRC OUT"), ("make-captcha", "OUT"), ("info", "FOLDER"),
        ("download", "{cifar10,cifar100} OUT"),
    ):  # fmt: skip
        usage = data_tools(command, "--help").stdout.partition("\n")[0]
        assert f"] {names}" in usage


def test_each_program_tells_its_version(data_tools: Tools) -> None:
    assert data_tools("--version").stdout == f"data_tools {__version__}\n"
    ran = subprocess.run(
        [sys.executable, "-m", "hvd_train", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"hvd_train {__version__}\n"


COMMANDS = (
    "the commands: download, make-captcha, captcha-to-tfrecord, cifar-to-tfrecord, "
    "folder-to-tfrecord, svhn-to-tfrecord, verify, info, preview, reshard"
)
REFUSED = {
    ("mkae-captcha", "out"): f"no command 'mkae-captcha'; {COMMANDS}",
    (): f"no command is given; {COMMANDS}",
    ("verify",): (
        "PATH is needed: data set folders, or TFRecord files; see data_tools verify --help"
    ),
    ("verify", "out", "--colour"): ("Unrecognized options: --colour; see data_tools verify --help"),
    ("make-captcha", "out", "--count", "many"): (
        "--count is 'many'; it must be a whole number; see data_tools make-captcha --help"
    ),
    ("info", "one", "two"): "Unrecognized options: two; see data_tools info --help",
}


REFUSED_BY_TOOLS = {
    "doctor --ssh-port foo": (
        "--ssh-port is 'foo'; it must be a whole number; see hvd_train doctor --help"
    ),
    "doctor --ssh-port 0": "--ssh-port is 0; it must be 1 to 65535; see hvd_train doctor --help",
    "doctor --ssh-port 99999 -H localhost:1": (
        "--ssh-port is 99999; it must be 1 to 65535; see hvd_train doctor --help"
    ),
    "launch --max-np 2.5 --hosts-script S -- a": (
        "--max-np is '2.5'; it must be a whole number; see hvd_train launch --help"
    ),
    "launch --poll-seconds 1s --hosts-script S -- a": (
        "--poll-seconds is '1s'; it must be a number; see hvd_train launch --help"
    ),
    "doctor mpirun -np 2": (
        "Unrecognized options: -np, 2; put -- before the launch command: -- mpirun ..."
    ),
    "doctor --debug mpirun -np 2": (
        "Unrecognized options: -np, 2; put -- before the launch command: -- mpirun ..."
    ),
    "doctor -H a:1 --colour": "Unrecognized options: --colour; see hvd_train doctor --help",
    "launch --hosts-script S hvd_train captcha --data D": (
        "Unrecognized options: --data, D; put -- before the command: -- hvd_train ..."
    ),
    "launch --colour --hosts-script S -- hvd_train captcha": (
        "Unrecognized options: --colour, hvd_train, captcha; see hvd_train launch --help"
    ),
    "hosts one --colour": "Unrecognized options: --colour; see hvd_train hosts --help",
}


@pytest.mark.parametrize("line", REFUSED_BY_TOOLS)
def test_what_a_tool_of_clusters_does_not_understand_is_one_config_line(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in ("200", "30"):
        monkeypatch.setenv("COLUMNS", columns)
        assert cli.main(line.split()) == 2
        said = capsys.readouterr().err.splitlines()
        assert said[-1] == f"error: CONFIG: command line: {REFUSED_BY_TOOLS[line]}"
        assert len(said) == 1 or "--debug" in line


@pytest.mark.parametrize("argv", REFUSED, ids=" ".join)
def test_a_command_line_that_is_not_understood_is_one_config_line(
    data_tools: Tools, argv: tuple[str, ...]
) -> None:
    ran = data_tools(*argv)
    assert (ran.rc, ran.stdout) == (2, "")
    assert ran.stderr == f"error: CONFIG: command line: {REFUSED[argv]}\n"


def test_the_process_ends_with_the_code_of_the_kind_and_the_line_on_stderr(
    run_cli: RunCli, tmp_path: Path
) -> None:
    csv = write_captchas(tmp_path / "images", ["AB", "C_"])
    convert = ["python", "-m", "data_tools", "captcha-to-tfrecord", tmp_path / "images", csv]
    out = tmp_path / "set"
    for args, code, kind in (
        ([*convert, out, "--charset", "upper"], 3, "LABEL"),
        ([*convert, csv], 2, "CONFIG"),
        (["data_tools", "verify", out], 3, "INPUT"),
    ):
        ran = run_cli(args)
        assert (ran.rc, ran.stdout) == (code, "")
        assert ran.error.startswith(f"error: {kind}: ")
        assert "Traceback" not in ran.stderr


def test_debug_shows_the_traceback_and_ends_with_the_line(
    data_tools: Tools, tmp_path: Path
) -> None:
    plain = data_tools("verify", tmp_path / "absent")
    debug = data_tools("verify", tmp_path / "absent", "--debug")
    assert debug.rc == plain.rc == 3
    assert debug.stderr.startswith("Traceback (most recent call last):\n")
    assert debug.error == plain.error


def test_the_command_runs_from_any_folder(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "data_tools", "verify", "set"], cwd=tmp_path, check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 3
    assert ran.stderr.startswith("error: INPUT: set: ")
