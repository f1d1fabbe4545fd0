"""Records of images with classes: one by one, many at once, and as TensorFlow reads them."""

import dataclasses
import itertools
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools import images, manifest, schema, tfrecord, writer
from data_tools.errors import INTEGRITY, DataError
from data_tools.manifest import ImageSpec, Manifest, Shard, Split
from hvd_train.data.source import DiskSource, MemorySource, open_source

FIX = "convert the data set again"


def manifest_of(
    classes: int, coarse: int | None = None, *, shape: tuple[int, ...] = (2, 3, 3),
    encoding: str = "raw", splits: dict[str, Split] | None = None,
) -> Manifest:  # fmt: skip
    height, width, channels = shape
    return Manifest(
        tool="0.1.0", name="set", kind="classes", created_from={}, label=None, skipped=(),
        image=ImageSpec(height=height, width=width, channels=channels, encoding=encoding),
        classes=tuple(f"class {number}" for number in range(classes)),
        coarse_classes=None if coarse is None else tuple(f"kind {k}" for k in range(coarse)),
        splits=splits or {},
    )  # fmt: skip


def pixels(count: int, shape: tuple[int, ...] = (2, 3, 3), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def rows_of(records: list[bytes]) -> np.ndarray:
    return np.stack([np.frombuffer(record, np.uint8) for record in records])


def refusal(record: bytes, of: Manifest) -> str:
    with pytest.raises(DataError) as caught:
        schema.decode_record(record, of, "set/shard:record 7")
    assert caught.value.kind is INTEGRITY
    start, end = "error: INTEGRITY: set/shard:record 7: not a record of this data set: ", f"; {FIX}"
    message = str(caught.value)
    assert message.startswith(start) and message.endswith(end)
    return message[len(start) : -len(end)]


COLUMNS = st.integers(0, 6).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 127), min_size=count, max_size=count),
        st.none() | st.lists(st.integers(0, 127), min_size=count, max_size=count),
    )
)
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 4]))


# One record


def test_a_class_record_is_an_example_of_image_and_label() -> None:
    assert tfrecord.decode_example(schema.class_record(b"pixels", 7)) == {
        "image": [b"pixels"], "label": [7],
    }  # fmt: skip


def test_a_class_record_with_a_superclass_has_both_as_they_are() -> None:
    assert tfrecord.decode_example(schema.class_record(b"pixels", 12, 9)) == {
        "image": [b"pixels"], "label": [12], "coarse_label": [9],
    }  # fmt: skip


@pytest.mark.parametrize("label", [0, 9, 127, 128, 299])
def test_a_record_decodes_to_its_pixels_and_class(label: int) -> None:
    (image,) = pixels(1)
    found, number = schema.decode_record(
        schema.class_record(image.tobytes(), label), manifest_of(300), "here"
    )
    np.testing.assert_array_equal(found, image)
    assert number.tolist() == [label]


def test_a_png_with_a_class_decodes_to_its_pixels() -> None:
    (image,) = pixels(1)
    record = schema.class_record(images.encode_png(image), 3)
    found, number = schema.decode_record(record, manifest_of(10, encoding="png"), "here")
    np.testing.assert_array_equal(found, image)
    assert number.tolist() == [3]


IMAGE = pixels(1)[0].tobytes()
WRONG = {
    "a class above the last": (schema.class_record(IMAGE, 10), "label 10 of 10 classes"),
    "a negative class": (schema.class_record(IMAGE, -1), "label -1 of 10 classes"),
    "two classes": (
        tfrecord.encode_example({"image": IMAGE, "label": [1, 2]}),
        "no single int64 feature 'label'",
    ),
    "no class": (tfrecord.encode_example({"image": IMAGE}), "no single int64 feature 'label'"),
    "a class as bytes": (
        tfrecord.encode_example({"image": IMAGE, "label": b"\3"}),
        "no single int64 feature 'label'",
    ),
    "no image": (tfrecord.encode_example({"label": 3}), "no single bytes feature 'image'"),
    "an image of another size": (
        schema.class_record(IMAGE[:-1], 3), "an image of 17 bytes, expected 18",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_does_not_fit_the_manifest_is_integrity_at_its_place(name: str) -> None:
    record, reason = WRONG[name]
    assert refusal(record, manifest_of(10)) == reason


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (schema.class_record(IMAGE, 3, 20), "coarse_label 20 of 20 classes"),
        (schema.class_record(IMAGE, 3, -1), "coarse_label -1 of 20 classes"),
        (schema.class_record(IMAGE, 3), "no single int64 feature 'coarse_label'"),
    ],
    ids=["above the last", "negative", "none"],
)
def test_a_superclass_that_does_not_fit_the_manifest_is_integrity(
    record: bytes, reason: str
) -> None:
    assert refusal(record, manifest_of(100, 20)) == reason
    assert schema.decode_rows(rows_of([record]), manifest_of(100, 20)) is None


