"""Times reading images with a trained run, start-up excluded, beside its bounds and a plain loop.

    .venv/bin/python benchmarks/predict.py

Trains a captcha recogniser on drawn captchas of 80x20, draws others and reads them: as `hvd_train
predict` does; by Pillow alone, which decodes them in as many threads; and as a plain loop does, by
Keras' `model.predict` one image at a time. Prints images/s of interleaved rounds.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_tools import launch_env
from hvd_train import threads

threads.configure(launch_env.ALONE)  # before TensorFlow loads

import numpy as np
from harness import add_save, report, run, scratch, summary
from PIL import Image

from hvd_train import image_files, predict, saved_run
from hvd_train.image_files import Preparation
from hvd_train.models import ctc


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=4000, help="to read")
    parser.add_argument("--plain", type=int, default=100, help="of them read by the plain loop")
    parser.add_argument("--run", type=Path, help="of captchas of 80x20, in place of one trained")
    add_save(parser)
    arguments = parser.parse_args()
    with scratch() as folder:
        count = str(arguments.images)
        run(["data_tools", "make-captcha", str(folder / "new"), "--count", count, "--seed", "1"])
        ways = ways_to_read(arguments.run or train(folder), folder / "new", arguments.plain)
        for _, read in ways.values():
            read()  # traces, and fills the caches
        rounds = [
            {name: rate(images, read) for name, (images, read) in ways.items()}
            for _ in range(arguments.rounds)
        ]
    lines = [summary(f"{name}, images/s", [one[name] for one in rounds]) for name in ways]
    report(lines, save=arguments.save)


def train(folder: Path) -> Path:
    """Trains a run, such as `make train` makes, and returns its folder."""
    images, data = str(folder / "images"), str(folder / "set")
    run(["data_tools", "make-captcha", images, "--count", "6000"])
    run(["data_tools", "captcha-to-tfrecord", images, f"{images}/labels.csv", data])
    runs = ["--runs-dir", str(folder / "runs"), "--name", "a"]
    run(["hvd_train", "captcha", "--data", data, "--epochs", "15", *runs])
    return folder / "runs" / "a"


def ways_to_read(
    trained: Path, folder: Path, plain: int
) -> dict[str, tuple[int, Callable[[], object]]]:
    """How many images each way reads, and how."""
    opened = saved_run.open_run(trained)
    predictor, preparation = predict.load_predictor(opened), Preparation.of(opened.manifest)
    task_model, label = opened.build(), opened.manifest.label
    opened.load(task_model, saved_run.newest(opened, skipped=[]))
    assert label is not None
    files, _ = image_files.find([folder])

    def by_predict() -> None:
        faults: list[object] = []
        assert sum(len(at) for at, _ in predict.read(files, preparation, predictor, faults)) == len(
            files
        )

    def by_pillow() -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(lambda file: np.asarray(Image.open(file)), files):
                pass

    def by_loop() -> None:
        for file in files[:plain]:
            pixels = np.asarray(Image.open(file))[None]
            logits = task_model.model.predict(pixels, verbose=0)
            ctc.decode(logits, min_length=label.min_length, max_length=label.max_length)

    return {
        "hvd_train predict": (len(files), by_predict),
        "Pillow alone": (len(files), by_pillow),
        "model.predict, one image at a time": (min(plain, len(files)), by_loop),
    }


def rate(images: int, read: Callable[[], object]) -> float:
    """Returns images per second."""
    start = time.perf_counter()
    read()
    return images / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
