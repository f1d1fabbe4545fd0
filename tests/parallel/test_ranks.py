"""Any number of ranks computes the same run; 1, 2, 3 and 4 real ranks, started once each."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from small_runs import TEST, TRAIN, Ran, metrics

from hvd_train import checkpoint
from hvd_train.data.sharding import epoch_order

SIZES = (1, 2, 3, 4)
MANY = SIZES[1:]
STEPS = {
    "linear": 35, "ctc": 20, "by_heart": 100, "accumulated": 11, "adamw": 11, "lamb": 11,
    "tutorial": 12, "mixed": 12,
}  # fmt: skip
RUNS = tuple(STEPS)
BATCH = 10
RATE = 0.03
"""--base-lr of the run by heart."""

Start = Callable[[int], Ran]


@pytest.fixture(params=SIZES, ids="{} ranks".format)
def ranks(request: pytest.FixtureRequest, ran: Start) -> Ran:
    return ran(request.param)


@pytest.fixture(params=MANY, ids="{} ranks".format)
def many(request: pytest.FixtureRequest, ran: Start) -> Ran:
    return ran(request.param)


@pytest.fixture
def one(ran: Start) -> Ran:
    return ran(1)


# Who is there


def test_each_rank_knows_its_place(ranks: Ran) -> None:
    places = [report["world"] for report in ranks.reports]
    for rank, place in enumerate(places):
        assert (place["rank"], place["size"]) == (rank, ranks.size)
        assert (place["local_rank"], place["local_size"]) == (rank, ranks.size)


# Collectives


def test_json_of_every_rank_reaches_every_rank_in_order(ranks: Ran) -> None:
    expected = [
        {"rank": rank, "text": "ü" * rank, "none": None, "list": [0.1] * rank}
        for rank in range(ranks.size)
    ]
    for report in ranks.reports:
        assert report["collectives"]["gathered"] == expected
        assert report["collectives"]["broadcast"] == expected[0]


def test_sums_are_over_all_ranks(ranks: Ran) -> None:
    size = ranks.size
    numbers = range(size)
    for report in ranks.reports:
        assert report["collectives"]["summed"] == [
            [[float(sum(numbers) + size)] * 3] * 2, float(sum(numbers)), [],
        ]  # fmt: skip
        assert report["collectives"]["sum_over_ranks"] == [
            size, sum(numbers), size * 1e15 + sum(numbers),
        ]  # fmt: skip


def test_a_broadcast_gives_keras_and_tensorflow_variables_the_chiefs_value(ranks: Ran) -> None:
    for report in ranks.reports:
        assert report["collectives"]["variables"] == [[0.0, 0.0], 5.0]


# Start: every rank from other weights, all of them from the chief's after the broadcast


@pytest.mark.parametrize("run", RUNS)
def test_before_the_broadcast_the_drawn_weights_of_all_ranks_differ(many: Ran, run: str) -> None:
    before = many.of(run, "before")
    drawn = [name for name in before[0] if name.startswith("weights/") and "kernel" in name]
    assert drawn
    for name in drawn:
        assert len({variables[name] for variables in before}) == many.size


@pytest.mark.parametrize("run", RUNS)
def test_after_the_broadcast_every_variable_is_the_chiefs(many: Ran, run: str) -> None:
    before, after = many.of(run, "before"), many.of(run, "after")
    groups = {name.partition("/")[0] for name in before[0]}
    assert groups == {"weights", "optimizer", "ema"}
    for variables in after:
        assert variables == before[0]


@pytest.mark.parametrize("run", RUNS)
def test_the_chief_starts_alike_on_any_number_of_ranks(many: Ran, one: Ran, run: str) -> None:
    assert many.of(run, "after")[0] == one.of(run, "after")[0]


@pytest.mark.parametrize("run", RUNS)
def test_at_the_end_all_ranks_hold_the_same_weights_statistics_and_averages(
    many: Ran, run: str
) -> None:
    end = many.of(run, "end")
    assert end[0] != many.of(run, "after")[0]
    for variables in end:
        assert variables == end[0]


# Which examples: the same global batches, whoever works on them


def global_batches(ran: Ran, run: str) -> list[list[int]]:
    """The ids of each step: of the first micro-batch by rank, then of the next."""
    micro_batches = 2 if run == "accumulated" else 1
    return [
        [i for parts in zip(*(np.split(np.array(own), micro_batches) for own in of_ranks),
                            strict=True) for part in parts for i in part.tolist()]
        for of_ranks in zip(*ran.of(run, "ids"), strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_the_global_batches_are_those_of_one_process_in_the_same_order(
    many: Ran, one: Ran, run: str
) -> None:
    assert global_batches(many, run) == global_batches(one, run)


def test_the_batches_follow_the_order_of_the_epochs_over_their_ends(ranks: Ran) -> None:
    stream = list(itertools.chain(*global_batches(ranks, "linear")))
    orders = [epoch_order(TRAIN, seed=0, epoch=epoch, shuffle=True) for epoch in range(4)]
    assert len(stream) == 35 * BATCH
    assert stream == np.concatenate(orders)[: len(stream)].tolist()


def test_an_epoch_of_all_ranks_together_is_every_example_exactly_once(ranks: Ran) -> None:
    stream = list(itertools.chain(*global_batches(ranks, "linear")))
    for epoch in range(3):
        assert sorted(stream[epoch * TRAIN : (epoch + 1) * TRAIN]) == list(range(TRAIN))


def test_no_rank_runs_the_whole_batch_and_the_parts_are_even(many: Ran) -> None:
    share, more = divmod(BATCH, many.size)
    for rank, batches in enumerate(many.of("linear", "ids")):
        assert {len(ids) for ids in batches} == {share + (rank < more)}


@pytest.mark.parametrize("run", RUNS)
def test_all_ranks_take_the_same_number_of_steps(ranks: Ran, run: str) -> None:
    assert [len(losses) for losses in ranks.of(run, "losses")] == [STEPS[run]] * ranks.size


# Going on with a run of one rank on any number


def test_a_run_is_gone_on_with_the_next_batch(ranks: Ran, one: Ran) -> None:
    assert global_batches(ranks, "resumed") == global_batches(one, "linear")[20:]


def test_after_a_resume_every_rank_holds_the_whole_state_of_the_checkpoint(
    ranks: Ran, one: Ran
) -> None:
    saved = checkpoint.read(one.folder / "linear" / "captcha" / "checkpoints" / "step-00000020")
    expected = {
        f"{group}/{name}": hashlib.sha256(array.tobytes()).hexdigest()
        for group in ("weights", "optimizer", "ema")
        for name, array in getattr(saved, group).items()
    }
    for variables in ranks.of("resumed", "after"):
        assert variables == expected


def test_a_run_of_one_rank_is_gone_on_with_the_same_losses_on_any_number(
    ranks: Ran, one: Ran
) -> None:
    expected = np.array(one.of("linear", "losses")[0][20:])
    for losses in ranks.of("resumed", "losses"):
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-9)


def test_a_run_that_is_gone_on_with_ends_on_the_same_weights_on_all_ranks(
    ranks: Ran, one: Ran
) -> None:
    for variables in ranks.of("resumed", "end"):
        assert variables == ranks.of("resumed", "end")[0]
    assert one.of("resumed", "end") == one.of("linear", "end")


# Gradients: the allreduced sum is the one-process gradient of the concatenated batch

# The CTC kernel rounds its probabilities to float32, whatever type it is given.
GRADIENT_TOLERANCE = {"linear": 1e-12, "ctc": 1e-7, "tutorial": 1e-12}


def pairs(ran: Ran, prefix: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(name, by the ranks, by one process alone) for each rank's arrays of a prefix."""
    for arrays in ran.arrays:
        for key, array in arrays.items():
            if key.startswith(prefix) and key.endswith("|ranks"):
                yield key, array, arrays[key.removesuffix("ranks") + "alone"]


