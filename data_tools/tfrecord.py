"""TFRecord framing and the tf.train.Example message, without TensorFlow.

A record is framed as: length (uint64), masked CRC-32C of those 8 bytes (uint32), the bytes of the
record, their masked CRC-32C (uint32), all little-endian. An Example is the protobuf message

    Example  {Features features = 1}
    Features {map<string, Feature> feature = 1}
    Feature  {oneof {BytesList = 1, FloatList = 2, Int64List = 3}}, each {repeated value = 1}
"""

import functools
import itertools
import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

from data_tools.errors import INTEGRITY, DataError, os_errors
from data_tools.inflate import Inflated
from data_tools.inflate import compression_of as compression_by_magic

Values = list[bytes] | list[int] | list[float]
Number = TypeVar("Number", int, float)

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD = 1 << 27
"""Bytes of a record: more than the largest image that is taken. A file's size tells little of it,
where it is compressed or has holes."""
_AGAIN = "get the file again or convert the data set again"
_CUT = "the file ends inside the record"

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_MAX_VARINT = 10
MAX_NUMBERS = 1 << 20
"""Of a list that is wanted: a label is one."""
_CHECKED_BYTES = 1 << 20


def frame(record: bytes) -> bytes:
    """Returns the record with its length and both checksums around it."""
    return b"".join((_frame_head(len(record)), record, _masked_crc(record)))


def frame_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Frames records of one length: uint8 [n, length] to [n, length + 16], as `frame` does each."""
    header = np.frombuffer(_frame_head(rows.shape[1]), np.uint8)
    framed = np.empty((len(rows), HEADER_BYTES + rows.shape[1] + FOOTER_BYTES), np.uint8)
    framed[:, :HEADER_BYTES] = header
    framed[:, HEADER_BYTES:-FOOTER_BYTES] = rows
    for row in framed:
        row[-FOOTER_BYTES:] = np.frombuffer(_masked_crc(row[HEADER_BYTES:-FOOTER_BYTES]), np.uint8)
    return framed


@functools.lru_cache(maxsize=1 << 12)
def _frame_head(length: int) -> bytes:
    """A record's length and its checksum."""
    packed = struct.pack("<Q", length)
    return packed + _masked_crc(packed)


def unframe(buffer: bytes | memoryview, start: int, stop: int, where: str) -> bytes:
    """Returns the one record that is framed in exactly the bytes [start, stop) of the buffer.

    Raises:
        DataError: INTEGRITY `where` when its length or a checksum is wrong.
    """
    if not 0 <= start <= stop <= len(buffer):
        raise DataError(INTEGRITY, where, "its place is outside the file", fix=_AGAIN)
    framed = bytes(buffer[start:stop])
    header, record = framed[:HEADER_BYTES], framed[HEADER_BYTES:-FOOTER_BYTES]
    fault = _header_fault(header) or _body_fault(record, framed[-FOOTER_BYTES:])
    if fault or _length(header) != len(record):
        reason = fault or f"the record's length is {_length(header)}, its place is {len(record)}"
        raise DataError(INTEGRITY, where, reason, fix=_AGAIN)
    return record


