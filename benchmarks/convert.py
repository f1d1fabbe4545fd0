"""Times conversions beside what they can't be faster than, and beside what others do instead.

    .venv/bin/python benchmarks/convert.py --save

All are functions called in this process, so that no start of an interpreter counts; the start of
--workers does. mpirun's ranks start anew, and are timed from their second conversion. Rounds are
interleaved.

Memory is the peak of a whole command for some numbers of rows, by which its slope is told.
"""

import argparse
import contextlib
import importlib
import io
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does, to be forked

import numpy as np
from harness import BIN, ROOT, add_save, environment, report, summary
from PIL import Image

from data_tools import convert_captcha, convert_cifar, generate, launch_env, ranks
from data_tools.flags import CaptchaToTfrecord, CifarToTfrecord, MakeCaptcha
from data_tools.ranks import ALONE, Ranks

RECORD, PIXELS = 3073, 32 * 32
SHARDS = 8
TFDS_BATCH = 1000
FEW = 8
"""Images of a conversion that takes no longer than what is there to do for any."""


def main() -> None:
    """Runs the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=60_000, help="of CIFAR-10")
    parser.add_argument("--captchas", type=int, default=5000)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else a temporary one")
    parser.add_argument("--under-mpirun", type=Path, help=argparse.SUPPRESS)
    add_save(parser)
    arguments = parser.parse_args()
    if arguments.under_mpirun:
        time_ranks(arguments.under_mpirun)
        return
    lines = []
    for part in arguments.only:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            lines += PARTS[part](Path(folder), arguments)
    report(lines, save=arguments.save)


def seconds_of(function: Callable[[], object]) -> float:
    """Times a call, whose output is not shown."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        function()
    return time.perf_counter() - start


def interleaved(rounds: int, functions: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Times each function once a round; one that returns a number has timed itself."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _, name in itertools.product(range(rounds), functions):
        told: list[object] = []
        seconds = seconds_of(lambda name=name, told=told: told.append(functions[name]()))
        times[name].append(told[0] if isinstance(told[0], float) else seconds)
    return times


def ratio(what: str, over: Sequence[float], under: Sequence[float]) -> str:
    """The ratio of each round, as an item of a list."""
    return summary(what, [a / b for a, b in zip(over, under, strict=True)])


# CIFAR-10


def cifar(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Converts CIFAR-10; the same bytes copied and hashed; TensorFlow's writer; TFDS."""
    importlib.import_module("tensorflow_datasets")  # and TensorFlow, before anything is timed
    binary, out = folder / "binary", folder / "set"
    write_binary(binary, arguments.images)
    command = CifarToTfrecord(src=(binary,), out=out, shards=SHARDS)

    def ours() -> float:
        shutil.rmtree(out, ignore_errors=True)
        return seconds_of(lambda: convert_cifar.main(command))

    times = interleaved(
        arguments.rounds,
        {
            "ours": ours,
            "copy": lambda: copy_and_hash(out, folder / "copy"),
            "loop": lambda: example_loop(binary, folder / "loop"),
            "tfds": lambda: tfds_writer(binary, folder / "tfds"),
        },
    )
    own = times["ours"]
    return [
        f"CIFAR-10, {arguments.images} random images, {SHARDS} shards:", "",
        summary("ours, s", own),
        summary("cp, fsync and sha256sum of the same bytes, s", times["copy"]),
        summary("tf.train.Example and TFRecordWriter, s", times["loop"]),
        summary("TFDS, features Tensor, not shuffled, s", times["tfds"]),
        ratio("ours / copy (target 1.0 or less)", own, times["copy"]),
        ratio("tf.train.Example / ours (target 3)", times["loop"], own),
        ratio("TFDS / ours", times["tfds"], own), "",
    ]  # fmt: skip


def write_binary(folder: Path, count: int) -> None:
    """Writes random records of CIFAR-10 in six files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    for name in names:
        records = rng.integers(0, 256, (count // len(names), RECORD), np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())


def copy_and_hash(source: Path, target: Path) -> None:
    """What nobody can do without who writes these bytes and their SHA-256."""
    shutil.rmtree(target, ignore_errors=True)
    script = 'cp -r "$1" "$2" && sync "$2"/* && sha256sum "$2"/*'
    subprocess.run(["sh", "-c", script, "sh", source, target], check=True, capture_output=True)


def images_of(binary: Path) -> Iterator[tuple[bytes, int]]:
    """The pixels, HWC, and the label of each image."""
    for path in sorted(binary.iterdir()):
        for record in np.fromfile(path, np.uint8).reshape(-1, RECORD):
            yield record[1:].reshape(3, PIXELS).T.tobytes(), int(record[0])


def example_loop(binary: Path, out: Path) -> None:
    """The loop of TensorFlow's guide: a message and a write for each image."""
    import tensorflow as tf

    out.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(tf.io.TFRecordWriter(str(out / f"{shard:05d}")))
            for shard in range(SHARDS)
        ]
        for index, (pixels, label) in enumerate(images_of(binary)):
            image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels]))
            number = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
            features = tf.train.Features(feature={"image": image, "label": number})
            example = tf.train.Example(features=features)
            writers[index % SHARDS].write(example.SerializeToString())