def test_the_text_of_a_class_record_is_the_name_of_its_class() -> None:
    found = [
        schema.image_and_text(schema.class_record(IMAGE, label), manifest_of(10), "here")
        for label in (0, 9)
    ]
    assert found == [(IMAGE, "class 0"), (IMAGE, "class 9")]
    with pytest.raises(DataError) as caught:
        schema.image_and_text(schema.class_record(IMAGE, 10), manifest_of(10), "set/shard:record 7")
    assert str(caught.value) == (
        "error: INTEGRITY: set/shard:record 7: not a record of this data set: "
        f"label 10 of 10 classes; {FIX}"
    )


# Many records at once


@given(columns=COLUMNS, shape=SHAPES)
def test_encode_rows_is_class_record_of_each(
    columns: tuple[list[int], list[int] | None], shape: tuple[int, ...]
) -> None:
    labels, coarse = columns
    pictures = pixels(len(labels), shape)
    rows = schema.encode_rows(
        pictures,
        np.array(labels, np.uint8),
        None if coarse is None else np.array(coarse, np.uint8),
    )
    assert rows.dtype == np.uint8
    assert [row.tobytes() for row in rows] == [
        schema.class_record(image.tobytes(), label, coarse[index] if coarse else None)
        for index, (image, label) in enumerate(zip(pictures, labels, strict=True))
    ]


def test_encode_rows_takes_pictures_that_lie_in_memory_as_planes() -> None:
    planes = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    pictures = planes.transpose(0, 2, 3, 1)
    rows = schema.encode_rows(pictures, np.arange(5, dtype=np.uint8), None)
    whole = schema.encode_rows(pictures.copy(), np.arange(5, dtype=np.uint8), None)
    np.testing.assert_array_equal(rows, whole)


@given(columns=COLUMNS.filter(lambda columns: bool(columns[0])), shape=SHAPES)
def test_decode_rows_is_decode_record_of_each(
    columns: tuple[list[int], list[int] | None], shape: tuple[int, ...]
) -> None:
    labels, coarse = columns
    of = manifest_of(128, None if coarse is None else 128, shape=shape)
    records = [
        schema.class_record(image.tobytes(), label, coarse[index] if coarse else None)
        for index, (image, label) in enumerate(zip(pixels(len(labels), shape), labels, strict=True))
    ]
    decoded = schema.decode_rows(rows_of(records), of)
    assert decoded is not None
    pictures, found = decoded
    assert (pictures.dtype, pictures.shape) == (np.uint8, (len(labels), *shape))
    for index, record in enumerate(records):
        image, label = schema.decode_record(record, of, "here")
        np.testing.assert_array_equal(pictures[index], image)
        assert found[index] == label[0]


