"""`python -m data_tools` is the command data_tools."""

import signal
import sys


def main() -> int:
    """Runs the command; Ctrl-C while it is still imported, with nothing to remove, just ends it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from data_tools import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
