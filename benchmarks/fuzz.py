"""Feeds damaged inputs to data_tools: each must convert whole or be refused in one line.

    .venv/bin/python benchmarks/fuzz.py --cases 50000 --save        (make fuzz)

Case i of a target is a function of (seed, target, i) alone, so `--only TARGET --first i --cases 1`
runs it again. A case fails by any exception but DataError, by a set that verify refuses, by more
than 5 seconds of computation or 60 of waiting; a target fails when its process has needed more
than 500 MB.
"""

import argparse
import contextlib
import dataclasses
import gzip
import hashlib
import io
import multiprocessing
import random
import resource
import signal
import struct
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import add_save, report, scratch
from PIL import Image

from data_tools import (
    convert_captcha,
    convert_cifar,
    images,
    info,
    manifest,
    schema,
    tfrecord,
    verify,
)
from data_tools.errors import CONFIG, INPUT, INTEGRITY, LABEL, DataError
from data_tools.flags import CaptchaToTfrecord, CifarToTfrecord, Verify
from data_tools.sources import cifar

MAX_SECONDS, MAX_BYTES = 5, 500_000_000
MAX_WAIT = 60
"""Seconds of a busy machine in which those of computation may come."""
FAULTS_SHOWN = 10


def main() -> None:
    """Runs the targets that the command line names, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="of each target")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    add_save(parser)
    arguments = parser.parse_args()
    cases = range(arguments.first, arguments.first + arguments.cases)
    lines, failed = [f"Seed {arguments.seed}, cases {cases.start} to {cases.stop - 1}.", ""], False
    lines += ["| target | passed | outcomes | peak MB | s |", "| --- | --- | --- | --- | --- |"]
    for target in arguments.only:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            outcomes, faults, peak, seconds = pool.apply(run_cases, (target, cases, arguments.seed))
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        passed = "no" if faults or peak > MAX_BYTES else "yes"
        failed |= passed == "no"
        lines.append(f"| {target} | {passed} | {told} | {peak / 1e6:.0f} | {seconds:.0f} |")
        print("\n".join(faults[:FAULTS_SHOWN]), end="\n" if faults else "", file=sys.stderr)
    report(lines, save=arguments.save)
    sys.exit(failed)


def run_cases(target: str, cases: range, seed: int) -> tuple[Counter[str], list[str], int, float]:
    """Runs cases of a target.

    Returns:
        How often each outcome came ("ok" or an error's kind), the faults with their numbers, the
        most memory that this process has ever had in bytes, and the seconds taken.
    """
    outcomes: Counter[str] = Counter()
    faults: list[str] = []
    start = time.monotonic()
    with scratch() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            case = TARGETS[target](folder)
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, too_long)
        for number in cases:
            rng = random.Random(f"{seed}/{target}/{number}")
            set_timers(MAX_SECONDS, MAX_WAIT)
            try:
                outcomes[outcome_of(case, rng)] += 1
            except BaseException:
                outcomes["FAULT"] += 1
                faults.append(f"{target}, case {number}: {traceback.format_exc()}")
            finally:
                set_timers(0, 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcomes, faults, peak, time.monotonic() - start


class TooLongError(BaseException):
    """No `except Exception` of the code under test may swallow it."""


def set_timers(computing: float, waiting: float) -> None:
    """Starts or stops the timers that end a case."""
    signal.setitimer(signal.ITIMER_PROF, computing)
    signal.setitimer(signal.ITIMER_REAL, waiting)


def too_long(*_: object) -> None:
    """Answers a timer."""
    raise TooLongError


def outcome_of(case: Callable[[random.Random], None], rng: random.Random) -> str:
    """Runs a case; an error must be of a kind that tells of the input, in one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            case(rng)
        assert not said.getvalue(), said.getvalue()
    except DataError as error:
        assert not said.getvalue(), said.getvalue()
        assert error.kind in (CONFIG, INPUT, LABEL, INTEGRITY), error
        assert "\n" not in error.report().splitlines()[-1]
        return error.kind.name
    return "ok"


def damage(rng: random.Random, data: bytes, words: tuple[bytes, ...] = ()) -> bytes:
    """Returns the bytes with a few random changes; `words` are put in besides random bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice((1, 1, 2, 4, 30, 300))
        match rng.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at : at + length] = rng.randbytes(length)
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = rng.choice((*words, rng.randbytes(length), bytes(length)))
            case 4:
                source = rng.randrange(len(changed) + 1)
                changed[at:at] = changed[source : source + length]
            case 5 if rng.randrange(4) == 0:
                del changed[at:]
    return bytes(changed)


# Captchas by CSV

CSV_WORDS = (
    b"\r\n", b"\n", b"\r", b'"', b'""', b",", b";", b"\t", b"\0", b"\xff", b"\xef\xbb\xbf", b" ",
    b"../0.jpg", b"/etc/passwd", b"1.png", b"id,label\n", "\u0130\u00df".encode(), b"\xe2\x80\xa8",
    b"=1+1", b"\x1b[31m", b"." * 300, b"," * 40,
)  # fmt: skip


def captcha_csv(folder: Path) -> Callable[[random.Random], None]:
    """Converts fixed images by a damaged CSV and verifies what comes out."""
    pictures = folder / "images"
    pictures.mkdir()
    for index, name in enumerate(("0.jpg", "1.png", "2.JPG", "a,b.jpg", "\u00e9.jpeg", "sub.jpg")):
        codec = "PNG" if name.endswith("png") else "JPEG"
        picture(random.Random(index), (12, 8)).save(pictures / name, codec)
    rows = ["0,ABCD", "1.png,WXYZ", "2.JPG,AAAA", '"a,b.jpg","QQ""Q"', "\u00e9,1E10", "sub,TRUE"]
    csv, out = folder / "labels.csv", folder / "set"

    def case(rng: random.Random) -> None:
        header = rng.choice(("", "", "file,label\n"))
        kept = rng.sample(rows, rng.randint(1, len(rows)))
        csv.write_bytes(damage(rng, (header + "\n".join(kept)).encode(), CSV_WORDS))
        command = CaptchaToTfrecord(
            images=pictures, labels=csv, out=out, workers=1, overwrite=True,
            shards=rng.randint(1, 3), skip_bad=rng.random() < 0.5,
            variable_length=rng.random() < 0.7, case=rng.choice(("keep", "upper", "lower")),
            charset=rng.choice((None, None, None, "alnum", "upper")),
            separator=rng.choice((",", ",", ",", ",", ";", r"\t")),
            row_names=rng.choice((None, None, None, None, "{}.jpg")),
        )  # fmt: skip
        convert_captcha.main(command)
        verify.main(Verify(paths=(out,), deep=True))

    return case


# CIFAR's binary files

CIFAR_WORDS = (b"\x80\x03}q", b"\x1f\x8b\x08", b"\n", b"\r\n", bytes(3073), b"\xff" * 3074)
CIFAR_FILES = {
    cifar.CIFAR10: ("data_batch_1.bin", "test_batch.bin"),
    cifar.CIFAR100: ("train.bin", "test.bin"),
}


def cifar_files(folder: Path) -> Callable[[random.Random], None]:
    """Converts damaged files of CIFAR-10 and CIFAR-100 and verifies what comes out."""
    source, out = folder / "binary", folder / "set"
    source.mkdir()

    def case(rng: random.Random) -> None:
        for old in source.iterdir():
            old.unlink()
        layout = rng.choice(tuple(CIFAR_FILES))
        for name in CIFAR_FILES[layout]:
            records = b"".join(
                bytes(map(rng.randrange, layout.classes)) + rng.randbytes(cifar.PIXEL_BYTES)
                for _ in range(rng.randint(1, 3))
            )
            (source / name).write_bytes(damage(rng, records, CIFAR_WORDS))
        names = "".join(f"class {number}\n" for number in range(layout.classes[-1])).encode()
        if rng.randrange(2):
            names = damage(rng, names, CIFAR_WORDS) if rng.randrange(2) else names
            (source / layout.label_names[-1]).write_bytes(names)
        dataset = rng.choice((None, None, "cifar10", "cifar100"))
        command = CifarToTfrecord(
            src=(source,), out=out, overwrite=True, workers=1, dataset=dataset,
            validation=rng.choice((0, 0, 1)), shards=rng.randint(1, 3),
        )  # fmt: skip
        convert_cifar.main(command)
        verify.main(Verify(paths=(out,), deep=True))

    return case


# Images

IMAGE_WORDS = (
    b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4", b"\xff\xdb",
    b"\xff\xe1\0\x10Exif\0\0MM\0*", b"\xff\xee\0\x0eAdobe\0d\0\0\0\0\0", b"\xff\xff",
    b"\0\0\0\0IEND\xaeB`\x82", b"\0\0\0\x0cIDATx\x9c", b"\0\0\0\1tRNS\0", b"\xff\xff\xff\xff",
    b"GIF89a", b"!\xf9\x04", b"\x3b", b"BM", b"RIFF", b"WEBPVP8 ", b"VP8X", b"ANIM", b"ANMF",
)  # fmt: skip
LARGE = (4000, 4000)
"""As many pixels as are allowed."""


def picture(rng: random.Random, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """A picture of coarse random colours."""
    coarse = Image.frombytes("RGBA", (4, 3), rng.randbytes(48)).resize(size)
    if mode.startswith("I"):
        return Image.fromarray(np.asarray(coarse.convert("L")).astype(np.uint16) * 257)
    if mode == "1":
        return coarse.convert("L").convert("1")
    return coarse.convert("RGB").convert(mode) if mode != "RGBA" else coarse


def encoded_images() -> list[bytes]:
    """Whole images of every kind that Pillow writes as JPEG or PNG, and of others to transcode."""
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        *(("JPEG", mode, {"progressive": p}) for mode in ("L", "RGB", "CMYK") for p in (0, 1)),
        ("JPEG", "RGB", {"subsampling": 0}), ("JPEG", "RGB", {"exif": b"Exif\0\0MM\0*\0\0\0\10"}),
        *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
        ("PNG", "RGB", {"transparency": (1, 2, 3)}), ("PNG", "P", {"transparency": 0}),
        *(("BMP", mode, {}) for mode in ("1", "L", "P", "RGB", "RGBA")),
        ("GIF", "P", {}), ("GIF", "L", {"transparency": 3}), ("GIF", "RGB", {"interlace": 0}),
        ("WEBP", "RGB", {}), ("WEBP", "RGBA", {"lossless": True}),
    ]  # fmt: skip
    found = []
    for index, (codec, mode, options) in enumerate(kinds):
        buffer = io.BytesIO()
        picture(random.Random(index), (17, 11), mode).save(buffer, codec, **options)
        found.append(buffer.getvalue())
    interlaced = bytearray(png(2, 8, (5, 4), bytes(75)))
    interlaced[28] = 1
    return [*found, png(6, 16, (3, 2), bytes(50)), with_checksums(bytes(interlaced))]


def png(color_type: int, bits: int, size: tuple[int, int], rows: bytes) -> bytes:
    """A PNG of these filtered rows."""
    header = struct.pack(">IIBBBBB", *size, bits, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(data)) + name + data + bytes(4) for name, data in chunks)
    return with_checksums(b"\x89PNG\r\n\x1a\n" + body)


def with_checksums(data: bytes) -> bytes:
    """Makes the checksum of every chunk of a PNG right, so that damage gets past them."""
    mended, at = bytearray(data), 8
    while at + 12 <= len(mended):
        stop = at + 8 + int.from_bytes(mended[at : at + 4], "big")
        if stop + 4 > len(mended):
            break
        mended[stop : stop + 4] = struct.pack(">I", zlib.crc32(mended[at + 4 : stop]))
        at = stop + 4
    return bytes(mended)


def image_bytes(_: Path) -> Callable[[random.Random], None]:
    """Decodes damaged images; what is kept of one must decode to the same pixels."""
    whole = encoded_images()
    row = bytes(1 + LARGE[0] * 8)
    large = [png(0, 8, LARGE, row[: 1 + LARGE[0]] * LARGE[1]), png(6, 16, LARGE, row * LARGE[1])]

    def case(rng: random.Random) -> None:
        data = rng.choice(whole) if rng.randrange(500) else rng.choice(large)
        data = damage(rng, data, IMAGE_WORDS)
        if rng.randrange(4):
            data = with_checksums(data)
        kept, encoding, image = images.stored(data, "image", transcode=rng.random() < 0.8)
        pixels = np.asarray(image)
        assert images.encoding_of(kept) == encoding
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
        assert pixels.shape[2] == 3
        if pixels.size < 1 << 20:
            assert np.array_equal(images.decode(kept, "kept"), pixels)

    return case


# Framing


def shard_bytes(folder: Path) -> Callable[[random.Random], None]:
    """Damages the shard of a set, with and without right checksums, or one that is compressed."""
    source, out = folder / "images", folder / "set"
    source.mkdir()
    for index in range(3):
        picture(random.Random(index), (9, 7)).save(source / f"{index}.png")
    csv = folder / "labels.csv"
    csv.write_text("0,ABCD\n1,WXYZ\n2,QQQQ\n")
    command = CaptchaToTfrecord(
        images=source, labels=csv, out=out, shards=1, split="train=1", workers=1
    )
    convert_captcha.main(command)
    made = manifest.load(out)
    (shard,) = made.splits["train"].shards
    records = [record for _, record in tfrecord.read_records(out / shard.file)]

    alone = folder / "alone.tfrecord"

    def case(rng: random.Random) -> None:
        if rng.randrange(4) == 0:
            compress = rng.choice((gzip.compress, zlib.compress))
            alone.write_bytes(damage(rng, compress(b"".join(map(tfrecord.frame, records)))))
            verify.main(Verify(paths=(alone,), deep=True))
            return
        if rng.randrange(2):
            data = b"".join(tfrecord.frame(damage(rng, record)) for record in records)
        else:
            data = damage(rng, b"".join(map(tfrecord.frame, records)))
        (out / shard.file).write_bytes(data)
        signed = dataclasses.replace(
            shard, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
        )  # as if that had been written: only framing and content can tell
        split = dataclasses.replace(made.splits["train"], shards=(signed,))
        changed = dataclasses.replace(made, splits={"train": split})
        (out / manifest.FILE_NAME).write_bytes(manifest.dump(changed))
        for file, described in schema.tfds_files(changed).items():
            (out / file).write_bytes(described)
        info.collect(out, changed)
        verify.main(Verify(paths=(out,), deep=True))

    return case


TARGETS: dict[str, Callable[[Path], Callable[[random.Random], None]]] = {
    "csv": captcha_csv, "cifar": cifar_files, "images": image_bytes, "framing": shard_bytes,
}  # fmt: skip


if __name__ == "__main__":
    main()