@pytest.mark.parametrize("split", ["even", "lopsided"])
@pytest.mark.parametrize("model", ["linear", "ctc", "tutorial"])
def test_the_allreduced_gradient_is_that_of_one_process_on_the_whole_batch(
    ranks: Ran, model: str, split: str
) -> None:
    compared = list(pairs(ranks, f"{model}|{split}|"))
    assert len(compared) == ranks.size * {"linear": 2, "ctc": 14, "tutorial": 10}[model]
    for name, together, alone in compared:
        assert np.abs(alone).max() > 1e-3, name
        np.testing.assert_allclose(
            together, alone, rtol=0, atol=GRADIENT_TOLERANCE[model], err_msg=name
        )


# Batch norm: one set of statistics, those of the global batch

NORM_TOLERANCE = {"float64": 1e-9, "float32": 2e-3}


@pytest.mark.parametrize("dtype", NORM_TOLERANCE)
def test_batch_norm_over_uneven_parts_is_keras_batch_norm_on_the_whole(
    ranks: Ran, dtype: str
) -> None:
    compared = list(pairs(ranks, f"norm|{dtype}|"))
    names = {name.split("|")[2] for name, _, _ in compared}
    assert names == {
        "outputs", "to_inputs", "moving_mean", "moving_variance", "later", "to_gamma", "to_beta",
    }  # fmt: skip
    for name, together, alone in compared:
        assert together.dtype == np.dtype(dtype)
        np.testing.assert_allclose(
            together, alone, rtol=0, atol=NORM_TOLERANCE[dtype], err_msg=name
        )


