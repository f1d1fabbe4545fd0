"""`data_tools svhn-to-tfrecord`: MATLAB files of digits, written by SciPy here."""

import json
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from small_captchas import Ran, files_of, read_set
from small_cifar import picture

from data_tools import manifest
from data_tools.errors import DataError
from data_tools.sources import svhn
from data_tools.sources.matlab import read_arrays

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
LABELS = [1, 10, 3, 9, 10, 2, 5]
AGAIN = "get the file again, or save it with -v7"
OTHER = "pass the files of cropped digits, format 2"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "svhn").mkdir()
    return tmp_path / "svhn"


@pytest.fixture
def convert(data_tools: Tools, source: Path, out: Path) -> Tools:
    """Converts svhn/ to set/; a fault leaves nothing."""

    def run(*flags: object) -> Ran:
        ran = data_tools("svhn-to-tfrecord", source, out, *flags)
        assert not out.with_name("set.incomplete").exists()
        if ran.rc != 0:
            assert not out.exists()
            assert ran.stdout == ""
            assert len(ran.stderr.splitlines()) == 1
        return ran

    return run


def stack(count: int, first: int = 0) -> np.ndarray:
    """Pictures as the files hold them, uint8 [32, 32, 3, count]."""
    return np.stack([picture(first + number) for number in range(count)], axis=3)


def write(path: Path, labels: list[int] = LABELS, *, first: int = 0, **options: Any) -> Path:
    variables = {"X": stack(len(labels), first), "y": np.array(labels, np.uint8)[:, None]}
    scipy.io.savemat(path, variables, do_compression=True, **options)
    return path


@pytest.mark.parametrize("compressed", [True, False])
def test_a_record_is_the_picture_with_its_digit(
    convert: Tools, source: Path, out: Path, compressed: bool
) -> None:
    labels = np.array(LABELS, np.uint8)[:, None]
    for name, first in (("train", 0), ("test", 10), ("extra", 20)):
        variables = {"X": stack(len(LABELS), first), "y": labels}
        scipy.io.savemat(source / f"{name}_32x32.mat", variables, do_compression=compressed)
    ran = convert()
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 21 images of SVHN: train 7, test 7, extra 7\n"
    assert read_set(out) == {
        name: [
            {"image": picture(first + number).tobytes(), "label": label % 10}
            for number, label in enumerate(LABELS)
        ]
        for name, first in (("train", 0), ("test", 10), ("extra", 20))
    }


def test_the_manifest_says_what_was_found(
    convert: Tools, data_tools: Tools, source: Path, out: Path
) -> None:
    write(source / "test_32x32.mat")
    assert convert("--shards", 2).rc == 0
    found = manifest.load(out)
    assert (found.name, found.kind, found.label) == ("svhn", "classes", None)
    assert found.classes == tuple("0123456789")
    assert found.image == manifest.ImageSpec(height=32, width=32, channels=3, encoding="raw")
    assert {name: len(split.shards) for name, split in found.splits.items()} == {"test": 2}
    assert data_tools("verify", out).rc == 0
    counts = json.loads(data_tools("info", out, "--json").stdout)["classes"]
    assert counts == {str(digit): [n % 10 for n in LABELS].count(digit) for digit in range(10)}


def test_the_output_is_the_same_with_any_number_of_workers(
    data_tools: Tools, source: Path, tmp_path: Path
) -> None:
    write(source / "train_32x32.mat", LABELS * 3)
    sets = []
    for workers in (1, 2, 5):
        out = tmp_path / f"set{workers}"
        assert data_tools("svhn-to-tfrecord", source, out, "--workers", workers).rc == 0
        sets.append(files_of(out))
    assert sets[0] == sets[1] == sets[2]


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "i8"])
@pytest.mark.parametrize("shape", [(7, 1), (1, 7)])
def test_labels_may_be_numbers_of_any_type(
    convert: Tools, source: Path, out: Path, dtype: str, shape: tuple[int, int]
) -> None:
    y = np.array(LABELS, dtype).reshape(shape)
    scipy.io.savemat(source / "train_32x32.mat", {"y": y, "other": "text", "X": stack(7)})
    assert convert().rc == 0
    labels = [row["label"] for row in read_set(out)["train"]]
    assert labels == [label % 10 for label in LABELS]


# What is refused


def refused(convert: Tools, kind_and_rest: str) -> None:
    ran = convert()
    assert (ran.rc, ran.stderr) == (3, f"error: INPUT: {kind_and_rest}\n")


