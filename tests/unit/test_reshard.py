"""`data_tools reshard` of data sets, and its flags."""

import json
import shutil
from pathlib import Path

import pytest
from small_captchas import files_of, read_set, write_captchas
from small_records import CLASSES, COURSE, KEYS, Tools, made, refused, write

from data_tools import manifest


@pytest.fixture(scope="module")
def own(data_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of captchas."""
    base = tmp_path_factory.mktemp("own")
    csv = write_captchas(base / "images", [f"{index * 37 % 10000:04d}" for index in range(50)])
    ran = data_tools("captcha-to-tfrecord", base / "images", csv, base / "set", "--name", "mine")
    assert ran.rc == 0, ran.stderr
    return base / "set"


# A data set


@pytest.mark.parametrize("shards", [1, 3, 7, 100])
def test_only_the_borders_of_the_shards_change(
    data_tools: Tools, own: Path, out: Path, shards: int
) -> None:
    ran = data_tools("reshard", own, out, "--shards", shards)
    old, new = manifest.load(own), manifest.load(out)
    train, test = (split.examples for split in old.splits.values())
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout == f"{out}: 50 examples (captcha): train {train}, test {test}\n"
    assert data_tools("verify", out, "--deep").rc == 0
    assert read_set(out) == read_set(own)
    for name, split in new.splits.items():
        assert len(split.shards) == min(shards, old.splits[name].examples)
        sizes = [shard.examples for shard in split.shards]
        assert max(sizes) - min(sizes) <= 1
    assert (new.image, new.label, new.name) == (old.image, old.label, "mine")
    assert new.created_from["digest"] == old.created_from["digest"]
    assert f"--shards={shards}" in new.created_from["arguments"]


def test_resharding_there_and_back_gives_equal_bytes(
    data_tools: Tools, own: Path, tmp_path: Path
) -> None:
    for name, source, shards in (("a", own, 4), ("b", tmp_path / "a", 9), ("c", tmp_path / "b", 4)):
        made(data_tools, source, tmp_path / name, "--shards", shards)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "c")


def test_a_set_of_classes_keeps_their_names(data_tools: Tools, tmp_path: Path, out: Path) -> None:
    made(data_tools, write(tmp_path / "file", CLASSES), tmp_path / "one", *KEYS)
    made(data_tools, tmp_path / "one", out, "--shards", 2, "--name", "other")
    assert read_set(out) == read_set(tmp_path / "one")
    assert manifest.load(out).classes == ("0", "1", "2")
    assert manifest.load(out).name == "other"
    assert (out / "other-train.tfrecord-00001-of-00002").exists()


def test_a_damaged_set_is_integrity_and_nothing_is_written(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path
) -> None:
    source = Path(shutil.copytree(own, tmp_path / "source"))
    path = source / manifest.load(source).splits["train"].shards[1].file
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    ran = refused(data_tools, out, source, out)
    assert ran.rc == 4
    assert ran.error.startswith(f"error: INTEGRITY: {path}: SHA-256 ")
    path.write_bytes(data[:-1])
    ran = refused(data_tools, out, source, out)
    assert ran.stderr == (
        f"error: INTEGRITY: {path}: {len(data) - 1} bytes, the manifest says {len(data)}; "
        "convert the data set again\n"
    )


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("change", [1, -1])
def test_a_count_that_is_wrong_in_the_manifest_is_integrity(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path, which: int, change: int
) -> None:
    source = Path(shutil.copytree(own, tmp_path / "source"))
    fields = json.loads((source / "manifest.json").read_text())
    shard = fields["splits"]["train"]["shards"][which]
    shard["examples"] += change
    fields["splits"]["train"]["examples"] += change
    (source / "manifest.json").write_text(json.dumps(fields))
    ran = refused(data_tools, out, source, out)
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {source / shard['file']}: {shard['examples'] - change} records, the "
        f"manifest says {shard['examples']}; convert the data set again\n",
    )


@pytest.mark.parametrize(
    "flags",
    [("--charset", "upper"), ("--shape", "2x2x3"), ("--image-key", "a"), ("--label-key", "a"),
     ("--split", "train=1"), ("--split-files", "a=b"), ("--resize", "4x4"), ("--pad", "9x9"),
     ("--image-encoding", "raw"), ("--transcode",), ("--classes", "a"), ("--skip-bad",)],
    ids=lambda flags: flags[0],
)  # fmt: skip
def test_a_flag_of_files_is_refused_with_a_data_set(
    data_tools: Tools, own: Path, out: Path, flags: tuple[str, ...]
) -> None:
    ran = refused(data_tools, out, own, out, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {flags[0]}: it is for TFRecord files; a data set keeps what it "
        "holds; leave it out\n",
    )


def test_a_set_is_never_replaced_by_itself_or_unasked(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path
) -> None:
    source = Path(shutil.copytree(own, tmp_path / "source"))
    before = files_of(source)
    ran = data_tools("reshard", source, source, "--overwrite")
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: {source}: it holds the source; choose another folder\n"
    )  # fmt: skip
    assert files_of(source) == before
    made(data_tools, source, out)
    ran = data_tools("reshard", source, out, "--shards", 1)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: {out}: it exists already; choose another folder or pass --overwrite\n",
    )
    made(data_tools, source, out, "--shards", 1, "--overwrite")
    assert len(manifest.load(out).splits["train"].shards) == 1


UNCLEAR = [
    (), ("--shape", "2x2x3"), ("--charset", "upper"), ("--image-key", "image"),
    ("--label-key", "label"), (*KEYS, "--charset", "upper"),
    ("--image-key", "image", *COURSE), ("--label-key", "label", "--shape", "2x2x3"),
]  # fmt: skip


@pytest.mark.parametrize("flags", UNCLEAR, ids=" ".join)
def test_flags_that_do_not_say_what_files_hold_are_config(
    data_tools: Tools, tmp_path: Path, out: Path, flags: tuple[str, ...]
) -> None:
    file = write(tmp_path / "file", CLASSES)
    ran = refused(data_tools, out, file, out, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        "error: CONFIG: command line: the flags don't say what the TFRecord files hold; pass "
        "--charset and --shape, for the course's layout, or --image-key and --label-key\n",
    )


REFUSED_FLAGS = {
    ("--shards", "0"): "--shards is 0; it must be at least 1",
    ("--name", "a/b"): "--name is 'a/b'; it may hold letters, digits, ., - and _",
    ("--shape", "20x80"): "--shape is '20x80'; write it like 20x80x3, of grey 20x80x1",
    ("--shape", "0x80x3"): "--shape is '0x80x3'; write it like 20x80x3, of grey 20x80x1",
    ("--charset", "AA"): "--charset is 'AA'; it names a character twice",
    ("--image-key", "a\udcff"): "--image-key is 'a\\udcff'; not all of it can be printed",
    ("--resize", "4"): "--resize is '4'; write width and height like 80x20",
    ("--split", "a=1", "--split-files", "a=b"): "--split and --split-files are both given; "
    "give one",
}


@pytest.mark.parametrize("flags", REFUSED_FLAGS, ids=" ".join)
def test_a_flag_that_makes_no_sense_is_config(
    data_tools: Tools, tmp_path: Path, out: Path, flags: tuple[str, ...]
) -> None:
    ran = refused(data_tools, out, tmp_path / "file", out, *flags)
    assert (ran.rc, ran.stderr) == (
        2,
        f"error: CONFIG: command line: {REFUSED_FLAGS[flags]}; see data_tools reshard --help\n",
    )


def test_sources_that_are_not_there_or_mixed_are_named(
    data_tools: Tools, own: Path, tmp_path: Path, out: Path
) -> None:
    file = write(tmp_path / "file", CLASSES)
    for sources, rc, message in (
        ([tmp_path / "no"], 3, f"INPUT: {tmp_path / 'no'}: no such file or folder; check the path"),
        (["/dev/null"], 3, "INPUT: /dev/null: neither a file nor a folder; check the path"),
        ([file, tmp_path / "." / "file"], 2,
         f"CONFIG: {file}: it is given twice; pass each file once"),
        ([file, own], 2, f"CONFIG: {own}: a folder beside other sources; "
         "pass one folder, or files only"),
        ([], 2, "CONFIG: command line: SRC and OUT are both needed; "
         "see data_tools reshard --help"),
    ):  # fmt: skip
        ran = refused(data_tools, out, *sources, out, *KEYS)
        assert (ran.rc, ran.stderr) == (rc, f"error: {message}\n")