@pytest.mark.parametrize("what", ["outputs", "to_x"])
def test_a_batch_of_one_value_gives_finite_numbers(ranks: Ran, what: str) -> None:
    for arrays in ranks.arrays:
        assert np.isfinite(arrays[f"constant|{what}"]).all()


# Losses of a run at one global batch


def losses(ran: Ran, run: str) -> np.ndarray:
    return np.array(ran.of(run, "losses")[0])[:20]


@pytest.mark.parametrize("run", RUNS)
def test_every_rank_sees_the_same_loss(many: Ran, run: str) -> None:
    first, *others = many.of(run, "losses")
    assert all(other == first for other in others)


@pytest.mark.parametrize("run", ["linear", "accumulated", "adamw", "lamb", "tutorial", "mixed"])
def test_the_losses_of_up_to_20_steps_agree_to_1e_9_in_float64(
    many: Ran, one: Ran, run: str
) -> None:
    difference = np.abs(losses(many, run) - losses(one, run))
    assert difference.max() < 1e-9


def test_the_losses_of_20_steps_of_ctc_agree_to_1e_4_of_the_loss_in_float32(
    many: Ran, one: Ran
) -> None:
    difference = np.abs(losses(many, "ctc") / losses(one, "ctc") - 1)
    assert difference.max() < 1e-4


@pytest.mark.parametrize("run", RUNS)
def test_the_losses_change_from_step_to_step(one: Ran, run: str) -> None:
    """Or equal losses would prove nothing."""
    assert np.abs(np.diff(losses(one, run))).min() > 1e-3


# Evaluation: every example exactly once


@pytest.mark.parametrize(
    ("run", "examples"),
    [("linear", TEST), ("ctc", TEST), ("by_heart", TRAIN), ("tutorial", TEST)],
)
def test_evaluation_counts_every_example_exactly_once(ranks: Ran, run: str, examples: int) -> None:
    evaluated = ranks.of(run, "evaluated")
    assert sorted(itertools.chain(*evaluated)) == list(range(examples))
    for evaluation in ranks.of(run, "evaluation"):
        assert evaluation["examples"] == examples


def test_evaluation_is_shared_out_evenly(many: Ran) -> None:
    shares = [len(ids) for ids in many.of("linear", "evaluated")]
    assert max(shares) - min(shares) == 1


@pytest.mark.parametrize("run", ["by_heart", "tutorial"])
def test_the_number_of_right_examples_is_that_of_one_process(many: Ran, one: Ran, run: str) -> None:
    (expected,) = one.of(run, "evaluation")
    assert 0 < expected["correct"] < expected["examples"]
    for evaluation in many.of(run, "evaluation"):
        assert evaluation["correct"] == expected["correct"]
        assert evaluation["loss"] == pytest.approx(expected["loss"], abs=1e-9)


# Files: the chief's alone


def test_the_run_folder_is_written_by_one_rank(ranks: Ran) -> None:
    run = ranks.folder / "linear" / "captcha"
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    events = [name for name in files if "tfevents" in name]
    assert len(events) == 1
    saved = ["ema.npz", "optimizer.npz", "state.json", "weights.npz"]
    assert sorted({*files} - {*events}) == sorted([
        *(f"checkpoints/step-{step:08d}/{name}" for step in (20, 35) for name in saved),
        ".lock", "config.yaml", "eval.json", "manifest.json", "metrics.jsonl",
    ])  # fmt: skip


