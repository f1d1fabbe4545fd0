"""`python -m hvd_train` is the command hvd_train."""

import sys

from hvd_train.cli import main

if __name__ == "__main__":
    sys.exit(main())