RIGHT = [schema.class_record(image.tobytes(), 3) for image in pixels(4)]
# Example, Features, then the entries of the map, of which that of the label is the last 16 bytes.
REVERSED = RIGHT[0][:2] + RIGHT[0][-16:] + RIGHT[0][2:-16]
OTHER_FORMS = {
    "a label above the last": ([*RIGHT, schema.class_record(IMAGE, 10)], manifest_of(10)),
    "a set of captchas": (RIGHT, dataclasses.replace(manifest_of(10), classes=None)),
    "PNG": (RIGHT, manifest_of(10, encoding="png")),
    "another size": (RIGHT, manifest_of(10, shape=(2, 3, 4))),
    "no superclass where there are some": (RIGHT, manifest_of(10, 2)),
    "labels of two bytes": (
        [schema.class_record(IMAGE, 128), schema.class_record(IMAGE, 299)], manifest_of(300),
    ),
    "features in another order": ([REVERSED], manifest_of(10)),
    "a name of the same length": ([RIGHT[0].replace(b"image", b"imago")], manifest_of(10)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_decode_rows_leaves_records_of_another_form_to_decode_record(name: str) -> None:
    records, of = OTHER_FORMS[name]
    assert schema.decode_rows(rows_of(records), of) is None


def test_features_in_another_order_are_the_same_record() -> None:
    assert tfrecord.decode_example(REVERSED) == tfrecord.decode_example(RIGHT[0])


@pytest.mark.parametrize("classes", [10, 300])
def test_decode_rows_of_a_damaged_record_is_none_or_what_decode_record_says(classes: int) -> None:
    of, refused = manifest_of(classes), 0
    for position, bit in itertools.product(range(len(RIGHT[0])), range(8)):
        rows = rows_of(RIGHT)
        rows[2, position] ^= 1 << bit
        decoded = schema.decode_rows(rows, of)
        if decoded is None:
            refused += 1
            continue
        image, label = schema.decode_record(rows[2].tobytes(), of, "here")
        np.testing.assert_array_equal(decoded[0][2], image)
        assert decoded[1][2] == label[0]
    assert refused > 8 * (len(RIGHT[0]) - len(IMAGE) - 1)


# As TensorFlow reads them


@pytest.mark.parametrize("coarse", [None, np.array([0, 19, 127], np.uint8)])
def test_tensorflow_reads_image_label_and_coarse_label(
    tf: ModuleType, tmp_path: Path, coarse: np.ndarray | None
) -> None:
    pictures, labels = pixels(3, (32, 32, 3)), np.array([0, 99, 127], np.uint8)
    rows = tfrecord.frame_rows(schema.encode_rows(pictures, labels, coarse))
    written = written_rows(tmp_path / "shard", rows)
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    if coarse is not None:
        features["coarse_label"] = tf.io.FixedLenFeature([], tf.int64)
    (batch,) = tf.data.TFRecordDataset(str(written.path)).batch(9)
    parsed = tf.io.parse_example(batch, features)
    decoded = tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), [-1, 32, 32, 3])
    np.testing.assert_array_equal(decoded, pictures)
    assert parsed["label"].numpy().tolist() == [0, 99, 127]
    if coarse is not None:
        assert parsed["coarse_label"].numpy().tolist() == [0, 19, 127]


# Shards of rows


@given(count=st.integers(0, 5), length=st.integers(0, 300), seed=st.integers(0, 99))
def test_frame_rows_is_frame_of_each_row(count: int, length: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (count, length), np.uint8)
    framed = tfrecord.frame_rows(rows)
    assert (framed.dtype, framed.shape) == (np.uint8, (count, length + 16))
    assert [row.tobytes() for row in framed] == [tfrecord.frame(row.tobytes()) for row in rows]


def written_rows(path: Path, *parts: np.ndarray) -> writer.WrittenShard:
    shard = writer.ShardWriter(path)
    for framed in parts:
        shard.write_rows(framed)
    return shard.close()


def test_rows_are_written_as_record_by_record(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (7, 50), np.uint8)
    framed = tfrecord.frame_rows(rows)
    found = written_rows(tmp_path / "rows", framed[:3], framed[3:3], framed[3:])
    one_by_one = writer.ShardWriter(tmp_path / "records")
    for row in rows:
        one_by_one.write(row.tobytes())
    expected = one_by_one.close()
    assert found.path.read_bytes() == expected.path.read_bytes()
    assert found == dataclasses.replace(expected, path=found.path)
    split = writer.finish_split(tmp_path, "set", "train", [found, expected])
    offsets = np.load(tmp_path / split.offsets)
    assert offsets.tolist() == [place * framed.shape[1] for place in range(2 * len(rows) + 1)]


@given(count=st.integers(0, 300), parts=st.integers(1, 40))
def test_split_evenly_gives_contiguous_parts_of_nearly_one_size_none_empty(
    count: int, parts: int
) -> None:
    ranges = writer.split_evenly(count, parts)
    assert [number for part in ranges for number in part] == list(range(count))
    assert len(ranges) == min(count, parts)
    sizes = {len(part) for part in ranges}
    assert not sizes or max(sizes) - min(sizes) <= 1


