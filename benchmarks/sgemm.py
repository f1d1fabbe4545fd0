"""How fast this machine multiplies matrices: the roof over any training step on it.

python benchmarks/sgemm.py

Runs one process a core, each with one thread, and prints what all of them together did in the best
of several seconds, in GFLOP/s of float32.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np

SIZES = (1024, 1536, 2048)
WINDOWS = 6
"""Seconds that are measured, one after the other; each size of matrix gets several."""
START_SECONDS = 2.0
"""Within these all processes have started, so that they measure the same seconds."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> None:
    """Measures: one process of several when a time to begin is given, else all of them."""
    if len(sys.argv) > 1:
        print(json.dumps(rates(float(sys.argv[1]))))
    else:
        print(json.dumps({"gflops": rate_of_all_cores()}))


def rate_of_all_cores() -> float:
    """The best second of as many processes as there are cores, in GFLOP/s."""
    begin = time.time() + START_SECONDS
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(begin)],
            env={**os.environ, **ONE_THREAD},
            stdout=subprocess.PIPE,
        )
        for _ in os.sched_getaffinity(0)
    ]
    outputs = [json.loads(process.communicate()[0]) for process in processes]
    # Second by second: what two did at different times they might not do at once.
    return float(max(map(sum, zip(*outputs, strict=True))))


def rates(begin: float) -> list[float]:
    """The rate of this process in each second from a time on, in GFLOP/s."""
    rng = np.random.default_rng(0)
    pairs = [rng.standard_normal((2, size, size), np.float32) for size in SIZES]
    for left, right in pairs:
        left @ right
    found = []
    for window in range(WINDOWS):
        left, right = pairs[window % len(SIZES)]
        time.sleep(max(0.0, begin + window - time.time()))
        start, products = time.perf_counter(), 0
        while time.time() < begin + window + 1:
            left @ right
            products += 1
        # A window that the one before it has used up holds nothing.
        seconds = time.perf_counter() - start
        found.append(2e-9 * len(left) ** 3 * products / seconds if products else 0.0)
    return found


if __name__ == "__main__":
    main()
