"""TFRecord files compressed by GZIP and ZLIB, told by their first bytes and read as a stream."""

import gzip
import itertools
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools import tfrecord
from data_tools.errors import INPUT, INTEGRITY, DataError

Compress = Callable[[bytes], bytes]
RECORDS = [b"first", b"", b"the third record", bytes(range(200))]
FIX = "; get the file again or convert the data set again"


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


BOTH = pytest.mark.parametrize("compress", [gzipped, zlib.compress], ids=["gzip", "zlib"])


def framed(records: list[bytes]) -> bytes:
    return b"".join(map(tfrecord.frame, records))


def header(length: int) -> bytes:
    """The start of a record that says it is so long, with the right checksum."""
    packed = struct.pack("<Q", length)
    return packed + tfrecord._masked_crc(packed)


def read(path: Path, data: bytes) -> list[tuple[int, bytes]]:
    path.write_bytes(data)
    return list(tfrecord.read_records(path))


def fault(path: Path, data: bytes) -> str:
    """The error line without the path and the fix."""
    with pytest.raises(DataError) as caught:
        read(path, data)
    start = f"error: INTEGRITY: {path}:"
    message = str(caught.value)
    assert message.startswith(start)
    assert message.endswith(FIX)
    return message[len(start) : -len(FIX)]