def read_records(
    path: Path, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Yields (byte offset of the framed record, record) of a TFRecord file, in order.

    A file compressed by GZIP or ZLIB is told by its first bytes; its offsets are those of the
    uncompressed bytes. Memory holds one record at a time.

    Args:
        path: of the file.
        advance: is told of the bytes of the file as they are read, of a compressed one in blocks.

    Raises:
        DataError: INTEGRITY with record and byte offset at any cut or flipped bit; INPUT when the
            file can't be read.
    """
    with os_errors(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        compression = _sniff(file)
        source = Inflated(file, compression) if compression else file
        offset = index = place = 0
        while True:
            # Compared before reading: a wild length must not become a wild allocation.
            available = None if compression else size - offset
            record, fault = _read_record(source, available)
            if fault:
                raise DataError(
                    INTEGRITY, path, f"record {index}", f"byte {offset}", fault, fix=_AGAIN
                )
            if record is None:
                return
            yield offset, record
            if advance is not None:
                advance(file.tell() - place)
                place = file.tell()
            offset += HEADER_BYTES + len(record) + FOOTER_BYTES
            index += 1


def compression_of(path: Path) -> str | None:
    """Returns "gzip" or "zlib" when a TFRecord file is compressed, None when it isn't.

    Raises:
        DataError: INPUT when the file can't be read.
    """
    with os_errors(path), path.open("rb") as file:
        return _sniff(file)


def _sniff(file: BinaryIO) -> str | None:
    """The compression of a file by its start; a length may look like it, but has its checksum."""
    start = file.read(HEADER_BYTES)
    file.seek(0)
    return compression_by_magic(start) if _header_fault(start) else None


def _read_record(source: BinaryIO | Inflated, available: int | None) -> tuple[bytes | None, str]:
    """The next record, None at the end, and what is wrong with it.

    Args:
        source: at the record's start.
        available: the framed bytes that there are, if that is known.
    """
    try:
        header = source.read(HEADER_BYTES)
        if not header:
            return None, ""
        if fault := _header_fault(header):
            return None, fault
        length = _length(header)
        if available is not None and HEADER_BYTES + length + FOOTER_BYTES > available:
            return None, _CUT
        if length > MAX_RECORD:
            return None, f"a record of {length:,} bytes, the limit is {MAX_RECORD:,}"
        record = source.read(length)
        footer = source.read(FOOTER_BYTES)
    except ValueError as error:  # of the compressed stream
        return None, str(error)
    return record, _CUT if len(footer) < FOOTER_BYTES else _body_fault(record, footer)


def _header_fault(header: bytes) -> str:
    if len(header) < HEADER_BYTES:
        return _CUT
    return "" if _masked_crc(header[:8]) == header[8:] else "the checksum of the length is wrong"


def _body_fault(record: bytes, footer: bytes) -> str:
    return "" if _masked_crc(record) == footer else "the checksum of the data is wrong"


def _length(header: bytes) -> int:
    return int.from_bytes(header[:8], "little")


def _masked_crc(data: bytes | npt.NDArray[np.uint8]) -> bytes:
    """CRC-32C, rotated and shifted as TensorFlow does, so that a CRC of CRCs stays strong."""
    crc: int = google_crc32c.value(data)
    rotated = crc >> 15 | crc << 17
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def encode_example(features: Mapping[str, bytes | int | Sequence[int]]) -> bytes:
    """Returns a serialized tf.train.Example; keys are sorted, so equal features give equal bytes.

    Args:
        features: bytes become a BytesList of one, an int an Int64List of one, a sequence of ints
            an Int64List.

    Raises:
        ValueError: an int is outside int64.
    """
    entries = b"".join(_encode_entry(key, features[key]) for key in sorted(features))
    return _head(len(entries)) + entries


def _encode_entry(key: str, value: bytes | int | Sequence[int]) -> bytes:
    """An entry of the map: fields in fields, whose heads are made from the innermost outwards."""
    if isinstance(value, bytes):
        kind, content = _BYTES_LIST, value
    else:
        values = [value] if isinstance(value, int) else value
        kind, content = _INT64_LIST, b"".join(map(_int64, values))
    name = _encode_key(key)
    inner = _head(len(content)) if content or kind == _BYTES_LIST else b""
    size = len(inner) + len(content)
    feature = _head(size, kind)
    size += len(feature)
    entry = _head(size, 2)
    size += len(entry) + len(name)
    return b"".join((_head(size), name, entry, feature, inner, content))


@functools.lru_cache
def _encode_key(key: str) -> bytes:
    name = key.encode()
    return _head(len(name)) + name


@functools.lru_cache(maxsize=1 << 12)  # a captcha has 13, most of them like the last one's
def _head(size: int, number: int = 1) -> bytes:
    """The tag and the length of a length-delimited field."""
    tag = number << 3 | _LENGTH_DELIMITED
    if size < 0x4000:
        return bytes((tag, size) if size < 0x80 else (tag, size & 0x7F | 0x80, size >> 7))
    return bytes((tag,)) + _varint(size)


def _int64(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is outside int64")
    return _varint(value & 0xFFFFFFFFFFFFFFFF)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_example(record: bytes, keys: Collection[str] | None = None) -> dict[str, Values]:
    """Returns the features of a serialized tf.train.Example, by key.

    Lists may be packed or not; a feature of no kind is an empty list.

    Args:
        record: the message.
        keys: the features that are wanted. Others are checked all the same, but a list of numbers
            would take a hundred times its bytes, and stays empty. All are wanted if not given.

    Raises:
        ValueError: the bytes aren't an Example.
    """
    features: dict[str, Values] = {}
    for message in _messages(memoryview(record)):  # of which slices are no copies
        for entry in _messages(message):
            key, feature = "", memoryview(b"")
            for number, wire_type, payload in _parse_fields(entry):
                if number == 1:
                    key = bytes(_as_message(wire_type, payload)).decode()
                elif number == 2:
                    feature = _as_message(wire_type, payload)
            features[key] = _decode_feature(feature, wanted=keys is None or key in keys)
    return features


def _messages(message: memoryview) -> Iterator[memoryview]:
    """The payloads of field 1, which is how Example, Features and the lists hold their content."""
    for number, wire_type, payload in _parse_fields(message):
        if number == 1:
            yield _as_message(wire_type, payload)


def _decode_feature(feature: memoryview, *, wanted: bool) -> Values:
    values: Values = []
    for number, wire_type, payload in _parse_fields(feature):
        message = _as_message(wire_type, payload)
        if number == _BYTES_LIST:
            values = [bytes(value) for value in _messages(message) if wanted]
        elif number == _FLOAT_LIST:
            values = _limited(_decode_floats(message, wanted=wanted))
        elif number == _INT64_LIST:
            values = _limited(_decode_int64s(message, wanted=wanted))
    return values


def _limited(numbers: Iterator[Number]) -> list[Number]:
    values = list(itertools.islice(numbers, MAX_NUMBERS + 1))
    if len(values) > MAX_NUMBERS:
        raise ValueError(f"a list of more than {MAX_NUMBERS:,} numbers")
    return values


def _decode_floats(message: memoryview, *, wanted: bool) -> Iterator[float]:
    for number, wire_type, payload in _parse_fields(message):
        if number != 1:
            continue
        if isinstance(payload, int) or wire_type == _FIXED64 or len(payload) % 4:
            raise ValueError(f"a list of floats has wire type {wire_type}")
        if wanted:
            yield from (number for (number,) in struct.iter_unpack("<f", payload))


def _decode_int64s(message: memoryview, *, wanted: bool) -> Iterator[int]:
    for number, wire_type, payload in _parse_fields(message):
        if number != 1:
            continue
        if isinstance(payload, int):
            if wanted:
                yield _signed(payload)
            continue
        position, packed = 0, _as_message(wire_type, payload)
        if not wanted:
            _check_varints(packed)
            continue
        while position < len(packed):
            value, position = _parse_varint(packed, position)
            yield _signed(value)


def _check_varints(packed: memoryview) -> None:
    """Raises what `_parse_varint` would for any of the varints, a hundred times as fast."""
    unfinished = 0
    for start in range(0, len(packed), _CHECKED_BYTES):
        block = np.frombuffer(packed[start : start + _CHECKED_BYTES], np.uint8)
        ends = np.flatnonzero(block < 0x80)
        lengths = np.diff(ends, prepend=-1 - unfinished)
        unfinished = len(block) - 1 - int(ends[-1]) if len(ends) else unfinished + len(block)
        if max(unfinished, lengths.max(initial=0)) > _MAX_VARINT:
            raise ValueError("a varint has more than 10 bytes")
    if unfinished:
        raise ValueError("a varint ends after its message")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _as_message(wire_type: int, payload: memoryview | int) -> memoryview:
    if wire_type != _LENGTH_DELIMITED or isinstance(payload, int):
        raise ValueError(f"a message has wire type {wire_type}")
    return payload


def _parse_fields(message: memoryview) -> Iterator[tuple[int, int, memoryview | int]]:
    """Yields (field number, wire type, payload): an int for a varint, else the bytes."""
    position = 0
    while position < len(message):
        tag, position = _parse_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _parse_varint(message, position)
            yield number, wire_type, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            length, position = _parse_varint(message, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if position + length > len(message):
            raise ValueError("a field ends after its message")
        yield number, wire_type, message[position : position + length]
        position += length


def _parse_varint(message: memoryview, position: int) -> tuple[int, int]:
    """The unsigned 64-bit varint at `position`, and the position after it."""
    value = shift = 0
    while True:
        if position >= len(message):
            raise ValueError("a varint ends after its message")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint has more than 10 bytes")
