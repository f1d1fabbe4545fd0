"""`data_tools cifar-to-tfrecord`: CIFAR's binary files to a data set that others read too."""

import hashlib
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from small_captchas import Ran, files_of
from small_cifar import (
    CLASSES10,
    COARSE100,
    FINE100,
    binary,
    picture,
    write_cifar10,
    write_cifar100,
)

from data_tools import manifest, schema, tfrecord
from hvd_train.data.source import open_source

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]

FILES10: dict[str, list[int]] = {
    "data_batch_1.bin": [3, 1, 4],
    "data_batch_2.bin": [1, 5, 9, 2],
    "data_batch_10.bin": [6, 5, 3, 5],
    "test_batch.bin": [8, 9, 7],
}
TRAIN10 = [label for name, labels in FILES10.items() if name[0] == "d" for label in labels]
TEST10 = FILES10["test_batch.bin"]
FILES100: dict[str, list[tuple[int, int]]] = {
    "train.bin": [(9, 12), (0, 0), (19, 99), (4, 12), (1, 98)],
    "test.bin": [(19, 0), (0, 99)],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cifar"


@pytest.fixture
def convert(data_tools: Tools, out: Path) -> Tools:
    """Converts sources to set/; a fault leaves what is there as it is."""

    def run(*sources_and_flags: object) -> Ran:
        before = files_of(out) if out.is_dir() else None
        sources = [word for word in sources_and_flags if isinstance(word, Path)]
        flags = [word for word in sources_and_flags if not isinstance(word, Path)]
        ran = data_tools("cifar-to-tfrecord", *sources, out, *flags)
        assert not out.with_name("set.incomplete").exists()
        if ran.rc != 0:
            assert (files_of(out) if out.is_dir() else None) == before
            assert ran.stdout == ""
            assert ran.stderr.startswith("error: ")
            assert len(ran.stderr.splitlines()) == 1
        return ran

    return run


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory, run_cli: RunCli) -> Path:
    """A data set of CIFAR-10, by the command as users run it."""
    base = tmp_path_factory.mktemp("cifar10")
    source = write_cifar10(base / "source", FILES10)
    ran = run_cli(["python", "-m", "data_tools", "cifar-to-tfrecord", source, base / "set"])
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{base / 'set'}: 14 images of CIFAR-10: train 11, test 3\n"
    return base / "set"


@pytest.fixture(scope="module")
def cifar100(tmp_path_factory: pytest.TempPathFactory, data_tools: Tools) -> Path:
    base = tmp_path_factory.mktemp("cifar100")
    source = write_cifar100(base / "source", FILES100)
    ran = data_tools("cifar-to-tfrecord", source, base / "set", "--shards", 2)
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{base / 'set'}: 7 images of CIFAR-100: train 5, test 2\n"
    return base / "set"


def records(out: Path, split: str) -> Iterator[dict[str, Any]]:
    """The features of each record of a split, in the order of the shards."""
    for shard in manifest.load(out).splits[split].shards:
        for _, record in tfrecord.read_records(out / shard.file):
            features = tfrecord.decode_example(record)
            assert all(len(values) == 1 for values in features.values())
            yield {name: values[0] for name, values in features.items()}


def labels(out: Path, split: str) -> list[int]:
    return [row["label"] for row in records(out, split)]


# The data set that comes out


def test_a_record_is_the_interleaved_pixels_with_the_number_of_the_class(cifar10: Path) -> None:
    for split, expected, first in (("train", TRAIN10, 0), ("test", TEST10, 11)):
        assert list(records(cifar10, split)) == [
            {"image": picture(number).tobytes(), "label": label}
            for number, label in enumerate(expected, start=first)
        ]


