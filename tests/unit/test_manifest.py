import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools import manifest
from data_tools.errors import INTEGRITY, DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest, Shard, Split


def example_manifest(**changes: Any) -> Manifest:
    shards = tuple(
        Shard(
            file=f"captcha-train.tfrecord-{index:05d}-of-00002", examples=3, bytes=5,
            sha256=hashlib.sha256(b"hello").hexdigest(),
        )
        for index in range(2)
    )  # fmt: skip
    whole = Manifest(
        tool="0.1.0",
        name="captcha",
        kind="captcha",
        created_from={"digest": "sha256:00", "arguments": ["--case", "upper"]},
        image=ImageSpec(height=20, width=80, channels=3, encoding="jpeg"),
        label=LabelSpec(charset="ABCé", min_length=4, max_length=4, case="keep"),
        classes=None,
        skipped=("7.jpg: cut",),
        splits={
            "train": Split(examples=6, offsets="offsets-train.npy", shards=shards),
            "test": Split(examples=0, offsets="offsets-test.npy", shards=()),
        },
    )
    return dataclasses.replace(whole, **changes)


def write(folder: Path, data: bytes) -> Path:
    (folder / "manifest.json").write_bytes(data)
    return folder


def write_shards(folder: Path) -> list[Path]:
    paths = [folder / shard.file for shard in example_manifest().splits["train"].shards]
    for path in paths:
        path.write_bytes(b"hello")
    return paths


def test_a_manifest_survives_a_round_trip(tmp_path: Path) -> None:
    for whole in (
        example_manifest(),
        example_manifest(kind="classes", label=None, classes=("cat", "dog")),
    ):
        assert manifest.load(write(tmp_path, manifest.dump(whole))) == whole


def test_the_file_has_the_designed_fields_and_its_format_first() -> None:
    data = manifest.dump(example_manifest())
    fields = json.loads(data)
    assert list(fields) == [
        "format", "tool", "name", "kind", "created_from", "image", "label", "classes", "skipped",
        "splits",
    ]  # fmt: skip
    assert fields["format"] == "hvd-train/1"
    assert list(fields["splits"]) == ["train", "test"]
    assert list(fields["splits"]["train"]["shards"][0]) == ["file", "examples", "bytes", "sha256"]
    assert data.endswith(b"}\n")
    assert "ABCé".encode() in data


def test_equal_manifests_have_equal_bytes_and_their_digest_is_the_files_sha256(
    tmp_path: Path,
) -> None:
    data = manifest.dump(example_manifest())
    assert data == manifest.dump(manifest.parse(data))
    assert manifest.digest(write(tmp_path, data)) == hashlib.sha256(data).hexdigest()


def test_a_folder_without_a_manifest_is_not_a_finished_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        manifest.load(tmp_path)
    assert str(caught.value) == (
        f"error: INPUT: {tmp_path}: no manifest.json, so this is not a finished data set; "
        "convert it again with data_tools"
    )


def test_a_manifest_of_another_format_is_integrity_with_the_format(tmp_path: Path) -> None:
    fields = json.loads(manifest.dump(example_manifest()))
    fields["format"] = "hvd-train/2"
    with pytest.raises(DataError) as caught:
        manifest.load(write(tmp_path, json.dumps(fields).encode()))
    assert str(caught.value) == (
        f"error: INTEGRITY: {tmp_path / 'manifest.json'}: not a manifest of format hvd-train/1 "
        "(format is not hvd-train/1); convert the data set again"
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"7", b"[]", b'"x"', b"{}", b"\xff\xfe", b'{"format": "hvd-train/1"}'],
)
def test_what_is_no_manifest_is_integrity(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError) as caught:
        manifest.load(write(tmp_path, data))
    assert caught.value.kind is INTEGRITY
    assert caught.value.where == str(tmp_path / "manifest.json")


def test_a_manifest_cut_at_any_byte_is_integrity(tmp_path: Path) -> None:
    data = manifest.dump(example_manifest()).rstrip()
    for cut in range(len(data)):
        with pytest.raises(DataError) as caught:
            manifest.load(write(tmp_path, data[:cut]))
        assert caught.value.kind is INTEGRITY


