"""The command `hvd_train`: one subcommand for each thing to do."""

import sys

from data_tools.errors import CONFIG, DataError, run_main
from hvd_train import captcha

COMMANDS = {"captcha": captcha.main}

USAGE = """usage: hvd_train COMMAND [FLAGS]

commands:
  captcha   train a captcha recogniser on one or many ranks

hvd_train COMMAND --help shows the flags of a command."""


def main() -> int:
    """Runs the subcommand that the command line names and returns the exit code."""
    name, *flags = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name not in COMMANDS:
        return run_main(lambda: _unknown(name))
    return COMMANDS[name](flags, prog=f"hvd_train {name}")


def _unknown(name: str) -> None:
    known = ", ".join(COMMANDS)
    raise DataError(CONFIG, "command line", f"no command {name!r}", fix=f"the commands: {known}")
