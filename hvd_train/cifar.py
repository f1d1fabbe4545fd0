"""Trains the TensorFlow CIFAR-10 tutorial's network on one or many ranks.

python hvd_train/cifar.py
horovodrun -np 8 -H host1:4,host2:4 python hvd_train/cifar.py
mpirun -np 2 python hvd_train/cifar.py
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, Python looks for imports in this folder first, where hvd_train isn't.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hvd_train import start
from hvd_train.config import CifarConfig

CONFIG = CifarConfig
TASK = "hvd_train.task:CIFAR"


def main(argv: list[str] | None = None, prog: str = "cifar.py") -> int:
    """Trains as the flags say and returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    return start.main(argv, prog=prog, config_type=CONFIG, task_path=TASK)


if __name__ == "__main__":
    sys.exit(main())
