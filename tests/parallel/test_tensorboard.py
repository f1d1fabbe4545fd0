"""What two ranks show of a run: one event file with the numbers of metrics.jsonl, and a trace."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from small_runs import TEST, TRAIN, metrics
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from data_tools import manifest
from hvd_train.data import augment, sharding
from hvd_train.data.source import open_source
from hvd_train.summaries import to_pixels

BATCH, STEPS, EVERY, SAVED = 10, 12, 4, 6
PROFILED = [3, 4]


@dataclass(frozen=True, slots=True)
class Shown:
    """What a run on two ranks left, and what it left after steps 6 to 11 were done again."""

    run: Path
    output: str
    events: list[Path]
    scalars: dict[str, list[tuple[int, float]]]
    tensors: dict[str, list[tuple[int, np.ndarray]]]
    again: dict[str, list[int]]

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "eval.json").read_text())
        return found


def read(run: Path) -> tuple[EventAccumulator, list[str]]:
    """What TensorBoard reads of a run, and its tags but for the graph's."""
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    return shown, [tag for tag in shown.Tags()["tensors"] if tag != "__run_graph__"]


@pytest.fixture(scope="module")
def shown(
    sets: Path,
    tmp_path_factory: pytest.TempPathFactory,
    mpirun: Callable[..., Any],
    run_cli: Callable[..., Any],
) -> Shown:
    runs = tmp_path_factory.mktemp("runs")
    run = runs / "shown"
    command = [
        "python", "hvd_train/cifar.py", "--data", sets / "cifar10", "--runs-dir", runs,
        "--name", run.name,
    ]  # fmt: skip
    given = [
        "--global-batch", BATCH, "--steps", STEPS, "--log-every", 5, "--summary-every", EVERY,
        "--checkpoint-every", SAVED, "--eval-every", SAVED * BATCH / TRAIN,
    ]  # fmt: skip
    begun = mpirun(2, [*command, *given, "--profile", f"{PROFILED[0]}:{PROFILED[-1] + 1}"])
    assert begun.rc == 0, begun.stderr
    events = sorted((run / "tensorboard").glob("*tfevents*"))
    first, tags = read(run)
    kinds: dict[str, dict[str, Any]] = {"scalars": {}, "tensors": {}}
    for tag in tags:
        plugin = first.SummaryMetadata(tag).plugin_data.plugin_name
        found = [(e.step, make_ndarray(e.tensor_proto)) for e in first.Tensors(tag)]
        kinds["scalars" if plugin == "scalars" else "tensors"][tag] = found
    result = (run / "eval.json").read_text()
    newest = run / "checkpoints" / f"step-{STEPS:08d}"
    newest.rename(runs / "away")
    events[0].rename(events[0].with_name("events.out.tfevents.0000000001.host.1.v2"))
    resumed = run_cli([*command, "--resume"])
    assert resumed.rc == 0, resumed.stderr
    assert f"goes on from step {SAVED}" in resumed.stdout
    second, tags = read(run)
    again = {tag: [e.step for e in second.Tensors(tag)] for tag in tags}
    (run / "eval.json").write_text(result)
    return Shown(run, begun.stdout + begun.stderr, events, again=again, **kinds)


def test_there_is_one_event_file(shown: Shown) -> None:
    assert len(shown.events) == 1


def test_tensorboard_has_the_numbers_of_metrics_jsonl(shown: Shown) -> None:
    expected: dict[str, list[tuple[int, float]]] = {}
    for line in metrics(shown.run):
        step, split = line.pop("step"), line.pop("split")
        line.pop("time")
        for name, value in line.items():
            expected.setdefault(f"{split}/{name}", []).append((step, np.float32(value)))
    names = {
        "loss", "cross_entropy", "weight_penalty", "loss_smoothed", "cross_entropy_smoothed",
        "gradient_norm", "learning_rate", "epoch", "examples_per_sec", "sec_per_batch",
        "input_wait_sec",
    }  # fmt: skip
    assert {f"train/{name}" for name in names} < {*expected}
    first_half = {tag: [v for v in found if v[0] < SAVED] for tag, found in shown.scalars.items()}
    for tag, found in expected.items():
        assert first_half[tag] == [(s, v) for s, v in found if s < SAVED], tag
    assert [step for step, _ in shown.scalars["train/loss"]] == [0, 4, 5, 8, 10]
    assert [step for step, _ in shown.scalars["train/sparsity/relu1"]] == [0, 4, 8]
    assert [step for step, _ in shown.scalars["test/precision_at_1"]] == [SAVED, STEPS]


