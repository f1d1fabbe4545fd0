"""CIFAR's binary files are read as they are defined, and what isn't one is refused in one line."""

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cifar import CLASSES10, COARSE100, FINE100, binary, picture, record, write_cifar10

from data_tools.errors import CONFIG, INPUT, DataError
from data_tools.sources import cifar
from data_tools.sources.cifar import CIFAR10, CIFAR100, Layout

AGAIN = "get it again"
RECORD10, RECORD100 = 3073, 3074


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        call()
    assert caught.value.kind in (INPUT, CONFIG)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def read_refusal(path: Path, data: bytes, layout: Layout) -> str:
    path.write_bytes(data)
    return refusal(lambda: cifar.read_batch(path, layout))


# Records


def test_planes_of_one_record_become_interleaved_pixels(tmp_path: Path) -> None:
    path = tmp_path / "one.bin"
    path.write_bytes(bytes([7]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes([30]) * 1024)
    batch = cifar.read_batch(path, CIFAR10)
    assert (batch.images.dtype, batch.images.shape) == (np.uint8, (1, 32, 32, 3))
    assert np.unique(batch.images.reshape(-1, 3), axis=0).tolist() == [[10, 20, 30]]
    assert batch.labels.tolist() == [7]
    assert batch.coarse_labels is None


def test_each_plane_is_read_row_by_row_from_the_top_left(tmp_path: Path) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[0, 1], image[1, 0], image[31, 31] = (1, 2, 3), (4, 5, 6), (7, 8, 9)
    planes = bytearray(3072)
    for place, start in (((0, 1), 1), ((1, 0), 32), ((31, 31), 1023)):
        for channel in range(3):
            planes[channel * 1024 + start] = int(image[place][channel])
    (tmp_path / "one.bin").write_bytes(bytes([0]) + planes)
    np.testing.assert_array_equal(cifar.read_batch(tmp_path / "one.bin", CIFAR10).images[0], image)


@given(labels=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_any_records_of_cifar_10_are_read_in_order(
    tmp_path_factory: pytest.TempPathFactory, labels: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any10.bin"
    path.write_bytes(binary([(label,) for label in labels]))
    batch = cifar.read_batch(path, CIFAR10)
    assert batch.labels.tolist() == labels
    np.testing.assert_array_equal(batch.images, [picture(n) for n in range(len(labels))])


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 99)), min_size=1, max_size=5))
def test_any_records_of_cifar_100_are_read_in_order_coarse_label_first(
    tmp_path_factory: pytest.TempPathFactory, labels: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any100.bin"
    path.write_bytes(binary(labels))
    batch = cifar.read_batch(path, CIFAR100)
    assert batch.coarse_labels is not None
    assert list(zip(batch.coarse_labels, batch.labels, strict=True)) == labels
    np.testing.assert_array_equal(batch.images, [picture(n) for n in range(len(labels))])


# Files of another kind


@pytest.mark.parametrize(
    ("size", "remainder"),
    [
        (3 * RECORD10 + 1, "1 byte left over"),
        (3 * RECORD10 - 1, "3072 bytes left over"),
        (5, "5 bytes left over"),
    ],
)
def test_a_file_that_is_not_whole_records_is_named_with_its_size_and_what_is_left_over(
    tmp_path: Path, size: int, remainder: str
) -> None:
    path = tmp_path / "data_batch_1.bin"
    assert read_refusal(path, bytes(size), CIFAR10) == (
        f"error: INPUT: {path}: {size} bytes are not whole records of 3073: {remainder}; "
        "the file is cut short or damaged, get it again"
    )


def test_a_file_that_is_not_whole_records_of_cifar_100_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    assert read_refusal(path, bytes(2 * RECORD100 + 7), CIFAR100) == (
        f"error: INPUT: {path}: 6155 bytes are not whole records of 3074: 7 bytes left over; "
        "the file is cut short or damaged, get it again"
    )


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    assert read_refusal(path, b"", CIFAR10) == (f"error: INPUT: {path}: the file is empty; {AGAIN}")


@pytest.mark.parametrize("label", [10, 20, 255])
def test_a_label_above_the_last_is_named_by_record_and_byte(tmp_path: Path, label: int) -> None:
    path = tmp_path / "data_batch_1.bin"
    assert read_refusal(path, binary([(9,), (0,), (label,), (99,)]), CIFAR10) == (
        f"error: INPUT: {path}:record 2:byte 6146: label {label}, the last of CIFAR-10 is 9; "
        "the file is damaged or of another set, get it again"
    )


@pytest.mark.parametrize(
    ("labels", "byte", "label", "last"),
    [((20, 99), RECORD100, 20, 19), ((19, 100), RECORD100 + 1, 100, 99)],
)
def test_a_label_of_cifar_100_above_the_last_is_named_by_record_and_byte(
    tmp_path: Path, labels: tuple[int, int], byte: int, label: int, last: int
) -> None:
    path = tmp_path / "train.bin"
    assert read_refusal(path, binary([(19, 99), labels]), CIFAR100) == (
        f"error: INPUT: {path}:record 1:byte {byte}: label {label}, the last of CIFAR-100 is "
        f"{last}; the file is damaged or of another set, get it again"
    )


def test_a_file_of_cifar_100_given_as_cifar_10_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    assert read_refusal(path, binary([(9, 12), (19, 99)]), CIFAR10) == (
        f"error: INPUT: {path}: it looks like CIFAR-100, not CIFAR-10; pass --dataset cifar100"
    )


def test_a_file_of_cifar_10_given_as_cifar_100_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    assert read_refusal(path, binary([(9,), (0,)]), CIFAR100) == (
        f"error: INPUT: {path}: it looks like CIFAR-10, not CIFAR-100; pass --dataset cifar10"
    )


def test_a_file_whose_size_fits_both_layouts_is_told_by_its_labels(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    # 3073 records of CIFAR-100 are 3074 of CIFAR-10 by size; every other byte is 200.
    row = bytes([19, 99]) + bytes([200]) * 3072
    assert read_refusal(path, row * RECORD10, CIFAR10) == (
        f"error: INPUT: {path}: it looks like CIFAR-100, not CIFAR-10; pass --dataset cifar100"
    )
    assert len(cifar.read_batch(path, CIFAR100).labels) == RECORD10


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
@pytest.mark.parametrize("whole", [False, True], ids=["any size", "a size of whole records"])
def test_the_python_version_is_told_from_the_binary_one_and_never_unpickled(
    tmp_path: Path, protocol: int, layout: Layout, whole: bool
) -> None:
    path = tmp_path / "data_batch_1"
    data = pickle.dumps({b"data": bytes(9999), b"labels": [1, 2]}, protocol=protocol)
    if whole:
        data += bytes(-len(data) % layout.record_bytes)
    assert read_refusal(path, data, layout) == (
        f"error: INPUT: {path}: a Python pickle, not the binary version; get the binary version"
    )


def test_an_archive_is_told_from_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        content = binary([(1,), (2,)])
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    whole = path.read_bytes() + bytes(-path.stat().st_size % RECORD10)
    for data in (path.read_bytes(), gzip.compress(binary([(1,)])), whole):
        assert read_refusal(path, data, CIFAR10) == (
            f"error: INPUT: {path}: a gzip archive, not the binary version; "
            "unpack it and pass the folder"
        )


@given(
    data=st.binary(max_size=40), records=st.integers(0, 2), layout=st.sampled_from(cifar.LAYOUTS)
)
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, records: int, layout: Layout
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.bin"
    path.write_bytes(data.ljust(records * layout.record_bytes, b"\x07"))
    try:
        batch = cifar.read_batch(path, layout)
    except DataError as error:
        assert error.kind is INPUT
        assert error.where.startswith(str(path))
    else:
        assert len(batch.labels) == path.stat().st_size / layout.record_bytes


# Which files


def names(found: tuple[Layout, list[Path]]) -> list[str]:
    return [path.name for path in found[1]]


def test_the_files_of_a_folder_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("data_batch_10.bin", "test_batch.bin", "data_batch_2.bin", "data_batch_1.bin"):
        (tmp_path / name).write_bytes(b"")
    for name in ("readme.html", "batches.meta.txt", "data_batch_3.bin.part", ".data_batch_4.bin",
                 "mydata_batch_5.bin", "data_batch_x.bin", "train.bin.gz"):  # fmt: skip
        (tmp_path / name).write_bytes(b"")
    found = cifar.find_files([tmp_path], None)
    assert found[0] is CIFAR10
    assert names(found) == [
        "data_batch_1.bin", "data_batch_2.bin", "data_batch_10.bin", "test_batch.bin",
    ]  # fmt: skip


def test_the_names_of_a_folder_tell_cifar_100(tmp_path: Path) -> None:
    for name in ("test.bin", "train.bin", "fine_label_names.txt"):
        (tmp_path / name).write_bytes(b"")
    for dataset in (None, "cifar100"):
        found = cifar.find_files([tmp_path], dataset)
        assert found[0] is CIFAR100
        assert names(found) == ["test.bin", "train.bin"]


@pytest.mark.parametrize(
    ("dataset", "wanted"),
    [
        ("cifar10", "data_batch_*.bin and test_batch.bin"),
        ("cifar100", "train.bin and test.bin"),
        (None, "data_batch_*.bin and test_batch.bin or train.bin and test.bin"),
    ],
)
def test_a_folder_without_such_files_is_told_what_is_looked_for(
    tmp_path: Path, dataset: str | None, wanted: str
) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "train").write_bytes(b"of the Python version of CIFAR-100")
    assert refusal(lambda: cifar.find_files([tmp_path], dataset)) == (
        f"error: INPUT: {tmp_path}: no {wanted} in the folder; "
        "pass the folder that holds the .bin files"
    )


def test_files_are_taken_in_the_order_given_whatever_their_names(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b", "a.bin", "test_c")]
    for path in paths:
        path.write_bytes(binary([(9, 12)]))
    assert cifar.find_files(paths, None) == (CIFAR100, paths)
    assert cifar.find_files(paths, "cifar10") == (CIFAR10, paths)


@pytest.mark.parametrize(
    ("data", "layout"),
    [
        (binary([(1,), (9,)]), CIFAR10),
        (binary([(1, 9), (19, 99)]), CIFAR100),
        (binary([(19, 100)]), CIFAR10),  # fits none: what is wrong is told in terms of CIFAR-10
        (b"", CIFAR10),
    ],
)
def test_the_layout_of_a_file_is_told_by_its_size_and_labels(
    tmp_path: Path, data: bytes, layout: Layout
) -> None:
    (tmp_path / "a.bin").write_bytes(data)
    assert cifar.guess_layout(tmp_path / "a.bin") is layout


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(binary([(1,)]))
    missing = tmp_path / "b.bin"
    assert refusal(lambda: cifar.find_files([tmp_path / "a.bin", missing], None)) == (
        f"error: INPUT: {missing}: no such file; check the path"
    )


@pytest.mark.parametrize("first", ["folder", "file"])
def test_a_folder_beside_files_is_named(tmp_path: Path, first: str) -> None:
    folder = write_cifar10(tmp_path / "set", {"data_batch_1.bin": [1]})
    sources = [folder, folder / "data_batch_1.bin"]
    if first == "file":
        sources.reverse()
    assert refusal(lambda: cifar.find_files(sources, None)) == (
        f"error: CONFIG: {folder}: a folder beside other sources; pass one folder, or files only"
    )


def test_a_folder_named_like_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").mkdir()
    _, files = cifar.find_files([tmp_path], None)
    assert refusal(lambda: cifar.read_batch(files[0], CIFAR10)) == (
        f"error: INPUT: {files[0]}: Is a directory; check that the path exists and its permissions"
    )


# Names of classes


def test_row_i_names_class_i_whatever_ends_the_lines(tmp_path: Path) -> None:
    for text in (
        "\r\n".join(CLASSES10) + "\r\n\r\n",
        "\n".join(CLASSES10),
        "\n".join(name + " \t" for name in CLASSES10) + "\n  \n",
        "\ufeff" + "\r\n".join(CLASSES10),
    ):
        (tmp_path / "batches.meta.txt").write_text(text, newline="")
        assert cifar.read_class_names(tmp_path, CIFAR10) == [CLASSES10]


def test_cifar_100_has_names_of_superclasses_and_of_classes(tmp_path: Path) -> None:
    (tmp_path / "coarse_label_names.txt").write_text("\n".join(COARSE100))
    (tmp_path / "fine_label_names.txt").write_text("\n".join(FINE100))
    assert cifar.read_class_names(tmp_path, CIFAR100) == [COARSE100, FINE100]


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (CIFAR10, [tuple(map(str, range(10)))]),
        (CIFAR100, [tuple(map(str, range(20))), tuple(map(str, range(100)))]),
    ],
    ids=["cifar10", "cifar100"],
)
def test_without_the_files_of_names_the_classes_have_their_numbers(
    tmp_path: Path, layout: Layout, names: list[tuple[str, ...]]
) -> None:
    assert cifar.read_class_names(tmp_path, layout) == names