def test_planes_of_10_20_and_30_are_pixels_of_10_20_30(
    convert: Tools, tmp_path: Path, out: Path
) -> None:
    one = tmp_path / "one.bin"
    one.write_bytes(bytes([7]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes([30]) * 1024)
    assert convert(one).rc == 0
    assert list(records(out, "train")) == [{"image": bytes([10, 20, 30]) * 1024, "label": 7}]


def test_coarse_and_fine_labels_of_cifar_100_are_stored_as_they_are(cifar100: Path) -> None:
    for split, first in (("train", 0), ("test", 5)):
        assert list(records(cifar100, split)) == [
            {"image": picture(number).tobytes(), "label": fine, "coarse_label": coarse}
            for number, (coarse, fine) in enumerate(FILES100[f"{split}.bin"], start=first)
        ]


def test_the_folder_holds_the_shards_the_offsets_and_what_describes_them(
    cifar10: Path, cifar100: Path
) -> None:
    for out, labels_files in (
        (cifar10, {"label.labels.txt"}),
        (cifar100, {"label.labels.txt", "coarse_label.labels.txt"}),
    ):
        splits = manifest.load(out).splits
        shards = {shard.file for split in splits.values() for shard in split.shards}
        assert {path.name for path in out.iterdir()} == shards | labels_files | {
            "manifest.json", "features.json", "dataset_info.json", "offsets-train.npy",
            "offsets-test.npy",
        }  # fmt: skip


def test_the_manifest_says_what_was_found(cifar10: Path, cifar100: Path) -> None:
    for out, name, classes, coarse in (
        (cifar10, "cifar10", CLASSES10, None),
        (cifar100, "cifar100", FINE100, COARSE100),
    ):
        found = manifest.load(out)
        assert (found.name, found.kind, found.label, found.skipped) == (name, "classes", None, ())
        assert (found.classes, found.coarse_classes) == (classes, coarse)
        image = found.image
        assert (image.height, image.width, image.channels, image.encoding) == (32, 32, 3, "raw")
        assert list(found.splits) == ["train", "test"]


def test_counts_sizes_hashes_and_offsets_agree_with_the_files(cifar10: Path) -> None:
    for name, split in manifest.load(cifar10).splits.items():
        sizes = [shard.examples for shard in split.shards]
        assert sizes == {"train": [2, 3, 3, 3], "test": [1, 1, 1]}[name]
        assert split.examples == sum(sizes)
        joined = b""
        for index, shard in enumerate(split.shards):
            assert shard.file == f"cifar10-{name}.tfrecord-{index:05d}-of-{len(sizes):05d}"
            data = (cifar10 / shard.file).read_bytes()
            assert shard.bytes == len(data)
            assert shard.sha256 == hashlib.sha256(data).hexdigest()
            joined += data
        offsets = np.load(cifar10 / split.offsets, allow_pickle=False)
        assert offsets.dtype == np.int64
        (cifar10.parent / "joined").write_bytes(joined)
        starts = [start for start, _ in tfrecord.read_records(cifar10.parent / "joined")]
        assert offsets.tolist() == [*starts, len(joined)]


def test_the_trainer_reads_the_pixels_and_the_classes(cifar10: Path, cifar100: Path) -> None:
    for out, expected in ((cifar10, TRAIN10), (cifar100, [12, 0, 99, 12, 98])):
        source = open_source(out, manifest.load(out), "train", budget=2.0**30)
        batch = source.gather(np.arange(len(source)))
        assert batch.labels.tolist() == [[label] for label in expected]
        np.testing.assert_array_equal(batch.images, [picture(n) for n in range(len(source))])


def test_the_classes_of_a_file_with_crlf_and_a_blank_last_line_are_its_10_rows(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_cifar10(folder, FILES10, names=False)
    (folder / "batches.meta.txt").write_bytes("\r\n".join([*CLASSES10, "", ""]).encode())
    assert convert(folder).rc == 0
    assert manifest.load(out).classes == CLASSES10
    for file in ("manifest.json", "label.labels.txt"):
        assert b"\r" not in (out / file).read_bytes()
    assert (out / "label.labels.txt").read_text() == "\n".join(CLASSES10) + "\n"


def test_without_the_file_of_names_the_classes_have_their_numbers(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_cifar10(folder, FILES10, names=False)
    assert convert(folder).rc == 0
    assert manifest.load(out).classes == tuple("0123456789")


def test_single_files_make_the_splits_that_their_names_say_in_the_order_given(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_cifar10(folder, FILES10)
    files = [folder / f"data_batch_{number}.bin" for number in (10, 1)]
    assert convert(*files).rc == 0
    assert list(manifest.load(out).splits) == ["train"]
    assert manifest.load(out).classes == CLASSES10
    assert labels(out, "train") == FILES10["data_batch_10.bin"] + FILES10["data_batch_1.bin"]
    ran = convert(folder / "test_batch.bin", "--overwrite")
    assert ran.stdout == f"{out}: 3 images of CIFAR-10: train 0 (left out), test 3\n"
    assert list(manifest.load(out).splits) == ["test"]


def test_files_of_cifar_100_are_told_by_what_is_in_them_whatever_their_names(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_cifar100(folder, {"renamed.bin": FILES100["train.bin"]})
    assert convert(folder / "renamed.bin").rc == 0
    assert manifest.load(out).name == "cifar100"
    assert [row["coarse_label"] for row in records(out, "train")] == [9, 0, 19, 4, 1]


def test_files_without_the_ending_bin_are_read_too(convert: Tools, folder: Path, out: Path) -> None:
    write_cifar10(folder, {name.removesuffix(".bin"): own for name, own in FILES10.items()})
    assert convert(folder).rc == 0
    assert labels(out, "train") == TRAIN10


# The same bytes


def test_the_bytes_depend_on_no_number_of_workers_and_no_order_of_creation(
    data_tools: Tools, tmp_path: Path, cifar10: Path
) -> None:
    source = tmp_path / "elsewhere"
    for name, content in reversed(files_of(cifar10.parent / "source").items()):
        source.mkdir(exist_ok=True)
        (source / name).write_bytes(content)
    for workers in (1, 3, 16):
        out = tmp_path / f"by {workers}"
        assert data_tools("cifar-to-tfrecord", source, out, "--workers", workers).rc == 0
        assert files_of(out) == files_of(cifar10)


@pytest.mark.parametrize("shards", [1, 2, 5, 11, 40])
def test_the_records_and_their_order_depend_on_no_number_of_shards(
    convert: Tools, cifar10: Path, out: Path, shards: int
) -> None:
    assert convert(cifar10.parent / "source", "--shards", shards).rc == 0
    for split, examples in (("train", 11), ("test", 3)):
        assert len(manifest.load(out).splits[split].shards) == min(shards, examples)
        assert list(records(out, split)) == list(records(cifar10, split))


# --validation


@pytest.mark.parametrize("count", [1, 6, 10])
def test_validation_takes_the_last_of_the_training_images(
    convert: Tools, cifar10: Path, out: Path, count: int
) -> None:
    ran = convert(cifar10.parent / "source", "--validation", count)
    cut = 11 - count
    assert ran.stdout == (
        f"{out}: 14 images of CIFAR-10: train {cut}, validation {count}, test 3\n"
    )
    assert list(manifest.load(out).splits) == ["train", "validation", "test"]
    whole = list(records(cifar10, "train"))
    assert list(records(out, "train")) == whole[:cut]
    assert list(records(out, "validation")) == whole[cut:]
    assert list(records(out, "test")) == list(records(cifar10, "test"))


def test_validation_keeps_the_superclasses(convert: Tools, cifar100: Path, out: Path) -> None:
    assert convert(cifar100.parent / "source", "--validation", 2).rc == 0
    whole = list(records(cifar100, "train"))
    assert list(records(out, "train")) == whole[:3]
    assert list(records(out, "validation")) == whole[3:]


@pytest.mark.parametrize(("file", "there"), [("", 11), ("test_batch.bin", 0)])
def test_validation_leaves_some_to_train_on(
    convert: Tools, folder: Path, file: str, there: int
) -> None:
    write_cifar10(folder, FILES10)
    ran = convert(folder / file, "--validation", 11)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: --validation: 11 of {there} training images; leave some to train on\n",
    )


# What is refused


def refused_sources(folder: Path) -> dict[str, tuple[Path, str]]:
    """By name: what is given, and the line that refuses it."""
    folder.mkdir()

    def file(name: str, data: bytes) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    one_more = file("one_more.bin", binary([(1,), (2,), (3,)]) + b"\0")
    fine = file("fine.bin", binary([(9, 12), (19, 99)]))
    high = file("high.bin", binary([(9,), (10,)]))
    empty = file("empty.bin", b"")
    pickled = pickle.dumps({b"labels": [1, 2, 3], b"data": bytes(9216)}, protocol=2)
    (python := folder / "python").mkdir()
    (python / "data_batch_1").write_bytes(pickled)
    (python / "batches.meta").write_bytes(pickled)
    archived = io.BytesIO()
    with tarfile.open(fileobj=archived, mode="w:gz") as archive:
        archive.add(high, "cifar-10-batches-bin/data_batch_1.bin")
    packed = file("cifar-10-binary.tar.gz", archived.getvalue())
    pickled_bin = file("data_batch_1.bin", pickled)
    return {
        "three records and a byte": (
            one_more,
            f"error: INPUT: {one_more}: 9220 bytes are not whole records of 3073: 1 byte left "
            "over; the file is cut short or damaged, get it again",
        ),
        "a label above the last": (
            high,
            f"error: INPUT: {high}:record 1:byte 3073: label 10, the last of CIFAR-10 is 9; the "
            "file is damaged or of another set, get it again",
        ),
        "CIFAR-100 as CIFAR-10": (
            fine,
            f"error: INPUT: {fine}: it looks like CIFAR-100, not CIFAR-10; pass --dataset cifar100",
        ),
        "an empty file": (empty, f"error: INPUT: {empty}: the file is empty; get it again"),
        "a folder of the Python version": (
            python,
            f"error: INPUT: {python / 'data_batch_1'}: a Python pickle, not the binary version; "
            "get the binary version",
        ),
        "a file of the Python version with the ending of the binary one": (
            pickled_bin,
            f"error: INPUT: {pickled_bin}: a Python pickle, not the binary version; get the "
            "binary version",
        ),
        "an archive": (
            packed,
            f"error: INPUT: {packed}: a gzip archive, not the binary version; unpack it and pass "
            "the folder",
        ),
        "nothing": (
            folder / "absent",
            f"error: INPUT: {folder / 'absent'}: no such file; check the path",
        ),
    }


@pytest.mark.parametrize(
    "name",
    [
        "three records and a byte", "a label above the last", "CIFAR-100 as CIFAR-10",
        "an empty file", "a folder of the Python version",
        "a file of the Python version with the ending of the binary one", "an archive", "nothing",
    ],
)  # fmt: skip
def test_a_source_that_is_no_binary_file_is_one_line_and_leaves_no_output(
    convert: Tools, folder: Path, out: Path, name: str
) -> None:
    source, line = refused_sources(folder)[name]
    ran = convert(source, "--dataset", "cifar10")
    assert (ran.rc, ran.stderr) == (3, line + "\n")
    assert not out.exists()


def test_one_damaged_file_of_several_is_named_and_leaves_no_output(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_cifar10(folder, FILES10)
    damaged = folder / "data_batch_2.bin"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    ran = convert(folder)
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {damaged}: 12287 bytes are not whole records of 3073: 3068 bytes left "
        "over; the file is cut short or damaged, get it again\n",
    )
    assert not out.exists()


def test_a_file_that_is_given_twice_is_config(convert: Tools, folder: Path, out: Path) -> None:
    path = write_cifar10(folder, {"data_batch_1.bin": [1]}) / "data_batch_1.bin"
    ran = convert(path, folder / "." / path.name)
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: {path}: it is given twice; pass each file once\n"
    )  # fmt: skip
    assert not out.exists()


def test_files_of_both_sets_together_are_refused(convert: Tools, folder: Path, out: Path) -> None:
    write_cifar10(folder, {"a.bin": [1, 2]})
    write_cifar100(folder, {"b.bin": [(1, 2)]})
    ran = convert(folder / "a.bin", folder / "b.bin")
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {folder / 'b.bin'}: it looks like CIFAR-100, not CIFAR-10; "
        "pass --dataset cifar100\n",
    )


def test_another_number_of_names_is_refused(convert: Tools, folder: Path, out: Path) -> None:
    write_cifar10(folder, FILES10)
    (folder / "batches.meta.txt").write_text("\n".join(CLASSES10[:9]) + "\n")
    ran = convert(folder)
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {folder / 'batches.meta.txt'}: 9 names for 10 classes; "
        "get the file again\n",
    )
    assert not out.exists()


FLAGS = {
    ("--shards", "0"): "--shards is 0; it must be at least 1",
    ("--workers", "0"): "--workers is 0; it must be at least 1",
    ("--validation", "-1"): "--validation is -1; it must not be negative",
}


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_a_flag_out_of_range_is_config(
    convert: Tools, folder: Path, flags: tuple[str, str]
) -> None:
    ran = convert(write_cifar10(folder, FILES10), *flags)
    assert ran.rc == 2
    assert ran.stderr.startswith("error: CONFIG: command line: ")
    assert FLAGS[flags] in ran.stderr


@pytest.mark.parametrize("given", [0, 1])
def test_a_source_without_an_output_is_config(data_tools: Tools, folder: Path, given: int) -> None:
    ran = data_tools("cifar-to-tfrecord", *[write_cifar10(folder, FILES10)][:given], "--shards", 2)
    assert (ran.rc, ran.stderr) == (
        2,
        "error: CONFIG: command line: SRC and OUT are both needed; "
        "see data_tools cifar-to-tfrecord --help\n",
    )


@pytest.mark.parametrize("sources", [1, 2])
def test_flags_stand_before_between_or_after_the_paths(
    data_tools: Tools, folder: Path, tmp_path: Path, sources: int
) -> None:
    write_cifar10(folder, FILES10)
    paths = [folder] if sources == 1 else [folder / name for name in list(FILES10)[:2]]
    flags = ("--shards", 1)
    made = []
    for order in ("before", "between", "after", "around"):
        out = tmp_path / order
        words = {
            "before": (*flags, *paths, out),
            "between": (*paths, *flags, out),
            "after": (*paths, out, *flags),
            "around": ("--overwrite", *paths, out, *flags),
        }[order]
        ran = data_tools("cifar-to-tfrecord", *words)
        assert (ran.rc, ran.stderr) == (0, "")
        made.append(files_of(out))
    assert made == [made[0]] * 4


# Where it is written


def test_an_output_that_is_there_is_kept_without_overwrite(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_cifar10(folder, FILES10)
    assert convert(folder).rc == 0
    ran = convert(folder, "--shards", 1)  # `convert` compares the folder before and after
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {out}: it exists already; choose another folder or pass --overwrite\n",
    )


def test_overwrite_replaces_the_whole_data_set(
    convert: Tools, folder: Path, cifar100: Path, out: Path
) -> None:
    assert convert(write_cifar10(folder, FILES10)).rc == 0
    assert convert(cifar100.parent / "source", "--shards", 2, "--overwrite").rc == 0
    assert files_of(out) == files_of(cifar100)


def test_a_failing_overwrite_keeps_the_old_data_set(
    convert: Tools, folder: Path, tmp_path: Path
) -> None:
    write_cifar10(folder, FILES10)
    assert convert(folder).rc == 0
    (folder / "test_batch.bin").write_bytes(b"cut")
    assert convert(folder, "--overwrite").rc == 3  # `convert` compares before and after


def test_overwrite_refuses_a_folder_that_is_no_data_set(
    convert: Tools, folder: Path, out: Path
) -> None:
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    ran = convert(write_cifar10(folder, FILES10), "--overwrite")
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {out}: --overwrite replaces data sets only, and this is none; "
        "choose another folder\n",
    )


