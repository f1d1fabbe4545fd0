"""eval.json: what the trainer and later evaluations say of one step, in one form."""

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_tools.errors import DataError
from hvd_train import results
from hvd_train.evaluator import Evaluation
from hvd_train.results import with_evaluation, with_figure
from hvd_train.task import CAPTCHA, CIFAR

FIGURE = {"split": "test", "weights": "moving averages", "data": "abc", "accuracy": 0.5}
TRAINER = {
    "ranks": 2,
    "global_batch": 10,
    "seconds": [dict.fromkeys(results.PARTS_OF_TIME, 1.0)] * 2,
}
TRAIN = {"split": "train", "weights": "moving averages", "data": "abc", "accuracy": 0.25}


def test_a_record_names_what_was_evaluated_and_counts_whole() -> None:
    evaluation = Evaluation(examples=8, correct=2, loss=0.5, positions=[[8, 4]], confusion=None)
    of: Any = SimpleNamespace(classes=None)
    found = results.record(
        evaluation, CAPTCHA, of, split="train", weights=results.WEIGHTS, data="abc"
    )
    assert found.pop("time").startswith("20")
    assert found == {
        "split": "train", "examples": 8, "correct": 2, "accuracy": 0.25,
        "accuracy_by_position": [0.5], "loss": 0.5, "weights": "weights", "data": "abc",
    }  # fmt: skip


def test_the_five_likeliest_are_told_where_they_were_counted() -> None:
    few = Evaluation(examples=8, correct=2, loss=0.5, positions=[[8, 2]], confusion=None)
    many = Evaluation(
        examples=8, correct=2, loss=0.5, positions=[[8, 2]], confusion=None, correct_at_5=6
    )
    assert results.measures(few, CIFAR) == {"precision_at_1": 0.25}
    assert results.measures(many, CIFAR) == {"precision_at_1": 0.25, "precision_at_5": 0.75}


def test_an_evaluation_leaves_what_the_trainer_wrote_of_the_step() -> None:
    trained = with_figure({}, 7, {**FIGURE, **TRAINER})
    assert trained == {"step": 7, **FIGURE, **TRAINER}
    again = with_figure(trained, 7, {**FIGURE, "accuracy": 0.75})
    assert again == {"step": 7, **FIGURE, **TRAINER, "accuracy": 0.75}
    more = with_evaluation(trained, 7, TRAIN)
    assert more == {**trained, "evaluations": [TRAIN]}
    assert with_figure(more, 7, {**FIGURE, **TRAINER}) == more


def test_of_one_split_weights_and_data_set_the_last_evaluation_stays() -> None:
    others = [{**TRAIN, "weights": "weights"}, {**TRAIN, "data": "def"}, {**TRAIN, "split": "test"}]
    found: dict[str, Any] = {}
    for one in (TRAIN, *others, {**TRAIN, "accuracy": 1.0}):
        found = with_evaluation(found, 7, one)
    assert found == {"step": 7, "evaluations": [*others, {**TRAIN, "accuracy": 1.0}]}


@pytest.mark.parametrize("change", [with_figure, with_evaluation])
def test_nothing_of_another_step_is_left(change: Any) -> None:
    before = {"step": 7, **FIGURE, **TRAINER, "evaluations": [TRAIN]}
    assert change(before, 9, FIGURE) == change({}, 9, FIGURE)


@pytest.mark.parametrize(
    "content",
    [
        None, b"", b"{", b"[]", b"\xff", b'{"step": "7"}', b'{"step": 7, "examples": 5}',
        b'{"step": 7, "seconds": [{"total": 1}]}', b'{"step": 7, "evaluations": 5}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_file_that_is_none_or_no_result_is_replaced(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "eval.json").write_bytes(content)
    assert results.read(tmp_path) == {}
    assert results.trained_to(tmp_path) is None
    results.update(tmp_path, lambda before: with_figure(before, 7, FIGURE))
    told = f"warning: {tmp_path / 'eval.json'}: damaged; what it said is lost\n"
    assert capsys.readouterr().err == ("" if content is None else told)
    text = (tmp_path / "eval.json").read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == results.read(tmp_path) == {"step": 7, **FIGURE}
    assert [path.name for path in tmp_path.iterdir()] == ["eval.json"]


def test_only_the_trainer_tells_where_the_run_ended(tmp_path: Path) -> None:
    results.update(tmp_path, lambda before: with_figure(before, 7, FIGURE))
    assert results.trained_to(tmp_path) is None
    results.update(tmp_path, lambda before: with_figure(before, 7, {**FIGURE, **TRAINER}))
    assert results.trained_to(tmp_path) == 7


def add(run: Path, number: int) -> None:
    for count in range(20):
        other = {**TRAIN, "split": f"split{number}", "accuracy": count}
        results.update(run, lambda before, other=other: with_evaluation(before, 7, other))


def test_processes_that_write_at_a_time_lose_nothing_of_each_other(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(add, [tmp_path] * 4, range(4)))
    found = results.read(tmp_path)["evaluations"]
    assert {one["split"]: one["accuracy"] for one in found} == {f"split{n}": 19 for n in range(4)}


def test_a_run_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        results.update(tmp_path / "gone", lambda before: before)
    assert str(caught.value) == (
        f"error: INPUT: {tmp_path / 'gone'}: No such file or directory; "
        "check that the path exists and its permissions"
    )


def test_what_was_found_of_a_later_step_goes_when_a_run_goes_back(tmp_path: Path) -> None:
    results.update(tmp_path, lambda before: with_figure(before, 7, FIGURE))
    results.forget_after(tmp_path, 7)
    assert results.read(tmp_path)["step"] == 7
    results.forget_after(tmp_path, 6)
    assert list(tmp_path.iterdir()) == []
    results.forget_after(tmp_path, 6)
