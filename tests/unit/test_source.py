"""A split is read by example number, from memory or from mapped shards alike."""

import os
from pathlib import Path

import numpy as np
import pytest
from small_sets import draw, texts, write_set

from data_tools.errors import DataError
from data_tools.manifest import Manifest
from hvd_train.data.source import (
    Batch,
    DiskSource,
    MemorySource,
    Source,
    check_own_hashes,
    open_source,
)

TRAIN = texts(23, lengths=(4, 2, 3))
TEST = texts(5)
IN_MEMORY, ON_DISK = 2.0**30, 0.0
FIX = "convert the data set again"


def label_of(text: str) -> list[int]:
    return [ord(letter) - ord("A") for letter in text] + [-1] * (4 - len(text))


@pytest.fixture(scope="module", params=["raw", "png"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("sets") / "set"
    return folder, write_set(folder, train=TRAIN, test=TEST, shards=3, encoding=request.param)


@pytest.fixture(params=[IN_MEMORY, ON_DISK], ids=["memory", "mapped"])
def source(request: pytest.FixtureRequest, made: tuple[Path, Manifest]) -> Source:
    return open_source(*made, "train", budget=request.param)


@pytest.fixture
def raw(tmp_path: Path) -> tuple[Path, Manifest]:
    folder = tmp_path / "set"
    return folder, write_set(folder, train=TRAIN, test=TEST, shards=3)


def test_each_number_gives_its_own_image_and_label(source: Source) -> None:
    assert len(source) == 23
    batch = source.gather(np.arange(23))
    assert batch.ids.tolist() == list(range(23))
    assert (batch.images.dtype, batch.images.shape) == (np.uint8, (23, 20, 80, 3))
    assert (batch.images == np.stack([draw(example) for example in range(23)])).all()
    assert batch.labels.dtype == np.int32
    assert batch.labels.tolist() == [label_of(text) for text in TRAIN]


def test_examples_come_in_the_order_that_was_asked_for_even_twice(source: Source) -> None:
    ids = [22, 0, 7, 8, 7, 15]
    batch = source.gather(np.array(ids))
    assert batch.ids.tolist() == ids
    assert (batch.images == np.stack([draw(example) for example in ids])).all()
    assert batch.labels.tolist() == [label_of(TRAIN[example]) for example in ids]


def test_a_split_is_read_from_its_own_shards(made: tuple[Path, Manifest]) -> None:
    batch = open_source(*made, "test", budget=ON_DISK).gather(np.arange(5))
    assert (batch.images == np.stack([draw(example) for example in range(23, 28)])).all()


def test_a_split_of_exactly_the_budget_is_held_in_memory(made: tuple[Path, Manifest]) -> None:
    size = 23 * 20 * 80 * 3
    assert isinstance(open_source(*made, "train", budget=size), MemorySource)
    assert isinstance(open_source(*made, "train", budget=size - 1), DiskSource)


def test_an_unknown_split_is_named_with_those_there_are(made: tuple[Path, Manifest]) -> None:
    with pytest.raises(DataError) as caught:
        open_source(*made, "validation", budget=IN_MEMORY)
    expected = f"error: CONFIG: {made[0]}: no split 'validation'; the splits are train, test"
    assert str(caught.value) == expected


def test_a_split_without_examples_is_empty(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    source = open_source(folder, write_set(folder, train=TRAIN, test=[]), "test", budget=IN_MEMORY)
    assert len(source) == 0


def shard_of(folder: Path, index: int = 1) -> Path:
    return folder / f"captcha-train.tfrecord-{index:05d}-of-00003"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def fault(opening) -> str:
    with pytest.raises(DataError) as caught:
        opening()
    return str(caught.value)


def test_a_missing_shard_is_integrity_on_every_rank_of_the_host(raw: tuple[Path, Manifest]) -> None:
    shard_of(raw[0]).unlink()
    assert fault(lambda: check_own_hashes(*raw, local_rank=0, local_size=9)) == (
        f"error: INTEGRITY: {shard_of(raw[0])}: the shard is missing; {FIX}"
    )


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_another_size_is_integrity_on_every_rank_of_the_host(
    raw: tuple[Path, Manifest], change: int
) -> None:
    path = shard_of(raw[0])
    data = path.read_bytes()
    path.write_bytes((data + b"\0")[: len(data) + change])
    assert fault(lambda: check_own_hashes(*raw, local_rank=0, local_size=9)) == (
        f"error: INTEGRITY: {path}: {len(data) + change} bytes, the manifest says {len(data)}; "
        f"{FIX}"
    )


def test_a_flipped_byte_is_found_at_its_record_when_it_is_read(
    raw: tuple[Path, Manifest],
) -> None:
    offsets = np.load(raw[0] / "offsets-train.npy")
    begin = int(offsets[8])  # 23 examples in 3 shards: the second begins with number 8
    inside = int(offsets[10]) - begin
    flip(shard_of(raw[0]), inside + 100)
    source = open_source(*raw, "train", budget=ON_DISK)
    source.gather(np.array([0, 9, 11, 22]))
    expected = (
        f"error: INTEGRITY: {shard_of(raw[0])}:byte {inside}: the checksum of the data is wrong; "
        "get the file again or convert the data set again"
    )
    assert fault(lambda: source.gather(np.array([10]))) == expected
    assert fault(lambda: open_source(*raw, "train", budget=IN_MEMORY)) == expected


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        (np.arange(23), "doesn't fit the manifest's examples and bytes"),
        (np.arange(24), "doesn't fit the manifest's examples and bytes"),
        (np.arange(24.0), "not the offsets of a split"),
        (np.array(7), "not the offsets of a split"),
    ],
)
def test_offsets_that_do_not_fit_are_integrity(
    raw: tuple[Path, Manifest], offsets: np.ndarray, reason: str
) -> None:
    path = raw[0] / "offsets-train.npy"
    np.save(path, offsets)
    assert fault(lambda: open_source(*raw, "train", budget=ON_DISK)) == (
        f"error: INTEGRITY: {path}: {reason}; {FIX}"
    )


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"none of it"])
def test_offsets_that_are_no_array_are_integrity(raw: tuple[Path, Manifest], data: bytes) -> None:
    path = raw[0] / "offsets-train.npy"
    path.write_bytes(data)
    message = fault(lambda: open_source(*raw, "train", budget=ON_DISK))
    assert message.startswith(f"error: INTEGRITY: {path}: not the offsets of a split; ")