@pytest.mark.parametrize("flags", [(), ("--overwrite",)], ids=["plain", "overwrite"])
@pytest.mark.parametrize("inside", ["", "raw", "raw/deep"])
def test_the_output_is_never_the_folder_of_its_own_sources(
    convert: Tools, out: Path, flags: tuple[str, ...], inside: str
) -> None:
    write_cifar10(out / inside, FILES10)
    (out / "manifest.json").write_text("{}")
    for sources in ([out / inside], [out / inside / name for name in FILES10]):
        ran = convert(*sources, *flags)  # `convert` compares the folder before and after
        assert (ran.rc, ran.stderr) == (
            2, f"error: CONFIG: {out}: it holds the source; choose another folder\n",
        )  # fmt: skip


def test_the_output_may_lie_beside_the_files(data_tools: Tools, folder: Path) -> None:
    write_cifar10(folder, FILES10)
    sources = files_of(folder)
    ran = data_tools("cifar-to-tfrecord", folder, folder / "set")
    assert (ran.rc, ran.stderr) == (0, "")
    assert {name: files_of(folder)[name] for name in sources} == sources


# What others read


def test_tensorflow_reads_the_whole_set(tf: ModuleType, cifar10: Path, cifar100: Path) -> None:
    for out, keys in ((cifar10, ["label"]), (cifar100, ["label", "coarse_label"])):
        features = {key: tf.io.FixedLenFeature([], tf.int64) for key in keys}
        features["image"] = tf.io.FixedLenFeature([], tf.string)
        for split, described in manifest.load(out).splits.items():
            files = [str(out / shard.file) for shard in described.shards]
            (batch,) = tf.data.TFRecordDataset(files).batch(99)
            parsed = tf.io.parse_example(batch, features)
            expected = list(records(out, split))
            for key in features:
                assert parsed[key].numpy().tolist() == [row[key] for row in expected]