def test_a_folder_without_the_files_is_input(convert: Tools, source: Path) -> None:
    (source / "train.mat").touch()
    refused(
        convert,
        f"{source}: no train_32x32.mat, test_32x32.mat, extra_32x32.mat in the folder; "
        "pass the folder that holds such files",
    )
    (source / "train.mat").unlink()
    source.rmdir()
    check = "check that the path exists and its permissions"
    refused(convert, f"{source}: No such file or directory; {check}")
    source.touch()
    refused(convert, f"{source}: Not a directory; {check}")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"X": stack(2)}, "no array y of numbers in it"),
        ({"y": [[1], [2]]}, "no array X of numbers in it"),
        ({"X": "text", "y": [[1]]}, "no array X of numbers in it"),
        ({"X": stack(1) * 1j, "y": [[1]]}, "no array X of numbers in it"),
        ({"x": stack(2), "y": [[1], [2]]}, "no array X of numbers in it"),
        ({"X": stack(2) / 255, "y": [[1], [2]]},
         "X is float64 [32, 32, 3, 2], not uint8 [32, 32, 3, n]"),
        ({"X": stack(2)[:, :, 0], "y": [[1], [2]]},
         "X is uint8 [32, 32, 2], not uint8 [32, 32, 3, n]"),
        ({"X": stack(2).T, "y": [[1], [2]]},
         "X is uint8 [2, 3, 32, 32], not uint8 [32, 32, 3, n]"),
        ({"X": stack(2), "y": [[1], [2], [3]]}, "y is int64 [3, 1], not 2 numbers"),
        ({"X": stack(4), "y": [[1, 2], [3, 4]]}, "y is int64 [2, 2], not 4 numbers"),
    ],
)  # fmt: skip
def test_other_variables_are_input(
    convert: Tools, source: Path, variables: dict[str, Any], reason: str
) -> None:
    path = source / "train_32x32.mat"
    scipy.io.savemat(path, variables, do_compression=True)
    refused(convert, f"{path}: {reason}; {OTHER}")


@pytest.mark.parametrize(
    ("labels", "record", "shown"),
    [
        ([1, 0, 3], 1, "0"), ([11, 12, 3], 0, "11"), ([1, 2, 255], 2, "255"),
        ([1.0, 2.5, 3.0], 1, "2.5"), ([1.0, 2.0, float("nan")], 2, "nan"), ([-1, 2, 3], 0, "-1"),
    ],
)  # fmt: skip
def test_a_label_that_is_none_of_1_to_10_is_input_naming_the_record(
    convert: Tools, source: Path, labels: list[float], record: int, shown: str
) -> None:
    path = source / "train_32x32.mat"
    scipy.io.savemat(path, {"X": stack(3), "y": np.array(labels)[:, None]})
    refused(convert, f"{path}:record {record}: label {shown}, not one of 1 to 10; {AGAIN}")


def test_a_file_without_examples_is_input(convert: Tools, source: Path) -> None:
    path = source / "train_32x32.mat"
    variables = {"X": np.zeros((32, 32, 3, 0), np.uint8), "y": np.zeros((0, 1))}
    scipy.io.savemat(path, variables)
    refused(convert, f"{path}: no examples; {AGAIN}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a MATLAB file of version 5"),
        (b"\x1f\x8b" + bytes(200), "not a MATLAB file of version 5"),
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + b" " * 90 + bytes(400),
         "a MATLAB file of version 7.3, not 5"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "a MATLAB file of version 7.3, not 5"),
    ],
)  # fmt: skip
def test_another_kind_of_file_is_input(
    convert: Tools, source: Path, content: bytes, reason: str
) -> None:
    path = source / "train_32x32.mat"
    path.write_bytes(content)
    refused(convert, f"{path}: {reason}; {AGAIN}")


def test_a_file_of_version_4_is_input(convert: Tools, source: Path) -> None:
    path = source / "train_32x32.mat"
    scipy.io.savemat(path, {"y": np.array([[1.0]])}, format="4")
    refused(convert, f"{path}: not a MATLAB file of version 5; {AGAIN}")


def test_a_folder_in_place_of_a_file_is_input(convert: Tools, source: Path) -> None:
    (source / "train_32x32.mat").mkdir()
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.startswith(f"error: INPUT: {source}/train_32x32.mat: Is a directory; ")


def test_one_damaged_file_of_three_leaves_no_output(convert: Tools, source: Path) -> None:
    write(source / "train_32x32.mat")
    whole = write(source / "test_32x32.mat").read_bytes()
    (source / "test_32x32.mat").write_bytes(whole[:-1])
    refused(convert, f"{source}/test_32x32.mat: the file is cut short; {AGAIN}")