PATHS_TO_FIELDS = [
    ("image",), ("image", "height"), ("label",), ("label", "charset"), ("skipped",), ("splits",),
    ("splits", "train", "examples"), ("splits", "train", "shards"),
    ("splits", "train", "offsets"), ("name",), ("kind",),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS_TO_FIELDS, ids=".".join)
def test_a_missing_field_is_integrity(tmp_path: Path, path: tuple[str, ...]) -> None:
    fields = json.loads(manifest.dump(example_manifest()))
    parent = fields
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    with pytest.raises(DataError) as caught:
        manifest.load(write(tmp_path, json.dumps(fields).encode()))
    assert caught.value.kind is INTEGRITY


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("image", "height"), "20"),
        (("image", "width"), -80),
        (("label", "charset"), 7),
        (("label", "max_length"), None),
        (("splits", "train", "examples"), "six"),
        (("splits", "train", "offsets"), 5),
        (("splits", "train", "shards", 0, "bytes"), 5.5),
        (("splits", "train", "shards", 0, "file"), None),
        (("splits", "train", "shards", 0, "sha256"), 0),
        (("splits",), {}),
        (("skipped",), "abc"),
        (("created_from",), "x"),
        (("created_from",), None),
        (("created_from", "arguments"), "x"),
        (("created_from", "arguments"), [1]),
        (("created_from", "digest"), 1),
    ],
    ids=str,
)
def test_a_field_of_a_wrong_type_or_value_is_integrity(
    tmp_path: Path, path: tuple[str | int, ...], wrong: object
) -> None:
    fields = json.loads(manifest.dump(example_manifest()))
    parent = fields
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = wrong
    with pytest.raises(DataError) as caught:
        manifest.load(write(tmp_path, json.dumps(fields).encode()))
    assert caught.value.kind is INTEGRITY


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/../../outside"])
def test_a_shard_or_offsets_outside_the_folder_is_integrity(tmp_path: Path, name: str) -> None:
    fields = json.loads(manifest.dump(example_manifest()))
    train = fields["splits"]["train"]
    for holder, key in ((train["shards"][0], "file"), (train, "offsets")):
        kept = holder[key]
        holder[key] = name
        with pytest.raises(DataError) as caught:
            manifest.load(write(tmp_path, json.dumps(fields).encode()))
        assert caught.value.kind is INTEGRITY
        holder[key] = kept


