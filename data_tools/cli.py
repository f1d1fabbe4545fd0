"""The command `data_tools`: one subcommand for each thing to do."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from data_tools import __version__, launch_env, ranks
from data_tools.errors import parse_flags, run_main, unknown_command
from data_tools.ranks import Ranks

COMMANDS = {
    "download": ("data_tools.download", "Download", "download CIFAR-10 or CIFAR-100"),
    "make-captcha": ("data_tools.generate", "MakeCaptcha", "draw captchas with their labels"),
    "captcha-to-tfrecord": (
        "data_tools.convert_captcha", "CaptchaToTfrecord",
        "convert captchas and a CSV of labels",
    ),
    "cifar-to-tfrecord": (
        "data_tools.convert_cifar", "CifarToTfrecord",
        "convert the binary files of CIFAR-10 or CIFAR-100",
    ),
    "folder-to-tfrecord": (
        "data_tools.convert_folder", "FolderToTfrecord",
        "convert images that lie in a folder for each class",
    ),
    "svhn-to-tfrecord": (
        "data_tools.convert_svhn", "SvhnToTfrecord", "convert the cropped digits of SVHN",
    ),
    "verify": ("data_tools.verify", "Verify", "check every byte of data sets, or TFRecord files"),
    "info": ("data_tools.info", "Info", "show what is in a data set"),
    "preview": ("data_tools.preview", "Preview", "draw images with their labels"),
    "reshard": (
        "data_tools.reshard", "Reshard",
        "change the shards of a data set, or make one of TFRecord files",
    ),
}  # fmt: skip
"""Module, flags and summary; only the module that is asked for is imported."""

SHARED = ("make-captcha", "captcha-to-tfrecord", "cifar-to-tfrecord", "folder-to-tfrecord")
"""Commands whose work several ranks share; the others rank 0 does alone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand that the command line names and returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if "numpy" not in sys.modules:
        # Its threads multiply matrices, which no command does; without them it can be forked.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A scheduler's SIGTERM is answered as Ctrl-C is: what is unfinished gets removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see __main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_main(lambda: _run(argv), debug="--debug" in argv)


def usage() -> str:
    """The help of the command itself."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, _, summary) in COMMANDS.items()]
    return "\n".join([
        "usage: data_tools COMMAND [FLAGS]", "", "commands:", *lines, "",
        "data_tools COMMAND --help shows the flags of a command.",
    ])  # fmt: skip


def _run(argv: Sequence[str]) -> None:
    name, *words = argv or [""]
    if name in ("-h", "--help", "--version"):
        if launch_env.is_first_rank():
            print(f"data_tools {__version__}" if name == "--version" else usage())
        return
    launch = launch_env.read()
    if name in SHARED:
        ranks.run(launch, lambda ranks: _run_command(name, words, ranks))
    elif launch.rank == 0:
        if name not in COMMANDS:
            raise unknown_command(name, COMMANDS)
        _run_command(name, words)


def _run_command(name: str, words: Sequence[str], *ranks: Ranks) -> None:
    from data_tools import flags  # and with it tyro, which `data_tools --help` doesn't need

    module_name, flags_name, _ = COMMANDS[name]
    command = parse_flags(getattr(flags, flags_name), prog=f"data_tools {name}", argv=words)
    importlib.import_module(module_name).main(command, *ranks)