def test_a_disk_too_full_to_unpack_to_is_space(run_cli: RunCli, source: Path, out: Path) -> None:
    path = source / "train_32x32.mat"
    variables = {"X": np.zeros((32, 32, 3, 99), np.uint8), "y": np.ones((99, 1))}
    scipy.io.savemat(path, variables, do_compression=True)
    command = [sys.executable, "-m", "data_tools", "svhn-to-tfrecord", source, out]
    ran = run_cli(["bash", "-c", 'ulimit -f 100 && exec "$@"', "bash", *command])
    assert (ran.rc, ran.stderr) == (
        5,
        f"error: SPACE: {out}: File too large; free some space or choose another folder\n",
    )
    assert list(out.parent.iterdir()) == [source]


# The MATLAB file itself


@pytest.fixture(params=[True, False], ids=["compressed", "plain"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of one dull picture, so that it is short."""
    path = tmp_path / "small.mat"
    variables = {"X": np.full((32, 32, 3, 1), 7, np.uint8), "y": np.array([[4]], np.uint8)}
    scipy.io.savemat(path, variables, do_compression=request.param)
    return path


def test_a_file_is_refused_at_whatever_byte_it_is_cut(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for length in range(len(data)):
        small.write_bytes(data[:length])
        with pytest.raises(DataError):
            svhn.read_file(small, tmp_path)


def test_a_flipped_bit_is_refused_or_changes_numbers_only(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    passed = 0
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        small.write_bytes(flipped)
        try:
            batch = svhn.read_file(small, tmp_path)
        except DataError:
            continue
        passed += 1
        assert batch.images.shape == (1, 32, 32, 3)
    assert passed < len(data)
    assert not list(tmp_path.glob("tmp*"))


def test_what_follows_a_compressed_variable_in_its_element_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "train_32x32.mat")
    data = path.read_bytes()
    kind, length = struct.unpack("<II", data[128:136])
    inner = zlib.decompress(data[136 : 136 + length])
    for packed in (
        data[136 : 136 + length] + b"\0", zlib.compress(inner + bytes(8)),
        data[136 : 132 + length],  # without its checksum
    ):  # fmt: skip
        tag = struct.pack("<II", kind, len(packed))
        path.write_bytes(data[:128] + tag + packed + data[136 + length :])
        with pytest.raises(DataError, match="a compressed variable is damaged"):
            svhn.read_file(path, tmp_path)


def test_dimensions_that_lie_take_no_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "train_32x32.mat")
    for dims in ((32, 32, 3, 1 << 30), (32, 32, 3, -1), (0, 0, 0, 0)):
        body = struct.pack("<IIII", 6, 8, 9, 0) + struct.pack("<II4i", 5, 16, *dims)
        body += struct.pack("<HH4s", 1, 1, b"X") + struct.pack("<II", 2, 64) + bytes(64)
        path.write_bytes(path.read_bytes()[:128] + struct.pack("<II", 14, len(body)) + body)
        with pytest.raises(DataError, match="X has another number of values than its dimensions"):
            svhn.read_file(path, tmp_path)


@given(
    array=arrays.arrays(
        st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]),
        arrays.array_shapes(min_dims=2, max_dims=5, min_side=0, max_side=4),
    ),
    compressed=st.booleans(),
)
def test_any_array_that_scipy_writes_is_read_back(array: np.ndarray, compressed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.mat")
        others = {"a": "text", "b": {"c": [1, 2]}, "d": np.array([True])}
        scipy.io.savemat(path, {**others, "it": array, "X": array}, do_compression=compressed)
        with path.open("rb") as file:
            found = read_arrays(file, ("it", "none", "a"), Path(folder))
        assert list(found) == ["it"]
        assert (found["it"].dtype, found["it"].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found["it"], array)


def test_files_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype=">i4").reshape(2, 3)
    body = struct.pack(">IIII", 6, 8, 12, 0) + struct.pack(">II2i", 5, 8, 2, 3)
    body += struct.pack(">HH4s", 1, 1, b"y") + struct.pack(">II", 5, 24) + values.T.tobytes()
    path = tmp_path / "big.mat"
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI"
    path.write_bytes(head + struct.pack(">II", 14, len(body)) + body)
    with path.open("rb") as file:
        np.testing.assert_array_equal(read_arrays(file, ("y",), tmp_path)["y"], values)
    np.testing.assert_array_equal(scipy.io.loadmat(path)["y"], values)
