"""Trains captcha recognisers by the README's commands and prints accuracy and time.

    .venv/bin/python benchmarks/captcha_accuracy.py generated    # 6,000 drawn captchas, ctc
    .venv/bin/python benchmarks/captcha_accuracy.py lesson       # the same, the lesson's recipe
    .venv/bin/python benchmarks/captcha_accuracy.py genpics      # real ones, $HVD_TRAIN_TEST_DATA

Each set is converted once and kept in datasets/. A line is appended to
benchmarks/results/captcha-accuracy.md: whole-image accuracy of the last checkpoint on the test
split (10 % of the images, by hash), evaluated once, and the seconds of the whole command, start
included.
"""

import argparse
import datetime
import json
import os
import tempfile
import zipfile
from pathlib import Path

from harness import RESULTS, ROOT, append, processor, run

HEAD = (
    "# Whole-image accuracy by `benchmarks/captcha_accuracy.py`\n\n"
    "| date | figure | machine | accuracy on the test split | steps | seconds |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)

FLAGS = {
    "generated": [],
    "lesson": ["--config", "recipes/captcha-lesson.yaml"],
    "genpics": [],
    "smoke": ["--steps", "20"],
}


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figure", choices=FLAGS)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.figure == "smoke":
        with tempfile.TemporaryDirectory() as folder:
            print(measure("smoke", arguments.ranks, Path(folder)), end="")
    else:
        line = measure(arguments.figure, arguments.ranks, ROOT)
        print(line, end="")
        append(RESULTS / "captcha-accuracy.md", HEAD, line)


def measure(figure: str, ranks: int, base: Path) -> str:
    """Trains, with data sets and runs in a folder, and returns the line of the table."""
    data = prepare(figure, base / "datasets")
    name = f"{figure}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    command = [
        "horovodrun", "-np", str(ranks), "python", "hvd_train/captcha.py", "--data", str(data),
        "--name", name, "--runs-dir", str(base / "runs"), *FLAGS[figure],
    ]  # fmt: skip
    seconds = run(command)
    result = json.loads((base / "runs" / name / "eval.json").read_text())
    return (
        f"| {datetime.date.today()} | {figure} | {ranks} ranks on "
        f"{os.cpu_count()} cores, {processor()} | {result['accuracy']:.4f} "
        f"({result['correct']} of {result['examples']}) | {result['step']} | {seconds:.0f} |\n"
    )


def prepare(figure: str, datasets: Path) -> Path:
    """Makes the data set of a figure, unless it is there, and returns its folder."""
    if figure == "genpics":
        return convert(genpics_images(datasets), datasets / "genpics")
    count = 300 if figure == "smoke" else 6000
    images = datasets / "captcha-images"
    if not images.exists():
        run(["data_tools", "make-captcha", str(images), "--count", str(count), "--seed", "0"])
    return convert(images, datasets / "captcha")


def convert(images: Path, data: Path) -> Path:
    """Converts a folder with its labels.csv, unless the data set is there."""
    if not data.exists():
        labels = str(images / "labels.csv")
        run(["data_tools", "captcha-to-tfrecord", str(images), labels, str(data)])
    return data


def genpics_images(datasets: Path) -> Path:
    """Unpacks the 5,000 GenPics captchas, digits of 60x24, and returns their folder."""
    target = datasets / "genpics-images"
    if not target.exists():
        source = Path(os.environ["HVD_TRAIN_TEST_DATA"]) / "captcha" / "genpics_digits.zip"
        with zipfile.ZipFile(source) as archive:
            archive.extractall(target)
    return next(target.rglob("labels.csv")).parent


if __name__ == "__main__":
    main()
