"""Trains on CIFAR-10 by the README's commands and prints precision @ 1 and time.

    .venv/bin/python benchmarks/cifar_accuracy.py tutorial      # 24x24 crops, distorted
    .venv/bin/python benchmarks/cifar_accuracy.py undistorted   # whole 32x32 images as they are

Both take 10 epochs of the recipe of that name. The data is the binary version of CIFAR-10:
--source names its folder, else $HVD_TRAIN_TEST_DATA is unpacked. Trained on the first 45,000
training images and tested, once, on the last 5,000 and the first 1,000 test images: of the set
that our tests use, those are exact. With --official all 50,000 are trained on and all 10,000
tested. A line is appended to benchmarks/results/cifar-accuracy.md; a run that was cut goes on.
"""

import argparse
import datetime
import json
import os
import random
import tempfile
from pathlib import Path

from harness import RESULTS, ROOT, append, processor, run

HEAD = (
    "# Precision @ 1 on CIFAR-10 by `benchmarks/cifar_accuracy.py`\n\n"
    "| date | recipe | machine | precision @ 1 at the end | steps x batch | seconds |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)
DATASETS = ROOT / "datasets"
RECORD_BYTES = 3073
HELD_OUT, EXACT_TEST = 5_000, 1_000

RECIPES = {
    "tutorial": "recipes/cifar10-tutorial.yaml",
    "undistorted": "recipes/cifar10-undistorted.yaml",
}


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--source", type=Path, help="folder of data_batch_*.bin and test_batch.bin")
    parser.add_argument("--official", action="store_true", help="the official splits")
    parser.add_argument("--smoke", action="store_true", help="3 steps, no result is written")
    arguments = parser.parse_args()
    name = f"{arguments.recipe}{'-official' if arguments.official else ''}"
    if arguments.smoke:
        with tempfile.TemporaryDirectory() as folder:
            data = random_set(Path(folder) / "random")
            flags = ["--steps", "3", "--runs-dir", folder]
            print(measure(arguments, data, name, Path(folder), flags), end="")
    else:
        data = prepare(arguments.source, official=arguments.official)
        line = measure(arguments, data, name, ROOT / "runs", [])
        print(line, end="")
        append(RESULTS / "cifar-accuracy.md", HEAD, line)


def measure(
    arguments: argparse.Namespace, data: Path, name: str, runs: Path, flags: list[str]
) -> str:
    """Trains and returns the line of the table."""
    command = [
        "horovodrun", "-np", str(arguments.ranks), "python", "hvd_train/cifar.py", "--config",
        RECIPES[arguments.recipe], "--data", str(data), "--name", name, "--resume", *flags,
    ]  # fmt: skip
    folder = runs / name
    goes_on = folder.exists()
    seconds = f"{run(command):.0f}{' after a cut' if goes_on else ''}"
    result = json.loads((folder / "eval.json").read_text())
    folder.rename(folder.with_name(f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"))
    return (
        f"| {datetime.date.today()} | {name} | {arguments.ranks} ranks on {os.cpu_count()} cores, "
        f"{processor()} | {result['precision_at_1']:.4f} ({result['correct']} of "
        f"{result['examples']}) | {result['step']} x {result['global_batch']} | {seconds} |\n"
    )


def random_set(folder: Path) -> Path:
    """Makes a small data set of random pictures."""
    folder.mkdir()
    for name, count in (("data_batch_1.bin", 256), ("test_batch.bin", 20)):
        pictures = random.Random(name).randbytes(count * RECORD_BYTES)
        records = [bytes([i % 10]) + pictures[i * 3072 : (i + 1) * 3072] for i in range(count)]
        (folder / name).write_bytes(b"".join(records))
    files = map(str, sorted(folder.glob("*.bin")))
    run(["data_tools", "cifar-to-tfrecord", *files, str(folder / "set")])
    return folder / "set"


def prepare(source: Path | None, *, official: bool) -> Path:
    """Converts the data, unless the data set is there, and returns its folder."""
    data = DATASETS / ("cifar10" if official else "cifar10-exact")
    if data.exists():
        return data
    source = source or unpack()
    files = [source] if official else exact_files(source)
    run(["data_tools", "cifar-to-tfrecord", *map(str, files), str(data)])
    return data


def unpack() -> Path:
    """Unpacks the test data's CIFAR-10 and returns its folder."""
    tool = Path(os.environ["HVD_TRAIN_TEST_DATA"]) / "unpack.py"
    folder = DATASETS / "cifar-10-test-data"
    if not folder.exists():
        run(["python", str(tool), "cifar10", str(folder)])
    return folder / "cifar-10-batches-bin"


def exact_files(source: Path) -> list[Path]:
    """Writes the files to train on and to test on that the module's docstring tells of."""
    folder = DATASETS / "cifar-10-exact"
    folder.mkdir(parents=True, exist_ok=True)
    batches = b"".join((source / f"data_batch_{batch}.bin").read_bytes() for batch in range(1, 6))
    split = len(batches) - HELD_OUT * RECORD_BYTES
    test = (source / "test_batch.bin").read_bytes()[: EXACT_TEST * RECORD_BYTES]
    content = {
        "data_batch_1.bin": batches[:split],
        "test_batch.bin": batches[split:] + test,
        "batches.meta.txt": (source / "batches.meta.txt").read_bytes(),
    }
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return [folder]


if __name__ == "__main__":
    main()
