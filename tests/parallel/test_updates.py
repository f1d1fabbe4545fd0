"""One update on two ranks that differ: what isn't finite, 16 bits, and local statistics."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SHARES = (7, 3)
TIMELINE = "timeline.json"
# Horovod reads these itself; with a threshold of 0 it fuses nothing.
HOROVOD = {"HOROVOD_FUSION_THRESHOLD": "0"}
FIX = "lower --base-lr; the last checkpoint is kept"

Report = dict[str, Any]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, mpirun: Callable[..., Any]) -> Path:
    folder = tmp_path_factory.mktemp("updates")
    env = {**HOROVOD, "HOROVOD_TIMELINE": str(folder / TIMELINE)}
    script = Path(__file__).parent / "update_ranks.py"
    done = mpirun(2, ["python", script, folder], env=env)
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def reports(out: Path) -> list[Report]:
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


def both(reports: list[Report], part: str) -> Report:
    """What both ranks found alike."""
    first, second = (report[part] for report in reports)
    assert first == second
    return first


# float16: an infinite gradient on rank 1


def test_an_inf_on_rank_1_lets_all_ranks_skip_the_step_and_halve_the_scale(
    reports: list[Report],
) -> None:
    found = both(reports, "float16")
    assert [found[step]["skipped"] for step in ("first", "spoiled", "next")] == [False, True, False]
    assert [found[step]["scale"] for step in ("first", "spoiled", "next")] == [2**15, 2**15, 2**14]
    assert not np.isfinite(found["spoiled"]["norm"])
    assert np.isfinite([found["next"]["norm"], found["next"]["loss"]]).all()
    assert all(found[step]["votes"] == [2.0] for step in ("first", "spoiled", "next"))


def test_a_skipped_step_changes_nothing_but_the_scale(reports: list[Report]) -> None:
    found = both(reports, "float16")
    before, after = found["before"], found["after"]
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"optimizer/loss_scale", "optimizer/loss_scale_finite_steps"}
    assert any("moving_mean" in name for name in before)
    assert before["optimizer/loss_scale_finite_steps"] == 1
    assert found["end"]["optimizer/loss_scale_finite_steps"] == 1
    moved = {name for name in after if after[name] != found["end"][name]}
    assert {name.partition("/")[0] for name in moved} == {"weights", "optimizer", "ema"}


def test_the_scale_is_part_of_a_checkpoint(reports: list[Report]) -> None:
    found = both(reports, "float16")
    assert found["resumed"] == found["next"]
    assert found["resumed_end"] == found["end"]


def test_at_a_scale_of_1_an_inf_is_numeric_and_the_weights_stay(reports: list[Report]) -> None:
    found = both(reports, "float16")
    assert found["at_scale_1"]["fault"] == (
        f"error: NUMERIC: step 5: the gradient's length is nan; {FIX}"
    )
    after = found["after"]
    assert {name: value for name, value in found["kept"].items() if name in after} == {
        **after, "optimizer/loss_scale": 1.0,
    }  # fmt: skip


# float32: NUMERIC names the ranks


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("loss", "the loss is nan, from rank 1"),
        ("gradient", "the gradient's length is nan, from rank 1"),
        ("sum", "the loss is inf, though each rank's own is finite"),
    ],
)
def test_what_is_not_finite_is_told_with_the_rank_that_it_comes_from(
    reports: list[Report], what: str, reason: str
) -> None:
    found = both(reports, "not_finite")[what]
    assert found["fault"] == f"error: NUMERIC: step 5: {reason}; {FIX}"
    assert not found["skipped"]
    assert np.isfinite(found["loss"]) == (what == "gradient")


# Compression


def test_compressed_gradients_differ_by_their_rounding_and_the_rest_not_at_all(
    reports: list[Report],
) -> None:
    plain, compressed = (both(reports, "compressed")[kind] for kind in ("none", "fp16"))
    assert (compressed["loss"], compressed["votes"]) == (plain["loss"], plain["votes"])
    assert compressed["norm"] != plain["norm"]
    assert compressed["norm"] == pytest.approx(plain["norm"], rel=1e-3)
    for name, value in plain["state"].items():
        np.testing.assert_allclose(compressed["state"][name], value, rtol=1e-3, atol=1e-5)
        if "moving" in name:
            assert compressed["state"][name] == value


# Local batch norm


def test_local_moving_statistics_are_the_mean_over_ranks_weighted_by_examples(
    reports: list[Report],
) -> None:
    found = both(reports, "local")
    inputs = np.array(found["inputs"])
    parts = np.split(inputs, [SHARES[0]])
    for name, start, of_part in (("moving_mean", 0.0, np.mean), ("moving_variance", 1.0, np.var)):
        mean = sum(len(part) * of_part(part, axis=0) for part in parts) / len(inputs)
        expected = 0.9 * start + 0.1 * mean
        np.testing.assert_allclose(found["once"][f"weights/norm/{name}"], expected, rtol=1e-4)
        assert found["twice"][f"weights/norm/{name}"] != found["once"][f"weights/norm/{name}"]


# Horovod's own settings


def test_horovods_own_settings_reach_it(out: Path) -> None:
    timeline = (out / TIMELINE).read_text()
    assert "NEGOTIATE_ALLREDUCE" in timeline
    assert "MEMCPY_IN_FUSION_BUFFER" not in timeline
