"""What the writer makes of records: offsets as a stream, and one step from an old set to a new."""

import errno
import io
import signal
from pathlib import Path

import numpy as np
import pytest

from data_tools import durable, manifest, tfrecord, whole_folder, writer
from data_tools.errors import CONFIG, DataError
from data_tools.whole_folder import MARK
from data_tools.writer import ShardWriter, atomic_folder, finish_split


def write_shard(path: Path, records: list[bytes]) -> writer.WrittenShard:
    with ShardWriter(path) as shard:
        for record in records:
            shard.write(record)
        return shard.close()


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
@pytest.mark.parametrize("shards", [[], [3], [2, 1, 4]])
def test_the_offsets_are_the_bytes_of_np_save_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: list[int], block: int
) -> None:
    monkeypatch.setattr(writer, "_LENGTHS_A_BLOCK", block)
    records = [[bytes(7 * i + j) for j in range(n)] for i, n in enumerate(shards)]
    written = [write_shard(tmp_path / f"c{i}", own) for i, own in enumerate(records)]
    split = finish_split(tmp_path, "set", "train", written)
    lengths = [len(tfrecord.frame(record)) for own in records for record in own]
    expected = io.BytesIO()
    np.save(expected, np.cumsum([0, *lengths], dtype=np.int64))
    assert (tmp_path / "offsets-train.npy").read_bytes() == expected.getvalue()
    assert split.examples == len(lengths)
    assert split.bytes == sum(lengths)
    names = {"offsets-train.npy", *(shard.file for shard in split.shards)}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_shard_of_many_rows_has_the_lengths_of_each(tmp_path: Path) -> None:
    rows = np.arange(5 * 8, dtype=np.uint8).reshape(5, 8)
    with ShardWriter(tmp_path / "c") as shard:
        shard.write_rows(tfrecord.frame_rows(rows))
        shard.write(b"last")
        written = shard.close()
    finish_split(tmp_path, "set", "train", [written])
    offsets = manifest.load_offsets(tmp_path / "offsets-train.npy")
    assert np.diff(offsets).tolist() == [24] * 5 + [20]


def test_two_folders_change_places(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in {name}").touch()
    assert durable.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "in b").exists()
    assert (tmp_path / "b" / "in a").exists()
    assert not durable.exchange(tmp_path / "a", tmp_path / "not there")
    assert (tmp_path / "a" / "in b").exists()


def write_set(out: Path, text: str) -> None:
    with atomic_folder(out, overwrite=True) as folder:
        (folder / manifest.FILE_NAME).write_text(text)


def test_a_set_is_replaced_where_the_file_system_cannot_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    write_set(out, "old")
    monkeypatch.setattr(whole_folder, "exchange", lambda *_: False)
    write_set(out, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert {path.name: path.read_text() for path in out.iterdir()} == {"manifest.json": "new"}


def test_an_interrupt_between_the_renames_without_exchange_comes_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    write_set(out, "old")
    monkeypatch.setattr(whole_folder, "exchange", lambda *_: False)
    rename = Path.rename

    def interrupted_rename(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if self == out:
            signal.raise_signal(signal.SIGINT)
        return renamed

    monkeypatch.setattr(Path, "rename", interrupted_rename)
    with pytest.raises(KeyboardInterrupt):
        write_set(out, "new")
    assert {path.name: path.read_text() for path in out.iterdir()} == {"manifest.json": "new"}


def test_a_set_that_cannot_be_put_in_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    write_set(out, "old")
    monkeypatch.setattr(whole_folder, "exchange", lambda *_: False)
    rename = Path.rename

    def refused_rename(self: Path, target: Path) -> Path:
        if self.name == "set.incomplete":
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused_rename)
    with pytest.raises(DataError, match="Input/output error"):
        write_set(out, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert {path.name: path.read_text() for path in out.iterdir()} == {"manifest.json": "old"}


def test_a_link_to_nothing_is_no_target(tmp_path: Path) -> None:
    out = tmp_path / "set"
    out.symlink_to("nothing")
    with pytest.raises(DataError) as caught:
        writer.check_target(out, overwrite=True)
    assert str(caught.value) == (
        f"error: CONFIG: {out}: it is a link to nothing; choose another folder"
    )


def test_a_link_to_a_set_is_replaced_and_the_set_stays(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept", tmp_path / "set"
    write_set(kept, "old")
    out.symlink_to(kept)
    write_set(out, "new")
    assert not out.is_symlink()
    assert (out / manifest.FILE_NAME).read_text() == "new"
    assert {path.name: path.read_text() for path in kept.iterdir()} == {"manifest.json": "old"}
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "set"}


def test_no_other_run_may_touch_the_old_set_while_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    write_set(out, "old")
    settle, refused = whole_folder._settle, []

    def settle_while_another_starts(target: Path) -> None:
        with pytest.raises(DataError) as caught:
            write_set(out, "another")
        refused.append(str(caught.value))
        settle(target)

    monkeypatch.setattr(whole_folder, "_settle", settle_while_another_starts)
    write_set(out, "new")
    assert refused == [
        f"error: {CONFIG.name}: {out}.incomplete: another process is writing it; wait for it to end"
    ]
    assert (out / manifest.FILE_NAME).read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_run_killed_while_the_old_set_is_removed_leaves_what_the_next_run_clears(
    tmp_path: Path,
) -> None:
    out, unfinished = tmp_path / "set", tmp_path / "set.incomplete"
    write_set(out, "new")
    write_set(unfinished, "old")
    for folder in (out, unfinished):
        (folder / MARK).touch()
    write_set(out, "newest")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert {path.name for path in out.iterdir()} == {"manifest.json"}


def test_a_failed_shard_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    def records():  # type: ignore[no-untyped-def]
        yield "train", b"a"
        yield "test", b"b"
        raise KeyError("no more")

    with pytest.raises(KeyError) as caught:
        writer.write_chunk(tmp_path, 0, records())
    assert len(list(Path("/proc/self/fd").iterdir())) == before, caught