@pytest.mark.parametrize("name", ["../x", "/etc/x", "..", ".", "", "a/b", "a\nb", "\x1b[2J", ".x"])
def test_a_name_that_is_no_set_or_split_is_integrity(tmp_path: Path, name: str) -> None:
    fields = json.loads(manifest.dump(example_manifest()))
    splits = {name: fields["splits"]["train"]}
    for changes, what in (({"name": name}, "data set"), ({"splits": splits}, "split")):
        with pytest.raises(DataError) as caught:
            manifest.load(write(tmp_path, json.dumps({**fields, **changes}).encode()))
        assert str(caught.value) == (
            f"error: INTEGRITY: {tmp_path / 'manifest.json'}: not a manifest of format hvd-train/1 "
            f"({name!r} is not the name of a {what}); convert the data set again"
        )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["image", "label", "classes", "skipped", "splits", "tool"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_parsed_or_one_integrity_line(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    if isinstance(value, dict):
        value["format"] = "hvd-train/1"
    with pytest.raises(DataError) as caught:
        manifest.load(write(tmp_path_factory.getbasetemp(), json.dumps(value).encode()))
    assert caught.value.kind is INTEGRITY


def test_a_split_is_found_by_name_and_an_unknown_one_is_told_which_there_are(
    tmp_path: Path,
) -> None:
    whole = example_manifest()
    assert whole.split("train", tmp_path) is whole.splits["train"]
    with pytest.raises(DataError) as caught:
        whole.split("validation", tmp_path)
    assert str(caught.value) == (
        f"error: CONFIG: {tmp_path}: no split 'validation'; the splits are train, test"
    )


def test_the_bytes_of_a_split_are_those_of_its_shards() -> None:
    assert example_manifest().splits["train"].bytes == 10
    assert example_manifest().splits["test"].bytes == 0


def test_right_sizes_and_hashes_pass(tmp_path: Path) -> None:
    write_shards(tmp_path)
    train = example_manifest().splits["train"]
    manifest.check_sizes(tmp_path, train)
    for shard in train.shards:
        manifest.check_hash(tmp_path, shard)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    second = write_shards(tmp_path)[1]
    second.unlink()
    with pytest.raises(DataError) as caught:
        manifest.check_sizes(tmp_path, example_manifest().splits["train"])
    assert str(caught.value) == (
        f"error: INTEGRITY: {second}: the shard is missing; convert the data set again"
    )


@pytest.mark.parametrize("data", [b"hell", b"hello!"])
def test_a_cut_or_grown_shard_is_named_with_both_sizes(tmp_path: Path, data: bytes) -> None:
    second = write_shards(tmp_path)[1]
    second.write_bytes(data)
    with pytest.raises(DataError) as caught:
        manifest.check_sizes(tmp_path, example_manifest().splits["train"])
    assert str(caught.value) == (
        f"error: INTEGRITY: {second}: {len(data)} bytes, the manifest says 5; "
        "convert the data set again"
    )


def test_offsets_that_may_not_be_read_are_input_and_not_damage(tmp_path: Path) -> None:
    path = tmp_path / "offsets.npy"
    np.save(path, np.zeros(2, np.int64))
    path.chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        with pytest.raises(DataError) as caught:
            manifest.load_offsets(path)
    finally:
        os.seteuid(user)
    assert str(caught.value) == (
        f"error: INPUT: {path}: Permission denied; check that the path exists and its permissions"
    )


def test_a_changed_shard_of_the_right_size_is_found_by_its_hash(tmp_path: Path) -> None:
    first = write_shards(tmp_path)[0]
    first.write_bytes(b"jello")
    with pytest.raises(DataError) as caught:
        manifest.check_hash(tmp_path, example_manifest().splits["train"].shards[0])
    actual = hashlib.sha256(b"jello").hexdigest()[:12]
    expected = hashlib.sha256(b"hello").hexdigest()[:12]
    assert str(caught.value) == (
        f"error: INTEGRITY: {first}: SHA-256 {actual}..., the manifest says {expected}...; "
        "run data_tools verify to find the record, then convert the data set again"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "captchb"}, "kind 'captchb' doesn't suit the labels"),
        ({"kind": "classes"}, "kind 'classes' doesn't suit the labels"),
        ({"label": None}, "kind 'captcha' doesn't suit the labels"),
        ({"classes": ("cat",)}, "kind 'captcha' doesn't suit the labels"),
    ],
)
def test_labels_that_do_not_suit_the_kind_are_integrity(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError) as caught:
        manifest.load(write(tmp_path, manifest.dump(example_manifest(**changes))))
    assert str(caught.value) == (
        f"error: INTEGRITY: {tmp_path / 'manifest.json'}: not a manifest of format hvd-train/1 "
        f"({reason}); convert the data set again"
    )


@pytest.mark.parametrize(("old", "new"), [("keep", "keeq"), ("jpeg", "jpeh")])
def test_a_value_outside_its_list_is_integrity(tmp_path: Path, old: str, new: str) -> None:
    data = manifest.dump(example_manifest()).replace(f'"{old}"'.encode(), f'"{new}"'.encode())
    with pytest.raises(DataError, match=f"unknown (case|encoding) '{new}'"):
        manifest.load(write(tmp_path, data))


def test_endless_nesting_is_integrity(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a manifest"):
        manifest.load(write(tmp_path, b"[" * 100_000))


def test_images_without_pixels_are_integrity(tmp_path: Path) -> None:
    flat = dataclasses.replace(example_manifest().image, height=0)
    with pytest.raises(DataError, match="an image without pixels"):
        manifest.load(write(tmp_path, manifest.dump(example_manifest(image=flat))))