def test_the_metrics_hold_each_tenth_step_once_with_the_loss_over_all_ranks(ranks: Ran) -> None:
    lines = metrics(ranks.folder / "linear" / "captcha")
    shown = {line["step"]: line["loss"] for line in lines if line["split"] == "train"}
    assert [line["step"] for line in lines if line["split"] == "train"] == [0, 10, 20, 30]
    recorded = ranks.of("linear", "losses")[0]
    assert shown == {step: recorded[step] for step in shown}


def test_the_accuracy_of_a_step_counts_over_all_ranks(many: Ran, one: Ran) -> None:
    def accuracies(ran: Ran) -> list[float]:
        lines = metrics(ran.folder / "by_heart" / "captcha")
        return [line["accuracy"] for line in lines if "epoch" in line]

    assert any(accuracies(one))
    assert accuracies(many) == accuracies(one)


def test_the_logged_rate_is_base_rate_times_batch_over_128_after_the_warm_up(ranks: Ran) -> None:
    lines = metrics(ranks.folder / "by_heart" / "captcha")
    rates = {line["step"]: line["learning_rate"] for line in lines if "epoch" in line}
    peak = RATE * BATCH / 128
    warm_up_steps = TRAIN / BATCH
    assert rates == pytest.approx(
        {step: peak * min((step + 1) / warm_up_steps, 1.0) for step in range(0, 100, 10)}
    )


def test_eval_json_tells_the_last_evaluation(ranks: Ran) -> None:
    result = json.loads((ranks.folder / "by_heart" / "captcha" / "eval.json").read_text())
    evaluation = ranks.of("by_heart", "evaluation")[0]
    assert (result["step"], result["split"], result["ranks"]) == (100, "train", ranks.size)
    assert result["examples"] == TRAIN
    assert (result["correct"], result["loss"]) == (evaluation["correct"], evaluation["loss"])
    assert result["accuracy"] == evaluation["correct"] / TRAIN


def test_each_rank_keeps_a_log_of_its_own_if_asked_to(ranks: Ran) -> None:
    logs = ranks.folder / "by_heart" / "captcha" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == [
        f"rank-{rank}.log" for rank in range(ranks.size)
    ]
    recorded = ranks.of("by_heart", "losses")[0]
    for path in logs.iterdir():
        text = path.read_text()
        shown = re.findall(r": step (\d+), train: loss = ([\d.]+), .*input_wait_sec = ", text)
        assert shown == [(str(step), f"{recorded[step]:.6g}") for step in range(0, 100, 10)]
        assert f"of {TRAIN} right after 100 steps" in text


# The tutorial's words

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}"


def test_the_lines_of_the_steps_have_the_tutorials_form_and_come_once(ranks: Ran) -> None:
    line = (
        rf"{TIME}: step (\d+), loss = (\d+\.\d\d) \(\d+\.\d examples/sec; \d+\.\d{{3}} sec/batch\)"
    )
    found = re.findall(rf"^{line}$", ranks.stdout, re.MULTILINE)
    assert found == [
        (str(step), f"{ranks.of(run, 'losses')[0][step]:.2f}")
        for run in ("tutorial", "mixed")
        for step in (0, 10)
    ]


def test_the_precision_is_told_once_in_the_tutorials_words_and_in_eval_json(ranks: Ran) -> None:
    evaluation, mixed = (ranks.of(run, "evaluation")[0] for run in ("tutorial", "mixed"))
    precision = evaluation["correct"] / TEST
    found = re.findall(rf"^{TIME}: precision @ 1 = (\d\.\d{{3}})$", ranks.stdout, re.MULTILINE)
    assert found == [f"{precision:.3f}", f"{mixed['correct'] / TEST:.3f}"]
    run = ranks.folder / "tutorial" / "cifar10"
    result = json.loads((run / "eval.json").read_text())
    assert (result["step"], result["examples"], result["correct"]) == (
        12, TEST, evaluation["correct"],
    )  # fmt: skip
    assert result["precision_at_1"] == precision
    assert "accuracy" not in result
    *steps, tested = metrics(run)
    assert all("precision_at_1" not in step for step in steps)
    assert (tested["split"], tested["step"], tested["precision_at_1"]) == ("test", 12, precision)
