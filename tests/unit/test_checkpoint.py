"""A checkpoint is whole or not there, and what is read back is what was saved."""

import hashlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_tools.errors import DataError
from hvd_train import checkpoint
from hvd_train.checkpoint import Checkpoint, folder_of, read, restore_newest, save

ROOT = Path(__file__).resolve().parents[2]


def made(step: int, *, size: int = 4) -> Checkpoint:
    rng = np.random.default_rng(step)
    return Checkpoint(
        step=step,
        weights={
            "dense/kernel": rng.normal(size=(size, 3)).astype(np.float32),
            "dense/bias": rng.normal(size=3),
        },
        optimizer={"adam/iteration": np.array(step, np.int64), "adam/empty": np.zeros((0, 2))},
        ema={"dense/kernel": rng.normal(size=(size, 3)), "dense/bias": np.array([np.nan, -0.0])},
        state={"manifest": "abc", "label": {"charset": "AÜ|/"}},
    )


def bits(arrays: dict[str, np.ndarray]) -> dict[str, tuple[Any, ...]]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def same(left: Checkpoint, right: Checkpoint) -> bool:
    groups = (left.weights, left.optimizer, left.ema), (right.weights, right.optimizer, right.ema)
    return left.step == right.step and list(map(bits, groups[0])) == list(map(bits, groups[1]))


def steps_there(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_what_is_read_is_bit_for_bit_what_was_saved(tmp_path: Path) -> None:
    save(tmp_path, made(7), keep=3)
    found = read(folder_of(tmp_path, 7))
    assert same(found, made(7))
    assert (found.state["manifest"], found.state["label"]) == ("abc", {"charset": "AÜ|/"})


def test_a_checkpoint_is_the_folder_of_the_design_readable_by_numpy(tmp_path: Path) -> None:
    folder = save(tmp_path, made(1000), keep=3)
    assert folder == tmp_path / "checkpoints" / "step-00001000"
    assert sorted(path.name for path in folder.iterdir()) == [
        "ema.npz", "optimizer.npz", "state.json", "weights.npz",
    ]  # fmt: skip
    state = json.loads((folder / "state.json").read_text())
    assert state["step"] == 1000
    for name in ("weights", "optimizer", "ema"):
        data = (folder / f"{name}.npz").read_bytes()
        assert state["sha256"][name] == hashlib.sha256(data).hexdigest()
        np.load(folder / f"{name}.npz", allow_pickle=False)


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 4, 30):
        save(tmp_path, made(step), keep=3)
    assert steps_there(tmp_path) == ["step-00000002", "step-00000004", "step-00000030"]


def test_later_ones_that_were_passed_over_go_once_an_earlier_is_saved(tmp_path: Path) -> None:
    for step in (1, 2, 8, 9):
        save(tmp_path, made(step), keep=4)
    save(tmp_path, made(3), keep=4)
    assert steps_there(tmp_path) == ["step-00000001", "step-00000002", "step-00000003"]