def tfds_writer(binary: Path, out: Path) -> None:
    """TFDS's own way to store examples."""
    import tensorflow_datasets as tfds

    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    features = {
        "image": tfds.features.Tensor(shape=(32, 32, 3), dtype=np.uint8, encoding="bytes"),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    writer = tfds.core.SequentialWriter(
        tfds.core.DatasetInfo(
            builder=tfds.core.DatasetIdentity(
                name="cifar10", version=tfds.core.Version("1.0.0"), data_dir=str(out),
                module_name=__name__,
            ),
            features=tfds.features.FeaturesDict(features),
        ),
        max_examples_per_shard=10_000,
    )  # fmt: skip
    writer.initialize_splits(["train"])
    examples = (
        {"image": np.frombuffer(pixels, np.uint8).reshape(32, 32, 3), "label": label}
        for pixels, label in images_of(binary)
    )
    while some := list(itertools.islice(examples, TFDS_BATCH)):
        writer.add_examples({"train": some})
    writer.close_all()


# Captchas


def captcha(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Converts captchas in 1 process and 2; Pillow's decoding of the same files alone."""
    images, few = folder / "images", folder / "few"
    for path, count in ((images, arguments.captchas), (few, FEW)):
        seconds_of(lambda path=path, count=count: generate.main(MakeCaptcha(out=path, count=count)))
    paths = sorted(images.glob("*.jpg"))
    times = interleaved(
        arguments.rounds,
        {
            "one": lambda: convert_anew(images, workers=1),
            "pillow": lambda: decode_all(paths),
            "two": lambda: convert_anew(images, workers=2),
            "few": lambda: convert_anew(few, workers=2),
            "ranks": lambda: run_ranks(images),
        },
    )
    one = times["one"]
    return [
        f"{arguments.captchas} captchas, JPEG of 80x20, 4 shards:", "",
        summary("ours, one process, s", one),
        summary("Pillow, read and decode each of the files, s", times["pillow"]),
        summary("ours, --workers 2, s", times["two"]),
        summary(f"ours, --workers 2, of {FEW} captchas, s", times["few"]),
        summary("ours, mpirun -np 2, s", times["ranks"]),
        ratio("rate of one process / Pillow's (target 0.8)", times["pillow"], one),
        ratio("one process / 2 workers (target 1.7)", one, times["two"]),
        ratio("one process / 2 ranks (target 1.7)", one, times["ranks"]), "",
    ]  # fmt: skip


def convert_anew(images: Path, *, workers: int, ranks: Ranks = ALONE) -> float:
    """Converts a folder of captchas; returns the seconds, without those to remove an old set."""
    labels, out = images / "labels.csv", images.with_name(images.name + "-set")
    if ranks.rank == 0:
        shutil.rmtree(out, ignore_errors=True)
    command = CaptchaToTfrecord(images=images, labels=labels, out=out, workers=workers)
    return seconds_of(lambda: convert_captcha.main(command, ranks))


def decode_all(paths: Sequence[Path]) -> None:
    """Reads each file and decodes it; that no array is made of it is as little as can be done."""
    for path in paths:
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            image.load()


def run_ranks(images: Path) -> float:
    """Converts on 2 ranks, twice, and returns the seconds of the second time."""
    again = [str(BIN / "python"), str(ROOT / "benchmarks" / "convert.py"), "--under-mpirun"]
    ran = subprocess.run(
        [str(BIN / "mpirun"), "-np", "2", *again, str(images)],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(ran.stdout.splitlines()[-1]))


def time_ranks(images: Path) -> None:
    """What each rank of `run_ranks` does."""

    def convert_twice(ranks: Ranks) -> None:
        times = [convert_anew(images, workers=1, ranks=ranks) for _ in range(2)]
        print(times[-1], flush=True)

    ranks.run(launch_env.read(), convert_twice)


# Memory


def memory(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """The peak of commands that convert some numbers of small rows."""
    lines = ["Peak memory of the whole command, MB (target 300 at any size):", ""]
    for kind, prepare in (("captchas of 8x8", many_captchas), ("CIFAR-10 images", many_images)):
        peaks = [peak_of(prepare(folder / f"{kind} {rows}", rows)) for rows in arguments.rows]
        told = ", ".join(
            f"{peak / 1e6:.0f} for {rows}" for peak, rows in zip(peaks, arguments.rows, strict=True)
        )
        slope = statistics.linear_regression(arguments.rows, peaks).slope
        lines.append(f"- {kind}: {told}; {slope:.1f} bytes a row")
    return [*lines, ""]


def many_captchas(folder: Path, rows: int) -> list[str]:
    """Captchas, hard links of a few files."""
    images = folder / "images"
    images.mkdir(parents=True)
    files = []
    for first in range(0, rows, 50_000):  # as many links as a file may have
        pixels = np.random.default_rng(first).integers(0, 256, (8, 8, 3), np.uint8)
        files.append(images / f"{first}.png")
        Image.fromarray(pixels).save(files[-1])
    for index in range(rows):
        if index % 50_000:
            os.link(files[index // 50_000], images / f"{index}.png")
    labels = folder / "labels.csv"
    labels.write_text("".join(f"{index},{index % 10_000:04d}\n" for index in range(rows)))
    return ["captcha-to-tfrecord", str(images), str(labels), str(folder / "set")]


def many_images(folder: Path, rows: int) -> list[str]:
    """CIFAR-10's layout, in one file."""
    folder.mkdir()
    block = np.zeros((1000, RECORD), np.uint8).tobytes()
    binary = folder / "data_batch_1.bin"
    with binary.open("wb") as file:
        for _ in range(rows // 1000):
            file.write(block)
    return ["cifar-to-tfrecord", str(binary), str(folder / "set")]


PEAK = """
import pathlib, re, sys
from data_tools.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


def peak_of(words: Sequence[str]) -> int:
    """Runs data_tools in one process and returns the most memory it has had, in bytes.

    It tells that itself: what `wait4` tells counts our own memory too, from before the exec.
    """
    command = [sys.executable, "-c", PEAK, *words, "--workers", "1"]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"data_tools {' '.join(words)} ended with {ran.returncode}")
    return int(ran.stdout.split()[-1]) * 1024


PARTS = {"cifar": cifar, "captcha": captcha, "memory": memory}


if __name__ == "__main__":
    main()
