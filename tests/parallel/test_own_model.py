"""A model of its own class, with dropout: each rank draws its own masks, the same on resume."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from small_runs import metrics

from hvd_train import checkpoint


def test_ranks_drop_out_apart_and_a_resumed_run_is_the_uninterrupted_one(
    sets: Path, tmp_path: Path, mpirun: Callable[..., Any]
) -> None:
    script = Path(__file__).parent / "own_ranks.py"
    done = mpirun(2, ["python", script, sets / "cifar10", tmp_path])
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
    # Once, by the run that shows summaries.
    line = "net is not functional or sequential: no activations in TensorBoard"
    assert done.stdout.splitlines().count(line) == 1
    assert "goes on from step 4" in done.stdout

    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    for report in (first, second):
        assert report["whole"] == report["resumed"]
    assert first["whole"]["evaluated"] == second["whole"]["evaluated"]
    assert first["whole"]["trained"] != second["whole"]["trained"]

    whole, resumed = (
        checkpoint.read(checkpoint.folder_of(tmp_path / run, 8)) for run in ("whole", "resumed")
    )
    assert whole.state["sha256"]["weights"] == resumed.state["sha256"]["weights"]
    assert whole.state["sha256"]["optimizer"] == resumed.state["sha256"]["optimizer"]
    assert whole.state["sha256"]["ema"] == resumed.state["sha256"]["ema"]
    states = {name for name in whole.weights if name.endswith("seed_generator_state")}
    assert len(states) == 2
    assert whole.ema.keys() == whole.weights.keys() - states
    # Two draws a step, one for each micro-batch.
    assert all(np.array_equal(whole.weights[name][1], 16) for name in states)

    names = ("loss", "loss_smoothed", "cross_entropy_smoothed")
    of_whole, of_resumed = (
        [[line[n] for n in names] for line in metrics(tmp_path / run) if line["split"] == "train"]
        for run in ("whole", "resumed")
    )
    assert len(of_whole) == 8
    assert of_whole == of_resumed
