"""`python -m data_tools` is the command data_tools."""

import sys

from data_tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
