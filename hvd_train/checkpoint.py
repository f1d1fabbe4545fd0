"""Checkpoints: whole or not there, verified before use, readable with NumPy alone.

A checkpoint is a folder step-00001000/ with weights.npz, optimizer.npz, ema.npz and state.json,
which holds the step and the SHA-256 of each file and of itself. It is written under a temporary
name, flushed to the disk and renamed, so a crash at any moment leaves the one before it.
"""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.durable import remove_folder, replace_folder, write_synced
from data_tools.errors import INTEGRITY, DataError, os_errors

FOLDER = "checkpoints"
ARRAYS = ("weights", "optimizer", "ema")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after `step` updates; arrays by variable name."""

    step: int
    weights: Arrays
    optimizer: Arrays
    ema: Arrays
    state: dict[str, Any]


def folder_of(run: Path, step: int) -> Path:
    """The checkpoint's folder after `step` updates."""
    return run / FOLDER / f"step-{step:08d}"


def save(run: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes a checkpoint, then removes all but the newest `keep` up to it.

    Args:
        run: the run folder.
        checkpoint: what to write; `state` gets the step and the hashes.
        keep: how many checkpoints stay.

    Raises:
        DataError: SPACE or INPUT when the disk refuses; earlier checkpoints stay as they are.
    """
    target = folder_of(run, checkpoint.step)
    temporary = target.with_name(target.name + ".incomplete")
    with os_errors(target):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            target.parent.mkdir(exist_ok=True)
            temporary.mkdir()
            hashes = {name: _write_arrays(temporary, checkpoint, name) for name in ARRAYS}
            state = {**checkpoint.state, "step": checkpoint.step, "sha256": hashes}
            state["sha256"]["state"] = _hash_of_state(state)
            write_synced(temporary / "state.json", json.dumps(state, indent=1).encode())
            replace_folder(temporary, target)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    steps = saved_steps(run)
    # Later ones were damaged or passed over, or the run would have gone on from there.
    kept = [step for step in steps if step <= checkpoint.step][-keep:]
    for step in set(steps) - set(kept):
        remove_folder(folder_of(run, step))
    return target


def restore_newest(run: Path, *, skipped: list[str]) -> Checkpoint | None:
    """Reads the newest checkpoint that verifies.

    Args:
        run: the run folder.
        skipped: gets a line for each damaged checkpoint that was passed over.

    Returns:
        The checkpoint, or None when the run has none yet.

    Raises:
        DataError: INTEGRITY when there are checkpoints but none is whole.
    """
    steps = saved_steps(run)
    for step in reversed(steps):
        try:
            return read(folder_of(run, step))
        except DataError as error:
            skipped.append(f"skipped {error.where}: {error.reason}")
    if steps:
        raise DataError(
            INTEGRITY, run / FOLDER, "no checkpoint is whole",
            fix="start a new run with --name, or bring back a copy", faults=skipped,
        )  # fmt: skip
    return None


def read(folder: Path) -> Checkpoint:
    """Reads and verifies one checkpoint.

    Raises:
        DataError: INTEGRITY when a file is missing or its SHA-256 differs.
        OSError: when the disk doesn't give it, which says nothing of what is there.
    """
    try:
        state = json.loads((folder / "state.json").read_bytes())
        if _hash_of_state(state) != state["sha256"]["state"]:
            raise ValueError("state.json is not as it was written")
        arrays = {
            name: _read_arrays(folder / f"{name}.npz", state["sha256"][name]) for name in ARRAYS
        }
        if folder_of(folder.parent.parent, state["step"]) != folder:
            raise ValueError(f"state.json is of step {state['step']}")
        return Checkpoint(step=state["step"], state=state, **arrays)
    except (
        FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        zipfile.BadZipFile,
    ) as error:  # fmt: skip
        raise DataError(
            INTEGRITY, folder, f"the checkpoint is damaged ({error})", fix="use an older one"
        ) from error


def _hash_of_state(state: dict[str, Any]) -> str:
    """SHA-256 of all that state.json says, but for this hash itself."""
    hashes = {name: sha256 for name, sha256 in state["sha256"].items() if name != "state"}
    rest = {**state, "sha256": hashes}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def saved_steps(run: Path) -> list[int]:
    """The steps that have a checkpoint under its final name, oldest first."""
    names = [path.name for path in (run / FOLDER).glob("step-*") if path.is_dir()]
    return sorted(int(name[5:]) for name in names if name[5:].isdigit())


def _write_arrays(folder: Path, checkpoint: Checkpoint, name: str) -> str:
    arrays: Mapping[str, np.ndarray] = getattr(checkpoint, name)
    # Variable names hold slashes, which would be folders inside the archive.
    safe: dict[str, Any] = {key.replace("/", "|"): value for key, value in arrays.items()}
    archive = io.BytesIO()
    np.savez(archive, **safe)
    write_synced(folder / f"{name}.npz", archive.getvalue())
    return hashlib.sha256(archive.getvalue()).hexdigest()


def _read_arrays(path: Path, sha256: str) -> Arrays:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ValueError(f"{path.name} has another SHA-256 than state.json says")
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return {key.replace("|", "/"): archive[key] for key in archive.files}