def test_the_loss_is_the_sum_of_its_parts_and_smoothed_as_the_tutorial_did(shown: Shown) -> None:
    values = {tag: dict(found) for tag, found in shown.scalars.items()}
    for step, loss in values["train/loss"].items():
        parts = values["train/cross_entropy"][step] + values["train/weight_penalty"][step]
        assert loss == pytest.approx(parts, rel=1e-5)
        assert values["train/weight_penalty"][step] > 0
        assert values["train/gradient_norm"][step] > 0
    assert values["train/loss_smoothed"][0] == values["train/loss"][0]
    assert values["train/loss_smoothed"][10] != values["train/loss"][10]


def test_the_images_are_those_of_the_distorted_batch(shown: Shown, sets: Path) -> None:
    data = sets / "cifar10"
    loaded = manifest.load(data)
    train = open_source(data, loaded, "train", budget=2.0**30)
    assert [step for step, _ in shown.tensors["images"]] == [0, EVERY, 2 * EVERY]
    for step, (width, height, *encoded) in shown.tensors["images"]:
        ids, epochs = sharding.global_batch(
            step, size=BATCH, num_examples=TRAIN, seed=0, shuffle=True
        )
        batch = train.gather(ids[:3])
        expected = augment.distort(
            batch.images, ids[:3], epochs[:3], size=24, seed=0, num_examples=TRAIN
        )
        assert (width, height, len(encoded)) == (b"24", b"24", 3)
        for picture, image in zip(encoded, expected, strict=True):
            np.testing.assert_array_equal(tf.io.decode_png(picture).numpy(), to_pixels(image))


def test_histograms_of_each_kind_are_taken_at_each_summary_step(shown: Shown) -> None:
    kinds = Counter(tag.partition("/")[0] for tag in shown.tensors)
    assert kinds == {"images": 1, "activations": 5, "gradients": 10, "weights": 10, "test": 1}
    for tag, found in shown.tensors.items():
        expected = [SAVED, STEPS] if tag == "test/confusion" else [0, EVERY, 2 * EVERY]
        assert [step for step, _ in found] == expected
    weights = dict(shown.tensors["weights/local3/kernel"])
    assert weights[0][:, 2].sum() == weights[8][:, 2].sum() == 2304 * 384


def test_eval_json_tells_the_precision_of_each_class_over_all_ranks(
    shown: Shown, sets: Path
) -> None:
    data = sets / "cifar10"
    loaded = manifest.load(data)
    labels = open_source(data, loaded, "test", budget=2.0**30).gather(np.arange(TEST)).labels
    assert loaded.classes is not None
    by_class = shown.result["accuracy_by_class"]
    counts = Counter(loaded.classes[label] for label in labels[:, 0])
    assert by_class.keys() == counts.keys()
    right = {name: share * counts[name] for name, share in by_class.items()}
    assert all(abs(count - round(count)) < 1e-9 for count in right.values())
    assert round(sum(right.values())) == shown.result["correct"]


def test_the_time_of_each_rank_is_split_up_and_told(shown: Shown) -> None:
    parts = ["input_wait", "compute", "evaluation", "checkpoints", "summaries"]
    for seconds in shown.result["seconds"]:
        assert sum(seconds[part] for part in parts) == pytest.approx(seconds["total"])
        assert all(seconds[part] >= 0 for part in parts)
        assert seconds["allreduce_estimate"] > 0
    assert len(shown.result["seconds"]) == len(shown.result["memory_mib"]) == 2
    assert shown.output.count("(timed alone, an estimate)") == 1


def test_the_trace_holds_the_steps_asked_for(shown: Shown) -> None:
    (trace,) = (shown.run / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
    space = XSpace.FromString(trace.read_bytes())
    steps = set()
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                if plane.event_metadata[event.metadata_id].name == "train":
                    stats = {plane.stat_metadata[s.metadata_id].name: s for s in event.stats}
                    steps.add(stats["step_num"].int64_value)
    assert steps == set(PROFILED)


def test_going_on_leaves_no_step_twice_and_no_evaluation_out(shown: Shown) -> None:
    assert shown.again.keys() == {*shown.scalars, *shown.tensors}
    for tag, found in {**shown.scalars, **shown.tensors}.items():
        assert shown.again[tag] == [step for step, _ in found]
    steps = [(line["split"], line["step"]) for line in metrics(shown.run)]
    assert len(set(steps)) == len(steps)


def test_steps_to_trace_that_are_not_done_are_config_before_anything_is_written(
    sets: Path, tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    ran = run_cli([
        "python", "hvd_train/captcha.py", "--data", sets / "captcha", "--runs-dir", tmp_path,
        "--steps", 5, "--global-batch", BATCH, "--profile", "4:6",
    ])  # fmt: skip
    assert ran.rc == 2
    assert ran.error == (
        "error: CONFIG: --profile: 4:6, the steps done now are 0:5; choose a range within them"
    )
    assert list(tmp_path.iterdir()) == []