def test_tfds_reads_the_pixels_and_the_names_of_the_classes(
    tfds: ModuleType, cifar10: Path, cifar100: Path
) -> None:
    for out, names in (
        (cifar10, {"label": CLASSES10}),
        (cifar100, {"label": FINE100, "coarse_label": COARSE100}),
    ):
        builder = tfds.builder_from_directory(str(out))
        assert set(builder.info.features) == {"image", *names}
        for key, own in names.items():
            assert builder.info.features[key].names == list(own)
        config = tfds.ReadConfig(interleave_cycle_length=1)  # the order of the shards
        for split, described in manifest.load(out).splits.items():
            assert builder.info.splits[split].num_examples == described.examples
            theirs = builder.as_dataset(split=split, read_config=config).as_numpy_iterator()
            for their, ours in zip(theirs, records(out, split), strict=True):
                assert (their["image"].dtype, their["image"].shape) == (np.uint8, (32, 32, 3))
                assert their["image"].tobytes() == ours["image"]
                assert [their[key] for key in names] == [ours[key] for key in names]


# verify


@pytest.fixture(params=["cifar10", "cifar100"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a data set that the test may damage."""
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "damaged"))


def shard_of(out: Path, index: int = 1) -> Path:
    return out / manifest.load(out).splits["train"].shards[index].file


def resign(out: Path, data: bytes) -> None:
    """Writes a shard with its size and hash in the manifest, so that only its content is wrong."""
    shard_of(out).write_bytes(data)
    path = out / "manifest.json"
    fields = json.loads(path.read_text())
    fields["splits"]["train"]["shards"][1].update(
        bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
    )
    path.write_text(json.dumps(fields))


def reframed(row: dict[str, tfrecord.Values]) -> bytes:
    """The framed record of features that hold one value each."""
    return tfrecord.frame(tfrecord.encode_example({key: own[0] for key, own in row.items()}))


def test_verify_passes_a_whole_set(data_tools: Tools, cifar10: Path, cifar100: Path) -> None:
    for out, counts in ((cifar10, "train 11, test 3"), (cifar100, "train 5, test 2")):
        for flags in ((), ("--deep",)):
            ran = data_tools("verify", out, *flags)
            assert (ran.rc, ran.stdout, ran.stderr) == (0, f"{out}: ok: {counts}\n", "")


def test_verify_names_a_flipped_byte_by_file_record_and_offset(
    data_tools: Tools, damaged: Path
) -> None:
    path = shard_of(damaged)
    start = [offset for offset, _ in tfrecord.read_records(path)][1]
    data = bytearray(path.read_bytes())
    data[start + 1000] ^= 4
    path.write_bytes(data)
    ran = data_tools("verify", damaged)
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {path}:record 1:byte {start}: the checksum of the data is wrong; "
        "get the file again or convert the data set again\n",
    )


def test_verify_names_a_cut_shard(data_tools: Tools, damaged: Path) -> None:
    path = shard_of(damaged)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    ran = data_tools("verify", damaged)
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {path}: {whole - 1} bytes, the manifest says {whole}; "
        "convert the data set again\n",
    )


@pytest.mark.parametrize(
    ("damaged", "key", "count"),
    [("cifar10", "label", 10), ("cifar100", "label", 100), ("cifar100", "coarse_label", 20)],
    indirect=["damaged"],
)
def test_verify_names_a_label_above_the_last_by_record(
    data_tools: Tools, damaged: Path, key: str, count: int
) -> None:
    path = shard_of(damaged)
    rows = [tfrecord.decode_example(record) for _, record in tfrecord.read_records(path)]
    rows[1][key] = [count]
    framed = list(map(reframed, rows))
    resign(damaged, b"".join(framed))
    ran = data_tools("verify", damaged, "--deep")
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {path}:record 1:byte {len(framed[0])}: not a record of this data "
        f"set: {key} {count} of {count} classes; convert the data set again\n",
    )


def test_verify_finds_a_label_that_is_changed_to_another_class(
    data_tools: Tools, damaged: Path
) -> None:
    path = shard_of(damaged)
    rows = [tfrecord.decode_example(record) for _, record in tfrecord.read_records(path)]
    rows[1]["label"] = [(int(rows[1]["label"][0]) + 1) % 10]
    path.write_bytes(b"".join(map(reframed, rows)))
    ran = data_tools("verify", damaged, "--deep")
    assert ran.rc == 4
    assert ran.stderr.startswith(f"error: INTEGRITY: {path}: SHA-256 ")


@pytest.mark.parametrize("change", ["changed", "missing"])
def test_verify_finds_class_names_that_are_not_the_manifests(
    data_tools: Tools, damaged: Path, change: str
) -> None:
    path = damaged / "label.labels.txt"
    path.unlink()
    if change == "changed":
        path.write_text("\n".join(reversed(CLASSES10)) + "\n")
    ran = data_tools("verify", damaged, "--deep")
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {path}: not what the manifest says; convert the data set again\n",
    )


# info


def test_info_counts_each_class_over_all_splits(data_tools: Tools, cifar10: Path) -> None:
    ran = data_tools("info", cifar10)
    assert (ran.rc, ran.stderr) == (0, "")
    length = len(tfrecord.frame(schema.class_record(bytes(3072), 0)))
    counts = [(TRAIN10 + TEST10).count(label) for label in range(10)]
    assert ran.stdout.splitlines() == [
        "cifar10 (classes): images 32x32x3, raw",
        f"  train: 11 examples, 4 shards, {11 * length} bytes",
        f"  test: 3 examples, 3 shards, {3 * length} bytes",
        "  classes: " + " ".join(f"{name}:{n}" for name, n in zip(CLASSES10, counts, strict=True)),
        "  duplicates: none",
    ]


def test_info_json_counts_each_fine_class(data_tools: Tools, cifar100: Path) -> None:
    ran = data_tools("info", cifar100, "--json")
    assert (ran.rc, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    fine = [label for own in FILES100.values() for _, label in own]
    assert told["classes"] == {name: fine.count(n) for n, name in enumerate(FINE100)}
    assert (told["kind"], told["charset"], told["positions"]) == ("classes", None, [])


# The real images


@pytest.fixture(scope="session")
def real(
    test_data: Path, tmp_path_factory: pytest.TempPathFactory, run_cli: RunCli
) -> tuple[Path, Path]:
    """(the unpacked files, the data set) of CIFAR-10."""
    base = tmp_path_factory.mktemp("real_cifar10")
    assert run_cli(["python", test_data / "unpack.py", "cifar10", base]).rc == 0
    source = base / "cifar-10-batches-bin"
    ran = run_cli(["data_tools", "cifar-to-tfrecord", source, base / "set"])
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{base / 'set'}: 60000 images of CIFAR-10: train 50000, test 10000\n"
    return source, base / "set"


@pytest.mark.slow
def test_the_real_set_has_the_images_and_labels_of_its_files(real: tuple[Path, Path]) -> None:
    source, out = real
    found = manifest.load(out)
    assert found.classes == CLASSES10
    for split, files in (
        ("train", [f"data_batch_{number}.bin" for number in range(1, 6)]),
        ("test", ["test_batch.bin"]),
    ):
        rows = np.concatenate(
            [np.fromfile(source / file, np.uint8).reshape(-1, 3073) for file in files]
        )
        examples = open_source(out, found, split, budget=0.0)
        assert len(examples) == found.splits[split].examples == len(rows)
        ids = np.array([0, 1, 9_999, len(rows) // 2, len(rows) - 1])
        batch = examples.gather(ids)
        assert batch.labels[:, 0].tolist() == rows[ids, 0].tolist()
        for image, row in zip(batch.images, rows[ids], strict=True):
            for channel in range(3):
                plane = row[1 + 1024 * channel :][:1024].reshape(32, 32)
                np.testing.assert_array_equal(image[:, :, channel], plane)


@pytest.mark.slow
def test_the_real_set_has_6000_images_of_each_class(
    real: tuple[Path, Path], run_cli: RunCli
) -> None:
    told = json.loads(run_cli(["data_tools", "info", real[1], "--json"]).stdout)
    assert told["classes"] == dict.fromkeys(CLASSES10, 6000)


@pytest.mark.slow
def test_the_real_set_passes_verify(real: tuple[Path, Path], run_cli: RunCli) -> None:
    ran = run_cli(["data_tools", "verify", real[1]])
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{real[1]}: ok: train 50000, test 10000\n"
