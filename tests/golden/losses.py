"""Trains each model for 20 steps by its default settings and writes the losses.

    .venv/bin/python tests/golden/losses.py tests/golden/losses.json

writes those that test_golden.py compares with anew, for when a formula is meant to change.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np
from small_cifar import CLASSES10, record
from small_sets import texts, write_set

from data_tools import cli
from hvd_train import captcha, cifar

STEPS = 20
EXAMPLES = 256
RUNS = {
    "tutorial": (cifar.main, "cifar10", []),
    "ctc": (captcha.main, "captcha", ["--model", "ctc"]),
    "linear": (captcha.main, "captcha", ["--model", "linear"]),
}


def main(out: Path) -> None:
    """Runs all of them in this process and writes their losses by model."""
    with tempfile.TemporaryDirectory() as folder:
        write_sets(Path(folder))
        losses = {name: train(name, Path(folder)) for name in RUNS}
    out.write_text(json.dumps(losses, indent=1) + "\n")


def write_sets(folder: Path) -> None:
    """Writes data sets whose pixels and labels no library but NumPy has a part in."""
    write_set(folder / "captcha", train=texts(EXAMPLES), test=texts(8))
    binary = folder / "binary"
    binary.mkdir()
    for name, numbers in (("data_batch_1", range(EXAMPLES)), ("test_batch", range(8))):
        (binary / f"{name}.bin").write_bytes(b"".join(map(class_record, numbers)))
    (binary / "batches.meta.txt").write_text("\n".join(CLASSES10) + "\n")
    command = ["cifar-to-tfrecord", str(binary), str(folder / "cifar10"), "--workers", "1"]
    with contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(command) == 0


def class_record(number: int) -> bytes:
    """A picture that tells its class, so that there is something to learn from the first step."""
    label = number % 10
    pattern = np.kron(np.random.default_rng(label).integers(0, 192, (4, 4, 3)), np.ones((8, 8, 1)))
    noise = np.random.default_rng(10 + number).integers(0, 64, (32, 32, 3))
    return record([label], (pattern + noise).astype(np.uint8))


def train(name: str, folder: Path) -> list[float]:
    """The loss of each step, as the run wrote it down."""
    command, data, flags = RUNS[name]
    code = command([
        *flags, "--data", str(folder / data), "--runs-dir", str(folder), "--name", f"run-{name}",
        "--steps", str(STEPS), "--log-every", "1", "--eval-every", "0",
    ])  # fmt: skip
    assert code == 0
    lines = map(json.loads, (folder / f"run-{name}" / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["split"] == "train"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
