"""TensorFlow Datasets and TensorFlow read what we write."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_records import (
    KEYS,
    Tools,
    made,
    pixels,
    png,
    write,
)

from data_tools import manifest, schema, tfrecord


def read_by_both(
    tfds: ModuleType, out: Path, decoders: dict[str, Any] | None = None
) -> Iterator[tuple[dict[str, Any], Any, bytes]]:
    """What TensorFlow Datasets reads of each record, what we do, and the stored image."""
    whole = manifest.load(out)
    config = tfds.ReadConfig(interleave_cycle_length=1)  # the order of the shards
    builder = tfds.builder_from_directory(str(out))
    for name, split in whole.splits.items():
        theirs = builder.as_dataset(
            split=name, read_config=config, decoders=decoders
        ).as_numpy_iterator()
        records = itertools.chain.from_iterable(
            tfrecord.read_records(out / shard.file) for shard in split.shards
        )
        for their, (_, record) in zip(theirs, records, strict=True):
            ours = schema.decode_record(record, whole, "here")
            yield their, ours, schema.image_and_text(record, whole, "here")[0]


def distance(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other).max())


@pytest.mark.parametrize("encoding", ["png", "raw"])
def test_tensorflow_datasets_reads_the_pixels_and_labels_that_we_do(
    tfds: ModuleType, data_tools: Tools, tmp_path: Path, out: Path, encoding: str
) -> None:
    image = {"png": png, "raw": lambda seed: pixels(seed).tobytes()}[encoding]
    records = [{"image": image(seed), "label": seed % 3} for seed in range(40)]
    flags = ("--shape", "12x24x3") if encoding == "raw" else ()
    made(data_tools, write(tmp_path / "file", records), out, *KEYS, *flags)
    assert manifest.load(out).image.encoding == encoding
    for their, (image, label), _ in read_by_both(tfds, out):
        np.testing.assert_array_equal(their["image"], image)
        assert their["label"] == label[0]


def check_jpegs(tf: ModuleType, tfds: ModuleType, out: Path, *, levels: int) -> int:
    """Compares a set's JPEGs as TensorFlow reads them with ours; returns how many there are.

    TensorFlow's accurate transform gives our pixels; its default, the fast one that TensorFlow
    Datasets takes, is off by some levels, the more the purer the colors.
    """
    assert manifest.load(out).image.encoding == "jpeg"
    stored = {"image": tfds.decode.SkipDecoding()}
    pairs = zip(read_by_both(tfds, out), read_by_both(tfds, out, decoders=stored), strict=True)
    count = 0
    for (fast, (image, label), _), (undecoded, _, data) in pairs:
        assert undecoded["image"] == data
        accurate = tf.io.decode_jpeg(undecoded["image"], dct_method="INTEGER_ACCURATE").numpy()
        np.testing.assert_array_equal(accurate, image)
        assert distance(fast["image"], image) <= levels
        np.testing.assert_array_equal(fast["label"], label)
        count += 1
    return count


def test_drawn_jpegs_are_equal_by_the_accurate_transform_and_near_by_the_fast_one(
    tf: ModuleType, tfds: ModuleType, data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    flags = ("--count", 40, "--workers", 1)
    assert data_tools("make-captcha", tmp_path / "drawn", *flags).rc == 0
    labels = tmp_path / "drawn/labels.csv"
    ran = data_tools("captcha-to-tfrecord", tmp_path / "drawn", labels, out, "--workers", 1)
    assert ran.rc == 0
    assert check_jpegs(tf, tfds, out, levels=16) == 40


def test_the_courses_jpegs_are_equal_by_the_accurate_transform_and_within_4_levels_by_the_fast_one(
    tf: ModuleType, tfds: ModuleType, data_tools: Tools, test_data: Path, out: Path
) -> None:
    course = test_data / "tfrecords/course_captcha"
    ran = data_tools("captcha-to-tfrecord", course / "captchas", course / "labels.csv", out)
    assert ran.rc == 0
    assert check_jpegs(tf, tfds, out, levels=4) == 3


def test_a_real_sets_jpegs_are_equal_by_the_accurate_transform_and_within_5_levels_by_the_fast_one(
    tf: ModuleType,
    tfds: ModuleType,
    data_tools: Tools,
    captcha_sets: Path,
    tmp_path: Path,
    out: Path,
) -> None:
    source = captcha_sets / "genpics_digits"
    (labels,) = source.rglob("*.csv")
    some = tmp_path / "labels.csv"
    some.write_text("\n".join(labels.read_text().splitlines()[:300]))
    ran = data_tools("captcha-to-tfrecord", labels.parent, some, out)
    assert ran.rc == 0, ran.stderr
    assert check_jpegs(tf, tfds, out, levels=5) == 300
