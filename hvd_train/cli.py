"""The command `hvd_train`: one subcommand for each thing to do."""

import sys
from collections.abc import Sequence

from data_tools import __version__
from data_tools.errors import run_main, unknown_command
from hvd_train import captcha, cifar

COMMANDS = {"cifar": cifar.main, "captcha": captcha.main}

USAGE = """usage: hvd_train COMMAND [FLAGS]

commands:
  cifar     train the CIFAR-10 tutorial's network on one or many ranks
  captcha   train a captcha recogniser on one or many ranks

hvd_train COMMAND --help shows the flags of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the subcommand that the command line names and returns the exit code."""
    name, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if name in ("-h", "--help"):
        return run_main(lambda: print(USAGE))
    if name == "--version":
        return run_main(lambda: print(f"hvd_train {__version__}"))
    if name not in COMMANDS:
        return run_main(lambda: _refuse(name))
    return COMMANDS[name](flags, prog=f"hvd_train {name}")


def _refuse(name: str) -> None:
    raise unknown_command(name, COMMANDS)