@BOTH
def test_a_compressed_file_gives_its_records_with_their_places_uncompressed(
    tmp_path: Path, compress: Compress
) -> None:
    plain = read(tmp_path / "plain", framed(RECORDS))
    assert read(tmp_path / "shard", compress(framed(RECORDS))) == plain
    assert [record for _, record in plain] == RECORDS


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_what_tensorflow_compresses_is_read(tf: ModuleType, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(path), options=tf.io.TFRecordOptions(kind)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert [record for _, record in tfrecord.read_records(path)] == RECORDS
    assert tfrecord.compression_of(path) == (kind.lower() or None)


@BOTH
@given(records=st.lists(st.binary(max_size=3000), max_size=6))
def test_any_records_survive_compression(
    tmp_path_factory: pytest.TempPathFactory, compress: Compress, records: list[bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    assert [record for _, record in read(path, compress(framed(records)))] == records


def test_records_larger_than_the_blocks_that_are_read_come_whole(tmp_path: Path) -> None:
    records = [bytes(3_000_000), bytes(range(256)) * 5000, b"end"]
    found = read(tmp_path / "shard", gzipped(framed(records)))
    assert [record for _, record in found] == records


def test_members_of_a_gzip_file_are_joined_wherever_they_were_parted(tmp_path: Path) -> None:
    data = framed(RECORDS)
    for cut in range(0, len(data) + 1, 7):
        joined = gzipped(data[:cut]) + gzipped(b"") + gzipped(data[cut:])
        assert [record for _, record in read(tmp_path / "shard", joined)] == RECORDS


@pytest.mark.parametrize("length", [0x088B1F, 0x0178, 0x9C78])
def test_a_plain_file_whose_first_length_looks_like_compression_is_plain(
    tmp_path: Path, length: int
) -> None:
    records = [bytes(length), b"second"]
    assert [record for _, record in read(tmp_path / "shard", framed(records))] == records
    assert tfrecord.compression_of(tmp_path / "shard") is None


@pytest.mark.parametrize("name", ["shard.gz", "shard.zlib", "shard.tfrecord"])
@pytest.mark.parametrize("compress", [bytes, gzipped, zlib.compress], ids=["plain", "gzip", "zlib"])
def test_the_name_of_a_file_says_nothing(tmp_path: Path, name: str, compress: Compress) -> None:
    found = read(tmp_path / name, compress(framed(RECORDS)))
    assert [record for _, record in found] == RECORDS


@BOTH
def test_every_cut_is_found(tmp_path: Path, compress: Compress) -> None:
    whole = compress(framed(RECORDS))
    read(tmp_path / "shard", whole)
    for cut in range(1, len(whole)):
        with pytest.raises(DataError) as caught:
            read(tmp_path / "shard", whole[:cut])
        assert caught.value.kind is INTEGRITY
        assert caught.value.where.startswith(f"{tmp_path / 'shard'}:record ")


def test_cuts_that_tensorflow_takes_for_the_end_are_found(tf: ModuleType, tmp_path: Path) -> None:
    path, whole = tmp_path / "shard", gzipped(framed(RECORDS))
    silent = []
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        try:
            read_by_tf = list(tf.data.TFRecordDataset(str(path), "GZIP").as_numpy_iterator())
        except tf.errors.OpError:
            continue
        silent.append(len(read_by_tf))
        with pytest.raises(DataError):
            list(tfrecord.read_records(path))
    assert len(silent) > 10


# Bytes of a GZIP header that say nothing of the data: a hint (bit 0 of the flags), the time, what
# the compressor was. The bits after the last block up to a whole byte are unused, too.
UNUSED = {gzipped: {3, 4, 5, 6, 7, 8, 9}, zlib.compress: set()}
TRAILER = {gzipped: 8, zlib.compress: 4}


@BOTH
def test_every_flipped_bit_is_found_or_changes_no_record(
    tmp_path: Path, compress: Compress
) -> None:
    whole = compress(framed(RECORDS))
    silent = set()
    for position, bit in itertools.product(range(len(whole)), range(8)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        try:
            found = read(tmp_path / "shard", bytes(damaged))
        except DataError as error:
            assert error.kind is INTEGRITY
            assert error.where.startswith(f"{tmp_path / 'shard'}:record ")
        else:
            assert [record for _, record in found] == RECORDS
            silent.add(position)
    last_of_the_data = len(whole) - TRAILER[compress] - 1
    assert silent <= UNUSED[compress] | {last_of_the_data}


@BOTH
def test_damage_names_the_record_and_its_uncompressed_byte(
    tmp_path: Path, compress: Compress
) -> None:
    path, kind = tmp_path / "shard", "gzip" if compress is gzipped else "zlib"
    data = framed(RECORDS)
    flipped = bytearray(data)
    flipped[21 + 12] ^= 1  # the footer of the second record
    cut = compress(data)[:-1]
    trailer = bytearray(compress(data))
    trailer[-1 - 4 * (compress is gzipped)] ^= 1  # of the checksum
    assert fault(path, compress(bytes(flipped))) == (
        "record 1:byte 21: the checksum of the data is wrong"
    )
    assert fault(path, compress(data[:-3])) == "record 3:byte 69: the file ends inside the record"
    assert fault(path, cut) == f"record 4:byte 285: the {kind} stream is cut short"
    assert fault(path, bytes(trailer)) == (
        f"record 3:byte 69: the {kind} stream is damaged: incorrect data check"
    )


def test_anything_after_the_stream_is_a_fault(tmp_path: Path) -> None:
    path, data = tmp_path / "shard", framed(RECORDS)
    wrong = "record 4:byte 285: "
    for more in (b"\0", bytes(512), b"more"):
        assert fault(path, gzipped(data) + more).startswith(f"{wrong}the gzip stream is ")
        assert fault(path, zlib.compress(data) + more) == (
            f"{wrong}there is more after the end of the zlib stream"
        )


@BOTH
@pytest.mark.parametrize("length", [2**26, 2**27, 2**40, 2**63, 2**64 - 1])
def test_a_wild_length_is_no_wild_allocation(
    tmp_path: Path, compress: Compress, length: int
) -> None:
    path, start = tmp_path / "shard", framed([b"first"])
    path.write_bytes(compress(start + header(length) + b"data"))
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        list(tfrecord.read_records(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert str(caught.value) == (
        f"error: INTEGRITY: {path}:record 1:byte 21: "
        + (
            "the file ends inside the record"
            if length <= 2**27
            else f"a record of {length:,} bytes, the limit is 134,217,728"
        )
        + FIX
    )


def test_a_bomb_is_read_a_record_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    record = framed([bytes(2**20)])
    compressor = zlib.compressobj(wbits=31)
    path.write_bytes(b"".join([*(compressor.compress(record) for _ in range(50)),
                               compressor.flush()]))  # fmt: skip
    assert path.stat().st_size < 2**17
    tracemalloc.start()
    assert sum(1 for _ in tfrecord.read_records(path)) == 50
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


@BOTH
@given(data=st.binary(max_size=200))
def test_random_bytes_in_a_compressed_file_are_nothing_but_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, compress: Compress, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random"
    try:
        assert read(path, compress(data)) == []
        assert data == b""
    except DataError as error:
        assert error.kind is INTEGRITY


def test_a_file_that_is_not_there_is_input(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        tfrecord.compression_of(tmp_path / "absent")
    assert caught.value.kind is INPUT