# Read as a source


def class_set(
    folder: Path, records: list[bytes], *, shards: int, of: Manifest
) -> tuple[Path, Manifest]:
    """A data set of one split with these records."""
    folder.mkdir()
    written = []
    for index, part in enumerate(writer.split_evenly(len(records), shards)):
        shard = writer.ShardWriter(folder / f"chunk-{index}")
        for record in records[part.start : part.stop]:
            shard.write(record)
        written.append(shard.close())
    split = writer.finish_split(folder, "set", "train", written)
    made = dataclasses.replace(of, splits={"train": split})
    (folder / "manifest.json").write_bytes(manifest.dump(made))
    return folder, made


@pytest.mark.parametrize("coarse", [None, 20])
@pytest.mark.parametrize("budget", [2.0**30, 0.0], ids=["memory", "mapped"])
def test_a_set_of_classes_is_read_by_number(
    tmp_path: Path, coarse: int | None, budget: float
) -> None:
    pictures = pixels(23)
    records = [
        schema.class_record(image.tobytes(), number % 10, None if coarse is None else number % 20)
        for number, image in enumerate(pictures)
    ]
    made = class_set(tmp_path / "set", records, shards=4, of=manifest_of(10, coarse))
    source = open_source(*made, "train", budget=budget)
    assert isinstance(source, MemorySource if budget else DiskSource)
    ids = [22, 0, 7, 7, 15]
    batch = source.gather(np.array(ids))
    assert batch.ids.tolist() == ids
    np.testing.assert_array_equal(batch.images, pictures[ids])
    assert batch.labels.dtype == np.int32
    assert batch.labels.tolist() == [[number % 10] for number in ids]


def test_read_all_of_rows_is_what_gather_reads_one_by_one(tmp_path: Path) -> None:
    records = [
        schema.class_record(image.tobytes(), number % 10) for number, image in enumerate(pixels(23))
    ]
    source = DiskSource(
        *class_set(tmp_path / "set", records, shards=3, of=manifest_of(10)), "train"
    )
    found, expected = source.read_all(), source.gather(np.arange(23))
    for name in ("ids", "images", "labels"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("labels", [[0, 127, 128, 299], [128, 129, 200, 299]])
def test_labels_that_take_two_bytes_are_read_too(tmp_path: Path, labels: list[int]) -> None:
    records = [
        schema.class_record(image.tobytes(), label)
        for image, label in zip(pixels(4), labels, strict=True)
    ]
    made = class_set(tmp_path / "set", records, shards=2, of=manifest_of(300))
    batch = open_source(*made, "train", budget=2.0**30).gather(np.arange(4))
    assert batch.labels.tolist() == [[label] for label in labels]
    np.testing.assert_array_equal(batch.images, pixels(4))


def test_one_record_out_of_range_is_named_when_the_set_is_read(tmp_path: Path) -> None:
    records = [schema.class_record(image.tobytes(), 3) for image in pixels(6)]
    records[4] = schema.class_record(IMAGE, 10)
    made = class_set(tmp_path / "set", records, shards=2, of=manifest_of(10))
    with pytest.raises(DataError) as caught:
        open_source(*made, "train", budget=2.0**30)
    shard = tmp_path / "set" / "set-train.tfrecord-00001-of-00002"
    place = len(tfrecord.frame(records[0]))
    assert str(caught.value) == (
        f"error: INTEGRITY: {shard}:byte {place}: not a record of this data set: "
        f"label 10 of 10 classes; {FIX}"
    )


# The manifest


@pytest.mark.parametrize("coarse", [None, 20])
def test_the_names_of_classes_survive_the_manifest(tmp_path: Path, coarse: int | None) -> None:
    shard = Shard(file="a", examples=0, bytes=0, sha256="")
    split = Split(examples=0, offsets="b", shards=(shard,))
    made = manifest_of(100, coarse, splits={"train": split})
    (tmp_path / "manifest.json").write_bytes(manifest.dump(made))
    assert manifest.load(tmp_path) == made
