"""Trains a captcha recogniser on one or many ranks.

python hvd_train/captcha.py
horovodrun -np 2 python hvd_train/captcha.py
mpirun -np 2 python hvd_train/captcha.py
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, Python looks for imports in this folder first: hvd_train wouldn't be found, and
    # this file would hide the library captcha.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hvd_train import start
from hvd_train.config import CaptchaConfig

CONFIG = CaptchaConfig
TASK = "hvd_train.task:CAPTCHA"


def main(argv: list[str] | None = None, prog: str = "captcha.py") -> int:
    """Trains as the flags say and returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return start.main(argv, prog=prog, config_type=CONFIG, task_path=TASK)


if __name__ == "__main__":
    sys.exit(main())