def test_the_newest_is_told_by_number_not_by_name(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        save(tmp_path, made(step), keep=3)
    assert restored(tmp_path) == 100_000_000


def test_what_was_just_saved_stays_though_a_damaged_later_one_is_there(tmp_path: Path) -> None:
    for step in (1, 9):
        save(tmp_path, made(step), keep=1)
    (folder_of(tmp_path, 9) / "ema.npz").write_bytes(b"")
    save(tmp_path, made(2), keep=1)
    assert restored(tmp_path) == 2


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    folder = save(tmp_path, made(5), keep=3)
    (folder / "weights.npz").write_bytes(b"damaged")
    save(tmp_path, made(5), keep=3)
    assert same(read(folder), made(5))
    assert steps_there(tmp_path) == ["step-00000005"]


def restored(run: Path) -> int | None:
    skipped: list[str] = []
    found = restore_newest(run, skipped=skipped)
    return None if found is None else found.step


def test_a_run_without_checkpoints_has_none_to_restore(tmp_path: Path) -> None:
    assert restored(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    assert restored(tmp_path) is None


def test_a_folder_that_was_not_finished_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, made(1), keep=3)
    shutil.copytree(folder_of(tmp_path, 1), tmp_path / "checkpoints" / "step-00000002.incomplete")
    (tmp_path / "checkpoints" / "step-notes").mkdir()
    (tmp_path / "checkpoints" / "step-00000003").write_text("a file")
    assert restored(tmp_path) == 1


def test_the_remains_of_an_unfinished_save_are_replaced(tmp_path: Path) -> None:
    remains = tmp_path / "checkpoints" / "step-00000002.incomplete"
    remains.mkdir(parents=True)
    (remains / "stray").write_text("stray")
    folder = save(tmp_path, made(2), keep=3)
    assert steps_there(tmp_path) == ["step-00000002"]
    assert not (folder / "stray").exists()


FILES = ("weights.npz", "optimizer.npz", "ema.npz", "state.json")


@pytest.mark.parametrize("file", FILES)
def test_a_damaged_newest_is_skipped_and_said_so(tmp_path: Path, file: str) -> None:
    for step in (1, 2, 3):
        save(tmp_path, made(step), keep=3)
    for step in (2, 3):
        path = folder_of(tmp_path, step) / file
        data = bytearray(path.read_bytes())
        data[len(data) // 2 :] = b"" if step == 2 else b"\0" * (len(data) - len(data) // 2)
        path.write_bytes(data)
    skipped: list[str] = []
    found = restore_newest(tmp_path, skipped=skipped)
    assert found is not None and same(found, made(1))
    starts = [line.partition(" (")[0] for line in skipped]
    assert starts == [
        f"skipped {folder_of(tmp_path, step)}: the checkpoint is damaged" for step in (3, 2)
    ]


@pytest.mark.parametrize("file", FILES)
def test_a_checkpoint_without_one_of_its_files_is_damaged(tmp_path: Path, file: str) -> None:
    folder = save(tmp_path, made(1), keep=3)
    (folder / file).unlink()
    with pytest.raises(DataError) as caught:
        read(folder)
    start = f"error: INTEGRITY: {folder}: the checkpoint is damaged ("
    assert str(caught.value).startswith(start)


def test_when_none_is_whole_that_is_integrity_and_names_each(tmp_path: Path) -> None:
    for step in (1, 2):
        (save(tmp_path, made(step), keep=3) / "ema.npz").write_bytes(b"damaged")
    with pytest.raises(DataError) as caught:
        restore_newest(tmp_path, skipped=[])
    reason = "the checkpoint is damaged (ema.npz has another SHA-256 than state.json says)"
    assert caught.value.report().splitlines() == [
        f"skipped {folder_of(tmp_path, 2)}: {reason}",
        f"skipped {folder_of(tmp_path, 1)}: {reason}",
        f"error: INTEGRITY: {tmp_path / 'checkpoints'}: no checkpoint is whole; "
        "start a new run with --name, or bring back a copy",
    ]


@pytest.mark.parametrize("file", FILES[:3])
def test_any_flipped_bit_of_the_arrays_is_found(tmp_path: Path, file: str) -> None:
    path = save(tmp_path, made(1), keep=3) / file
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(DataError, match="INTEGRITY"):
            read(path.parent)


def test_a_state_of_another_step_than_its_folder_is_damaged(tmp_path: Path) -> None:
    folder = save(tmp_path, made(10), keep=3)
    path = folder / "state.json"
    path.write_text(path.read_text().replace('"step": 10', '"step": 18'))
    with pytest.raises(DataError, match="INTEGRITY"):
        read(folder)


@pytest.mark.parametrize("state", ["[]", '"x"', "{}", '{"step": 1}', '{"step": 1, "sha256": []}'])
def test_a_state_of_another_form_is_damaged(tmp_path: Path, state: str) -> None:
    folder = save(tmp_path, made(1), keep=3)
    (folder / "state.json").write_text(state)
    with pytest.raises(DataError, match="INTEGRITY"):
        read(folder)


def test_pickled_arrays_are_refused_and_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    folder = save(tmp_path, made(1), keep=3)
    path = folder / "weights.npz"
    np.savez(path, trap=np.array([Trap()], object))
    state = json.loads((folder / "state.json").read_text())
    state["sha256"]["weights"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="INTEGRITY"):
        read(folder)
    assert not (tmp_path / "sprung").exists()


def test_a_full_disk_is_space_and_leaves_the_earlier_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # in place of a full disk
    try:
        with pytest.raises(DataError) as caught:
            save(tmp_path, made(3, size=10_000), keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value) == (
        f"error: SPACE: {folder_of(tmp_path, 3)}: File too large; "
        "free some space or choose another folder"
    )
    assert steps_there(tmp_path) == ["step-00000001", "step-00000002"]
    assert restored(tmp_path) == 2


SAVE_FOREVER = """
import itertools, sys
from pathlib import Path
import numpy as np
from hvd_train.checkpoint import Checkpoint, save
run = Path(sys.argv[1])
arrays = {"w": np.arange(100_000)}
print("ready", flush=True)
for step in itertools.count(1):
    made = Checkpoint(step=step, weights=arrays, optimizer=arrays, ema=arrays, state={})
    save(run, made, keep=2)
"""


@pytest.mark.parametrize("after", [0.11, 0.16, 0.21, 0.26])
def test_a_kill_at_any_moment_leaves_whole_checkpoints_only(tmp_path: Path, after: float) -> None:
    command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while not folder_of(tmp_path, 1).exists():
            time.sleep(0.001)
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
    skipped: list[str] = []
    found = restore_newest(tmp_path, skipped=skipped)
    assert found is not None and found.step >= 1
    assert skipped == []
    assert checkpoint.read(folder_of(tmp_path, found.step)).weights["w"].sum() == 4_999_950_000


def test_any_change_of_the_state_is_damage_and_the_one_before_is_taken(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, made(step), keep=3)
    path = folder_of(tmp_path, 2) / "state.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            same_content = json.loads(damaged) == json.loads(whole)
        except ValueError:
            same_content = False
        assert restored(tmp_path) == (2 if same_content else 1), place


def test_a_run_folder_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file or directory"):
        save(tmp_path / "gone", made(1), keep=3)
    assert not (tmp_path / "gone").exists()
