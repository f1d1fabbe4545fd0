"""`hvd_train compare`: its table, what differs, and a picture that replaces nothing of others."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from PIL import Image
from small_sets import texts, write_set
from test_plots import Tags

from data_tools.errors import DataError
from hvd_train import config_files
from hvd_train.config import CaptchaConfig, CifarConfig, TrainConfig
from hvd_train.flags import Compare

Line = tuple[int, str, Mapping[str, float]]
"""Second, split and numbers of a line."""


@pytest.fixture
def compare(tf: ModuleType, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Compares runs and returns the lines that it prints."""
    from hvd_train import compare

    def call(*runs: Path, output: Path) -> list[str]:
        compare.main(Compare(runs=runs, output=output))
        return capsys.readouterr().out.splitlines()

    return call


def write_run(
    folder: Path, lines: Sequence[Line], *, config: TrainConfig | None = None, **changed: Any
) -> Path:
    """Writes a run folder of 40 training examples in 4 steps an epoch, with these lines."""
    write_set(folder, train=texts(40), test=texts(10))
    settings = config_files.to_save(config or CaptchaConfig()) | {"global_batch": 10, **changed}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    with (folder / "metrics.jsonl").open("w") as file:
        for second, split, numbers in lines:
            time = f"2026-12-01 12:00:{second:02}"
            file.write(json.dumps({"split": split, "time": time, **numbers}) + "\n")
    return folder


def train(second: int, step: int, rate: float) -> Line:
    numbers = {"examples_per_sec": rate, "sec_per_batch": 2, "input_wait_sec": float(second)}
    return second, "train", {"step": step, **numbers}


def evaluation(second: int, step: int, accuracy: float, split: str = "test") -> Line:
    return second, split, {"step": step, "accuracy": accuracy, "loss": 1}


SLOW = [train(0, 0, 1), train(10, 3, 20), evaluation(12, 4, 0.5), train(20, 7, 30),
        evaluation(22, 8, 0.25)]  # fmt: skip
QUICK = [train(0, 0, 1), train(4, 3, 80), evaluation(5, 4, 0.75, "validation")]


def test_a_table_a_list_of_what_differs_and_a_picture(
    compare: Callable[..., list[str]], tmp_path: Path
) -> None:
    slow = write_run(tmp_path / "slow", SLOW, epochs=2.0)
    quick = write_run(
        tmp_path / "quick", QUICK, epochs=4.0, seed=3, model="linear", validation_split="validation"
    )
    result = {
        "step": 8, "split": "test", "weights": "weights", "examples": 10, "correct": 3, "ranks": 2
    }  # fmt: skip
    (slow / "eval.json").write_text(json.dumps(result))
    output = tmp_path / "out.svg"
    assert compare(slow, quick, output=output) == [
        "run    model   ranks  batch  steps    best accuracy     last accuracy        "
        "result         examples/sec  time",
        "slow   ctc     2      10     8 of 8   0.500 at epoch 1  0.250 of test        "
        "0.300 of test  25            24 s",
        "quick  linear  -      10     4 of 16  0.750 at epoch 1  0.750 of validation  "
        "-              80            7 s",
        "",
        "differing         slow  quick",
        "model             ctc   linear",
        "validation_split  None  validation",
        "epochs            2.0   4.0",
        "seed              0     3",
        "",
        f"picture: {output}",
    ]
    drawn = Tags(output.read_text())
    assert {"slow", "quick", "epoch", "accuracy"} <= set(drawn.text.split())
    assert "seconds since the first step" in drawn.text


def test_runs_of_one_name_are_told_apart_by_their_paths(
    compare: Callable[..., list[str]], tmp_path: Path
) -> None:
    one = write_run(tmp_path / "a" / "$\\frac{\x1b[31m", SLOW)
    other = write_run(tmp_path / "b" / "$\\frac{\x1b[31m", SLOW)
    picture = tmp_path / "out.png"
    lines = compare(one, other, output=picture)
    assert [line.partition(" ")[0] for line in lines[1:3]] == [
        str(path).partition("\x1b")[0] for path in (one, other)
    ]
    assert lines[3:] == ["", "the settings are the same", "", f"picture: {picture}"]
    with Image.open(picture) as image:
        assert image.format == "PNG"


def test_every_run_stands_in_the_legend(compare: Callable[..., list[str]], tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    compare(write_run(tmp_path / "_a", SLOW), write_run(tmp_path / "_b", SLOW), output=picture)
    assert {"_a", "_b"} <= set(Tags(picture.read_text()).text.split())


def test_only_pictures_of_its_own_are_replaced(
    compare: Callable[..., list[str]], tmp_path: Path
) -> None:
    runs = [write_run(tmp_path / name, SLOW) for name in "ab"]
    for suffix in ("svg", "png"):
        own, foreign = tmp_path / f"own.{suffix}", tmp_path / f"foreign.{suffix}"
        compare(*runs, output=own)
        first = own.read_bytes()
        compare(*runs, output=own)
        assert own.read_bytes() == first
        foreign.write_bytes(b"<svg>mine</svg>")
        assert fault(lambda path=foreign: compare(*runs, output=path)) == (
            f"error: CONFIG: {foreign}: it exists already and isn't a picture of this command; "
            "choose another name with --output"
        )
        assert foreign.read_bytes() == b"<svg>mine</svg>"


def test_what_can_not_be_compared_is_one_line_and_leaves_no_picture(
    compare: Callable[..., list[str]], tmp_path: Path
) -> None:
    run, output = write_run(tmp_path / "run", SLOW), tmp_path / "out.svg"
    early = write_run(tmp_path / "early", [train(0, 0, 1)])
    later = write_run(tmp_path / "later", [train(0, 0, 1)])
    silent = write_run(tmp_path / "silent", [])
    classes = write_run(tmp_path / "classes", SLOW, config=CifarConfig())
    manifest = json.loads((classes / "manifest.json").read_text())
    manifest |= {"kind": "classes", "label": None, "classes": ["cat", "dog"]}
    (classes / "manifest.json").write_text(json.dumps(manifest))
    assert fault(lambda: compare(run, classes, output=output)) == (
        f"error: CONFIG: {classes}: it is of cifar10, {run} of captcha; compare runs of one task"
    )
    assert fault(lambda: compare(early, later, output=output)) == (
        f"error: INPUT: {early}: none of the runs has been evaluated yet; wait for the first "
        "evaluation"
    )
    assert fault(lambda: compare(run, silent, output=output)) == (
        f"error: INPUT: {silent}: the run has measured nothing yet; wait for its first step"
    )
    assert fault(lambda: compare(run, tmp_path / "none", output=output)) == (
        f"error: INPUT: {tmp_path / 'none'}: no such folder; name one such as runs/captcha"
    )
    assert not output.exists()
    assert compare(run, early, output=output)[2].split()[:1] == ["early"]


@pytest.mark.parametrize("runs", [("a",), (), ("a", "b", "a")])
def test_one_run_or_one_twice_is_no_comparison(runs: Sequence[str]) -> None:
    with pytest.raises(ValueError, match="name two runs or more, each once"):
        Compare(runs=tuple(map(Path, runs)))
    with pytest.raises(ValueError, match=re.escape("--output is a.pdf; its name must end in")):
        Compare(runs=(Path("a"), Path("b")), output=Path("a.pdf"))


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as raised:
        call()
    return str(raised.value)
