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

from data_tools import images, manifest, schema, tfrecord


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "set"


def read_by_both(tfds: ModuleType, out: Path) -> Iterator[tuple[dict[str, Any], Any, bytes]]:
    """What TensorFlow Datasets reads of each record, what we do, and the stored image."""
    whole = manifest.load(out)
    config = tfds.ReadConfig(interleave_cycle_length=1)  # the order of the shards
    builder = tfds.builder_from_directory(str(out))
    for name, split in whole.splits.items():
        theirs = builder.as_dataset(split=name, read_config=config).as_numpy_iterator()
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


def test_tensorflow_reads_our_pixels_of_a_jpeg_by_its_accurate_transform(
    tf: ModuleType, tfds: ModuleType, data_tools: Tools, tmp_path: Path, out: Path
) -> None:
    records = [{"image": images.encode_jpeg(pixels(seed)), "label": seed} for seed in range(12)]
    made(data_tools, write(tmp_path / "file", records), out, *KEYS)
    for their, (image, label), data in read_by_both(tfds, out):
        accurate = tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy()
        np.testing.assert_array_equal(accurate, image)
        # TensorFlow Datasets takes the fast one, which is the further off the purer the colors.
        assert distance(their["image"], image) <= 16
        assert their["label"] == label[0]


def test_tensorflow_datasets_reads_real_jpegs_within_4_levels(
    tfds: ModuleType, data_tools: Tools, test_data: Path, out: Path
) -> None:
    course = test_data / "tfrecords/course_captcha"
    ran = data_tools("captcha-to-tfrecord", course / "captchas", course / "labels.csv", out)
    assert ran.rc == 0
    assert manifest.load(out).image.encoding == "jpeg"
    for their, (image, label), _ in read_by_both(tfds, out):
        assert distance(their["image"], image) <= 4
        np.testing.assert_array_equal(their["label"], label)