@pytest.mark.parametrize("count", [0, 9, 11])
def test_another_number_of_names_is_named(tmp_path: Path, count: int) -> None:
    path = tmp_path / "batches.meta.txt"
    path.write_text("\n".join(f"name{number}" for number in range(count)))
    assert refusal(lambda: cifar.read_class_names(tmp_path, CIFAR10)) == (
        f"error: INPUT: {path}: {count} names for 10 classes; get the file again"
    )


@pytest.mark.parametrize(
    ("row", "fault"),
    [(b"a\x00b", "row 3: the name 'a\\x00b'"), (b"name0", "row 3: the name 'name0' again"),
     (b"", "row 3: the name ''"), (b"\xff", "byte 12: the names are not UTF-8")],
)  # fmt: skip
def test_a_name_that_can_be_none_is_named(tmp_path: Path, row: bytes, fault: str) -> None:
    path = tmp_path / "batches.meta.txt"
    names = [b"name%d" % number for number in range(10)]
    path.write_bytes(b"\n".join([*names[:2], row, *names[3:]]))
    assert refusal(lambda: cifar.read_class_names(tmp_path, CIFAR10)).startswith(
        f"error: INPUT: {path}:{fault}; "
    )


def test_fine_names_in_place_of_coarse_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "coarse_label_names.txt").write_text("\n".join(FINE100))
    assert refusal(lambda: cifar.read_class_names(tmp_path, CIFAR100)) == (
        f"error: INPUT: {tmp_path / 'coarse_label_names.txt'}: 100 names for 20 classes; "
        "get the file again"
    )


def test_a_record_of_the_tests_is_laid_out_as_the_layouts_say() -> None:
    assert len(record((1,), picture(0))) == CIFAR10.record_bytes == RECORD10
    assert len(record((1, 2), picture(0))) == CIFAR100.record_bytes == RECORD100