def test_offsets_that_exchange_two_records_are_integrity(raw: tuple[Path, Manifest]) -> None:
    path = raw[0] / "offsets-train.npy"
    offsets = np.load(path)
    offsets[3] += 1
    np.save(path, offsets)
    message = fault(lambda: open_source(*raw, "train", budget=IN_MEMORY))
    assert message.startswith(f"error: INTEGRITY: {shard_of(raw[0], 0)}:byte ")


@pytest.mark.parametrize("local_size", [1, 2, 4, 7])
@pytest.mark.parametrize("damaged", range(3))
def test_each_shard_is_hashed_by_one_rank_of_the_host(
    raw: tuple[Path, Manifest], local_size: int, damaged: int
) -> None:
    flip(shard_of(raw[0], damaged), 100)
    found = []
    for rank in range(local_size):
        try:
            check_own_hashes(*raw, local_rank=rank, local_size=local_size)
        except DataError as error:
            found.append(str(error))
    (message,) = found
    path = shard_of(raw[0], damaged)
    assert message.startswith(f"error: INTEGRITY: {path}: SHA-256 ")


def test_the_shards_of_every_split_are_hashed(raw: tuple[Path, Manifest]) -> None:
    path = raw[0] / "captcha-test.tfrecord-00002-of-00003"
    flip(path, 50)
    message = fault(lambda: check_own_hashes(*raw, local_rank=0, local_size=1))
    assert message.startswith(f"error: INTEGRITY: {path}: SHA-256 ")


def test_no_batch_shares_memory_with_the_source(made: tuple[Path, Manifest]) -> None:
    source = open_source(*made, "train", budget=IN_MEMORY)
    batch: Batch = source.gather(np.arange(3))
    batch.images[:], batch.labels[:] = 0, 0
    assert (source.gather(np.array([1])).images[0] == draw(1)).all()
    assert source.gather(np.array([1])).labels.tolist() == [label_of(TRAIN[1])]


def test_a_shard_cut_while_it_is_read_is_integrity(raw: tuple[Path, Manifest]) -> None:
    source = open_source(*raw, "train", budget=ON_DISK)
    os.truncate(shard_of(raw[0], 0), 100)
    message = fault(lambda: source.gather(np.arange(3)))
    assert message.startswith(f"error: INTEGRITY: {shard_of(raw[0], 0)}:byte 0: ")
    assert message.endswith("; get the file again or convert the data set again")


def test_offsets_cut_while_they_are_used_harm_nothing(raw: tuple[Path, Manifest]) -> None:
    source = open_source(*raw, "train", budget=ON_DISK)
    os.truncate(raw[0] / "offsets-train.npy", 0)
    assert len(source.gather(np.arange(3)).ids) == 3
