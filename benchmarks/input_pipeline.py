"""Compares our input pipeline with the CIFAR-10 tutorial's, on one core, and with memory itself.

    .venv/bin/python benchmarks/input_pipeline.py

Both read CIFAR-10 records and make distorted, standardised batches of 128: ours from a data set
folder in memory, the tutorial's image by image in tf.data from the binary file, as its
cifar10_input.py and the guide of tf.data have it. Nothing is trained. Prints images/s of one core,
the ratio for each of the interleaved rounds, how near our bytes come to a plain copy, and what each
of the augmentations takes an image.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORE = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORE})  # before any library makes threads
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from harness import add_save, report, summary

from data_tools import convert_cifar, manifest
from data_tools.flags import CifarToTfrecord
from hvd_train.data import augment, sharding
from hvd_train.data.source import Batch, open_source

BATCH, SIZE = 128, 24
CLASSES, RECORD_BYTES = 10, 3073


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=50_000, help="size of the random set")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    add_save(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        binary = write_records(Path(folder) / "data_batch_1.bin", arguments.images)
        ours, tutorial = our_batches(binary), tutorial_batches(binary)
        rounds = [
            (rate(ours, arguments.seconds), rate(tutorial, arguments.seconds), copy_speed())
            for _ in range(arguments.rounds)
        ]
    ours_rates, tutorial_rates, _ = zip(*rounds, strict=True)
    bytes_an_image = SIZE * SIZE * 3 * 4
    shares = [a * bytes_an_image / copied for a, _, copied in rounds]
    lines = [
        summary("ours, images/s", ours_rates),
        summary("the tutorial's, images/s", tutorial_rates),
        summary("ours / the tutorial's (target 10)", [a / b for a, b, _ in rounds]),
        summary("our bytes / those of a copy", shares),
        *augmentations(arguments.rounds, arguments.seconds),
    ]
    report(lines, save=arguments.save)


def augmentations(rounds: int, seconds: float) -> list[str]:
    """Times each augmentation alone, on batches of 128 of CIFAR's and of captchas' size."""
    rng = np.random.default_rng(0)
    ids, epochs = np.arange(BATCH) * 50, np.zeros(BATCH, int)
    drawn: dict[str, Any] = {"seed": 0, "num_examples": 50 * BATCH}
    squares, captchas = (
        rng.integers(0, 256, (BATCH, height, width, 3), np.uint8)
        for height, width in ((32, 32), (20, 80))
    )
    whole = Batch(ids, augment.center(squares, size=32), np.zeros((BATCH, 1), np.int32))
    calls: dict[str, Callable[[int], Any]] = {
        "distort 24": lambda _: augment.distort(squares, ids, epochs, size=SIZE, **drawn),
        "crop 32": lambda _: augment.random_crop(squares, ids, epochs, size=32, **drawn),
        "cutout 8": lambda _: augment.cutout(whole.images, ids, epochs, side=8, **drawn),
        "mixup of images that are there": lambda _: augment.mixup(
            lambda *_: whole, ids, epochs, alpha=0.2, num_classes=CLASSES, **drawn
        ),
        "shift 80x20": lambda _: augment.shift(captchas, ids, epochs, **drawn),
        "rotate 80x20": lambda _: augment.rotate(captchas, ids, epochs, **drawn),
        "noise 80x20": lambda _: augment.noise(captchas, ids, epochs, **drawn),
    }
    return [
        summary(f"{name}, us an image", [1e6 / rate(call, seconds / 10) for _ in range(rounds)])
        for name, call in calls.items()
    ]


def write_records(path: Path, count: int) -> Path:
    """Writes random records of CIFAR-10's binary layout."""
    records = np.random.default_rng(0).integers(0, 256, (count, RECORD_BYTES), np.uint8)
    records[:, 0] %= CLASSES
    path.write_bytes(records.tobytes())
    return path


def our_batches(binary: Path) -> Callable[[int], Any]:
    """Makes the batch of a step as the trainer's input thread does."""
    folder = binary.parent / "set"
    convert_cifar.main(CifarToTfrecord(src=(binary,), out=folder))
    source = open_source(folder, manifest.load(folder), "train", budget=2.0**31)

    def batch(step: int) -> np.ndarray:
        ids, epochs = sharding.global_batch(step, size=BATCH, num_examples=len(source), seed=0)
        images = source.gather(ids).images
        return augment.distort(images, ids, epochs, size=SIZE, seed=0, num_examples=len(source))

    return batch


def tutorial_batches(binary: Path) -> Callable[[int], Any]:
    """Makes batches as the tutorial did: each image cropped, mirrored and so on by itself."""

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = tf.io.decode_raw(record, tf.uint8)
        image = tf.transpose(tf.reshape(values[1:], [3, 32, 32]), [1, 2, 0])
        image = tf.image.random_crop(tf.cast(image, tf.float32), [SIZE, SIZE, 3])
        image = tf.image.random_flip_left_right(image)
        image = tf.image.random_brightness(image, max_delta=63)
        image = tf.image.random_contrast(image, lower=0.2, upper=1.8)
        return tf.image.per_image_standardization(image), tf.cast(values[0], tf.int32)

    data = tf.data.FixedLengthRecordDataset(str(binary), RECORD_BYTES).cache().repeat()
    data = data.shuffle(20_000).map(parse, num_parallel_calls=1).batch(BATCH).prefetch(1)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    batches = iter(data.with_options(options))
    return lambda _: next(batches)


def rate(batch: Callable[[int], Any], seconds: float) -> float:
    """Returns images per second."""
    batch(0)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        steps += 1
        batch(steps)
    return steps * BATCH / (time.perf_counter() - start)


def copy_speed() -> float:
    """Returns the bytes per second of copying an array of 64 MiB."""
    source = np.ones(1 << 26, np.uint8)
    target = np.zeros_like(source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return source.nbytes / min(times)


if __name__ == "__main__":
    main()
