"""All ranks come together once, as for a training; run by the doctor as a process of its own.

It reads a value of JSON and writes those of all ranks by rank, with what this rank computes on, or
the one error.
"""

import json
import sys
import time

from data_tools import launch_env
from data_tools.errors import DataError
from hvd_train import threads
from hvd_train.start import import_trainer


def main() -> None:
    """Gathers the value of standard input from all ranks and prints them as a line of JSON."""
    value = json.load(sys.stdin)
    launch = launch_env.read()
    threads.configure(launch)
    try:
        dist, tf = import_trainer("hvd_train.dist"), import_trainer("tensorflow")
        dist.init(launch)
        load = {
            "tensorflow": tf.__version__, "horovod": dist.horovod_version(),
            "gpus": len(tf.config.list_physical_devices("GPU")),
        }  # fmt: skip
        dist.allgather_json(None)  # so that all read their clocks at about the same time
        found = {"reports": dist.allgather_json({**value, "load": load, "time": time.time()})}
    except DataError as error:
        found = {"error": [error.kind.name, error.where, error.reason, error.fix]}
    print()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
