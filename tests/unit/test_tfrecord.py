import itertools
import os
import random
import struct
import tracemalloc
from pathlib import Path
from types import ModuleType

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools import tfrecord
from data_tools.errors import INTEGRITY, DataError

RECORDS = [b"", b"a", bytes(range(256)) * 3, b"\0" * 40]
INT64 = st.integers(-(2**63), 2**63 - 1)
FEATURES = st.dictionaries(
    st.text("label_é☃", max_size=8),
    st.binary(max_size=50) | INT64 | st.lists(INT64, max_size=8),
    max_size=5,
)


def masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def write_shard(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(tfrecord.frame, records)))
    return path


def starts_of(records: list[bytes]) -> list[int]:
    """Where each record starts, then the size of the shard: 16 bytes of framing a record."""
    return list(itertools.accumulate((len(record) + 16 for record in records), initial=0))


def as_lists(features: dict[str, bytes | int | list[int]]) -> dict[str, list[bytes] | list[int]]:
    return {name: value if isinstance(value, list) else [value] for name, value in features.items()}


def read_fault(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        list(tfrecord.read_records(path))
    return caught.value


# Framing


def test_a_frame_is_length_then_its_crc_then_data_then_its_crc() -> None:
    length = struct.pack("<Q", 3)
    expected = length + masked_crc(length) + b"abc" + masked_crc(b"abc")
    assert tfrecord.frame(b"abc") == expected


def test_the_crc_is_the_published_one_masked() -> None:
    # RFC 3720, B.4: the CRC-32C of 32 zero bytes is 0x8a9136aa.
    assert tfrecord.frame(bytes(32))[-4:] == struct.pack(
        "<I", (((0x8A9136AA >> 15) | (0x8A9136AA << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    )


def test_tensorflow_reads_what_frame_writes(tf: ModuleType, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "ours", RECORDS)
    assert list(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()) == RECORDS


def test_what_tensorflow_writes_is_read_and_equals_ours_byte_for_byte(
    tf: ModuleType, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in RECORDS:
            writer.write(record)
    read = list(tfrecord.read_records(theirs))
    assert read == list(zip(starts_of(RECORDS), RECORDS, strict=False))
    assert theirs.read_bytes() == write_shard(tmp_path / "ours", RECORDS).read_bytes()


def test_an_empty_shard_has_no_records(tmp_path: Path) -> None:
    assert list(tfrecord.read_records(write_shard(tmp_path / "empty", []))) == []


def test_read_records_is_lazy_so_the_good_records_before_a_fault_are_given(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard", [b"one", b"two"])
    path.write_bytes(path.read_bytes()[:-1])
    records = tfrecord.read_records(path)
    assert next(records) == (0, b"one")
    with pytest.raises(DataError):
        next(records)


def test_a_cut_and_a_flip_say_what_is_wrong(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard", [b"one", b"two"])
    whole = path.read_bytes()
    start = f"error: INTEGRITY: {path}:record 1:byte 19: "
    fix = "; get the file again or convert the data set again"
    for data, reason in (
        (whole[:-1], "the file ends inside the record"),
        (whole[:25], "the file ends inside the record"),
        (whole[:19] + b"\x04" + whole[20:], "the checksum of the length is wrong"),
        (whole[:-5] + b"x" + whole[-4:], "the checksum of the data is wrong"),
    ):
        path.write_bytes(data)
        assert str(read_fault(path)) == start + reason + fix


def test_every_cut_inside_a_record_is_found_and_named_by_record_and_byte(tmp_path: Path) -> None:
    records = [b"first", b"", b"the third record"]
    path = write_shard(tmp_path / "shard", records)
    whole, starts = path.read_bytes(), starts_of(records)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        if cut in starts:  # a shorter shard, whole in itself: the manifest tells it from a cut one
            assert [data for _, data in tfrecord.read_records(path)] == records[: starts.index(cut)]
            continue
        index = sum(start <= cut for start in starts) - 1
        fault = read_fault(path)
        assert fault.kind is INTEGRITY
        assert fault.where == f"{path}:record {index}:byte {starts[index]}"


def test_every_flipped_bit_is_found_and_named_by_record_and_byte(tmp_path: Path) -> None:
    records = [b"first", b"", b"the third record"]
    path = write_shard(tmp_path / "shard", records)
    whole, starts = path.read_bytes(), starts_of(records)
    for position, bit in itertools.product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        index = sum(start <= position for start in starts) - 1
        fault = read_fault(path)
        assert fault.kind is INTEGRITY
        assert fault.where == f"{path}:record {index}:byte {starts[index]}"


def test_bytes_after_the_last_record_are_found(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard", [b"one"])
    path.write_bytes(path.read_bytes() + b"\0")
    assert read_fault(path).where == f"{path}:record 1:byte 19"


def test_a_huge_length_with_the_right_crc_is_a_fault_and_not_an_allocation(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    for huge in (2**40, 2**63, 2**64 - 1):
        length = struct.pack("<Q", huge)
        path.write_bytes(length + masked_crc(length) + b"data")
        fault = read_fault(path)
        assert fault.kind is INTEGRITY
        assert fault.where == f"{path}:record 0:byte 0"


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    fault = read_fault(tmp_path / "absent")
    assert str(fault) == (
        f"error: INPUT: {tmp_path / 'absent'}: No such file or directory; "
        "check that the path exists and its permissions"
    )


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_any_records_survive_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes]
) -> None:
    path = write_shard(tmp_path_factory.getbasetemp() / "roundtrip", records)
    assert list(tfrecord.read_records(path)) == list(zip(starts_of(records), records, strict=False))


@given(st.binary(max_size=100))
def test_random_bytes_are_never_anything_but_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    path.write_bytes(data)
    try:
        assert list(tfrecord.read_records(path)) == []
        assert data == b""
    except DataError as error:
        assert error.kind is INTEGRITY


# One record out of a mapped shard


def test_unframe_takes_bytes_and_memoryview(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "shard", RECORDS)
    starts = starts_of(RECORDS)
    for buffer in (path.read_bytes(), memoryview(path.read_bytes())):
        for index, record in enumerate(RECORDS):
            got = tfrecord.unframe(buffer, starts[index], starts[index + 1], "here")
            assert got == record
            assert type(got) is bytes


def test_unframe_refuses_every_other_interval_of_the_shard() -> None:
    records = [b"first", b"", b"third"]
    shard = b"".join(map(tfrecord.frame, records))
    starts = starts_of(records)
    right = set(itertools.pairwise(starts))
    for start, stop in itertools.product(range(len(shard) + 1), repeat=2):
        if (start, stop) in right:
            continue
        with pytest.raises(DataError) as caught:
            tfrecord.unframe(shard, start, stop, "set/shard:record 7")
        assert caught.value.kind is INTEGRITY
        assert caught.value.where == "set/shard:record 7"


def test_unframe_finds_every_flipped_bit() -> None:
    framed = tfrecord.frame(b"record")
    for position, bit in itertools.product(range(len(framed)), range(8)):
        damaged = bytearray(framed)
        damaged[position] ^= 1 << bit
        with pytest.raises(DataError) as caught:
            tfrecord.unframe(bytes(damaged), 0, len(damaged), "here")
        assert (caught.value.kind, caught.value.where) == (INTEGRITY, "here")


@pytest.mark.parametrize(("start", "stop"), [(-19, 0), (-19, 19), (19, 0), (0, -1), (0, 20)])
def test_unframe_refuses_intervals_outside_the_buffer(start: int, stop: int) -> None:
    with pytest.raises(DataError) as caught:
        tfrecord.unframe(tfrecord.frame(b"abc"), start, stop, "here")
    assert (caught.value.kind, caught.value.where) == (INTEGRITY, "here")


# tf.train.Example


def test_one_int_is_the_bytes_that_the_protocol_says() -> None:
    # Example{1: Features{1: entry{1: "a", 2: Feature{3: Int64List{1: packed [1]}}}}}
    assert tfrecord.encode_example({"a": 1}).hex(" ") == (
        "0a 0c 0a 0a 0a 01 61 12 05 1a 03 0a 01 01"
    )


def test_bytes_are_the_bytes_that_the_protocol_says() -> None:
    # Example{1: Features{1: entry{1: "b", 2: Feature{1: BytesList{1: "xy"}}}}}
    assert tfrecord.encode_example({"b": b"xy"}).hex(" ") == (
        "0a 0d 0a 0b 0a 01 62 12 06 0a 04 0a 02 78 79"
    )


def test_the_bytes_do_not_depend_on_the_order_of_the_features() -> None:
    features = {name: index for index, name in enumerate("kjihgfedcba")}
    backwards = dict(reversed(features.items()))
    assert tfrecord.encode_example(features) == tfrecord.encode_example(backwards)


def test_tensorflow_parses_encode_example(tf: ModuleType) -> None:
    features = {
        "image": bytes(range(256)) * 2,
        "label": [0, 1, 127, 128, 300, 2**63 - 1, -1, -(2**63)],
        "coarse_label": -7,
        "text": "é".encode(),
    }
    example = tf.train.Example.FromString(tfrecord.encode_example(features)).features.feature
    assert sorted(example) == sorted(features)
    assert list(example["image"].bytes_list.value) == [features["image"]]
    assert list(example["label"].int64_list.value) == features["label"]
    assert list(example["coarse_label"].int64_list.value) == [-7]
    assert list(example["text"].bytes_list.value) == ["é".encode()]


def test_encode_example_gives_tensorflows_own_bytes(tf: ModuleType) -> None:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x" * 300])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, -4])),
        "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b""])),
    }
    theirs = tf.train.Example(features=tf.train.Features(feature=feature))
    assert tfrecord.encode_example(
        {"text": b"", "label": [3, -4], "image": b"x" * 300}
    ) == theirs.SerializeToString(deterministic=True)


def test_what_tensorflow_encodes_is_decoded(tf: ModuleType) -> None:
    def feature(**lists: object) -> object:
        return tf.train.Feature(**lists)

    features = {
        "bytes": feature(bytes_list=tf.train.BytesList(value=[b"one", b"", b"three"])),
        "ints": feature(int64_list=tf.train.Int64List(value=[5, -5, 2**63 - 1, -(2**63), 0])),
        "floats": feature(float_list=tf.train.FloatList(value=[0.5, -2.0, 1e30])),
        "no ints": feature(int64_list=tf.train.Int64List(value=[])),
        "": feature(bytes_list=tf.train.BytesList(value=[b"unnamed"])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    decoded = tfrecord.decode_example(example.SerializeToString())
    assert decoded["bytes"] == [b"one", b"", b"three"]
    assert decoded["ints"] == [5, -5, 2**63 - 1, -(2**63), 0]
    assert decoded["floats"] == [0.5, -2.0, pytest.approx(1e30)]
    assert decoded["no ints"] == []
    assert decoded[""] == [b"unnamed"]
    assert len(decoded) == 5


def entry_of(feature: bytes) -> bytes:
    """Example{1: Features{1: entry{1: "x", 2: feature}}}, as it is written elsewhere too."""
    entry = b"\x0a\x01x\x12" + tfrecord._varint(len(feature)) + feature
    features = b"\x0a" + tfrecord._varint(len(entry)) + entry
    return b"\x0a" + tfrecord._varint(len(features)) + features


def test_unpacked_ints_and_floats_are_decoded() -> None:
    minus_one = b"\xff" * 9 + b"\x01"
    ints = b"\x08\x05\x08" + minus_one + b"\x08\xac\x02"  # field 1 as varints: 5, -1, 300
    assert tfrecord.decode_example(entry_of(b"\x1a" + bytes([len(ints)]) + ints)) == {
        "x": [5, -1, 300]
    }
    floats = b"\x0d" + struct.pack("<f", 0.5) + b"\x0d" + struct.pack("<f", -3)
    assert tfrecord.decode_example(entry_of(b"\x12" + bytes([len(floats)]) + floats)) == {
        "x": [0.5, -3.0]
    }


def test_packed_and_unpacked_runs_of_one_list_are_joined() -> None:
    ints = b"\x08\x05" + b"\x0a\x02\x06\x07" + b"\x08\x08"
    assert tfrecord.decode_example(entry_of(b"\x1a" + bytes([len(ints)]) + ints)) == {
        "x": [5, 6, 7, 8]
    }


def test_unknown_fields_are_skipped_as_protocol_buffers_ask() -> None:
    known = tfrecord.encode_example({"x": 3})
    unknown = (
        b"\x78\x96\x01"  # field 15, varint
        + b"\x79" + bytes(8)  # field 15, 64 bits
        + b"\x7a\x02hi"  # field 15, bytes
        + b"\x7d" + bytes(4)  # field 15, 32 bits
    )  # fmt: skip
    assert tfrecord.decode_example(unknown + known + unknown) == {"x": [3]}


def test_ints_that_do_not_fit_64_bits_are_refused_when_written() -> None:
    for value in (2**63, -(2**63) - 1):
        with pytest.raises((ValueError, OverflowError)):
            tfrecord.encode_example({"x": value})


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("a varint without an end", b"\x0a\x80"),
        ("a varint of eleven bytes", b"\x08" + b"\x80" * 10 + b"\x01"),
        ("a length beyond the end", b"\x0a\x05\x0a"),
        ("a group, which no one writes", b"\x0b\x0c"),
        ("a name that is not UTF-8", b"\x0a\x0b\x0a\x09\x0a\x01\xff\x12\x04\x1a\x02\x08\x01"),
        ("JPEG bytes", b"\xff\xd8\xff\xe0\x00\x10JFIF"),
        ("base64 text", b"/9j/4AAQSkZJRgABAQAAAQABAAD"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_example_is_a_value_error(name: str, record: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        tfrecord.decode_example(record)


@given(FEATURES)
def test_any_features_survive_a_round_trip(features: dict[str, bytes | int | list[int]]) -> None:
    assert tfrecord.decode_example(tfrecord.encode_example(features)) == as_lists(features)


@given(FEATURES)
def test_tensorflow_reads_any_features_and_its_bytes_are_read_back(
    tf: ModuleType, features: dict[str, bytes | int | list[int]]
) -> None:
    example = tf.train.Example.FromString(tfrecord.encode_example(features))
    got = {
        name: list(value.bytes_list.value) or list(value.int64_list.value)
        for name, value in example.features.feature.items()
    }
    assert got == as_lists(features)
    assert tfrecord.decode_example(example.SerializeToString()) == as_lists(features)


@given(st.binary(max_size=60))
def test_random_bytes_decode_or_are_a_value_error(data: bytes) -> None:
    try:
        tfrecord.decode_example(data)
    except DataError:
        raise
    except ValueError:
        pass


def test_a_damaged_example_decodes_or_is_a_value_error() -> None:
    whole = tfrecord.encode_example({"image": b"pixels", "label": [1, 2, 300], "text": b"AB12"})
    rng = random.Random(0)
    refused = 0
    for position, bit in itertools.product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        damaged = damaged[: rng.randrange(len(damaged) + 1)] if bit == 7 else damaged
        try:
            tfrecord.decode_example(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > len(whole)


def test_the_courses_own_tfrecord_is_read(test_data: Path) -> None:
    path = test_data / "tfrecords/course_captcha/tfrecords/cifar.tfrecords"
    records = [tfrecord.decode_example(record) for _, record in tfrecord.read_records(path)]
    assert [sorted(record) for record in records] == [["image", "label"]] * 3
    assert [len(record["image"][0]) for record in records] == [20 * 80 * 3] * 3
    assert list(records[0]["label"][0]) == [18, 3, 2, 21]


def test_tensorflow_extendeds_cifar_records_are_read(test_data: Path) -> None:
    path = test_data / "tfrecords/tfx_cifar10/cifar10_test.tfrecord"
    for _, record in tfrecord.read_records(path):
        features = tfrecord.decode_example(record)
        assert features["image"][0].startswith(b"\x89PNG")
        assert features["label"][0] in range(10)


def test_lists_of_numbers_that_are_not_wanted_are_checked_and_not_made() -> None:
    zeros = 40_000_000
    packed = b"\x0a" + tfrecord._varint(zeros) + bytes(zeros)
    record = entry_of(b"\x1a" + tfrecord._varint(len(packed)) + packed)
    tracemalloc.start()
    assert tfrecord.decode_example(record, ("label",)) == {"x": []}
    with pytest.raises(ValueError, match="a list of more than 1,048,576 numbers"):
        tfrecord.decode_example(record)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < zeros


@pytest.mark.parametrize(
    ("varints", "reason"),
    [
        (b"\x80" * 10 + b"\x01", "a varint has more than 10 bytes"),
        (b"\x80" * ((1 << 20) + 1), "a varint has more than 10 bytes"),
        (bytes((1 << 20) - 5) + b"\x80" * 11 + b"\x01", "a varint has more than 10 bytes"),
        (b"\x01\x80", "a varint ends after its message"),
        (bytes((1 << 20) - 5) + b"\x80" * 9 + b"\x01", None),
        (b"\x80" * 9 + b"\x01" + bytes(3), None),
    ],
)  # fmt: skip
def test_numbers_that_are_not_wanted_are_found_wrong_all_the_same(
    varints: bytes, reason: str | None
) -> None:
    packed = b"\x0a" + tfrecord._varint(len(varints)) + varints
    record = entry_of(b"\x1a" + tfrecord._varint(len(packed)) + packed)
    if reason is None:
        assert tfrecord.decode_example(record, ()) == {"x": []}
        return
    with pytest.raises(ValueError, match=f"^{reason}$"):
        tfrecord.decode_example(record, ())


def test_a_record_in_a_file_with_holes_is_refused_by_its_length(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    length = struct.pack("<Q", 3 << 30)
    path.write_bytes(length + tfrecord._masked_crc(length))
    os.truncate(path, (3 << 30) + 16)
    with pytest.raises(DataError) as caught:
        list(tfrecord.read_records(path))
    assert str(caught.value) == (
        f"error: INTEGRITY: {path}:record 0:byte 0: a record of 3,221,225,472 bytes, "
        "the limit is 134,217,728; get the file again or convert the data set again"
    )
