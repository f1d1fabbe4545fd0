"""Each number is written once, by the same name in metrics.jsonl and in TensorBoard."""

import io
import json
import math
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.util.tensor_util import make_ndarray

from data_tools.errors import DataError
from hvd_train.metric_writer import (
    SilentWriter,
    evaluations_shown,
    forget_lines_after,
    open_writer,
    timestamp,
)
from hvd_train.summaries import image_value


def lines(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps_of(run: Path) -> list[tuple[object, object]]:
    return [(line["split"], line["step"]) for line in lines(run)]


def test_a_line_holds_step_split_time_and_the_numbers(tmp_path: Path) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        writer.write(3, "train", {"loss": 0.1 + 0.2, "accuracy": 0.5})
    (line,) = lines(tmp_path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", str(line.pop("time")))
    assert line == {"step": 3, "split": "train", "loss": 0.1 + 0.2, "accuracy": 0.5}


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        writer.write(1, "train", {"loss": 1.0})
        assert len(lines(tmp_path)) == 1


def test_tensorboard_shows_the_same_numbers_under_split_and_name(tmp_path: Path) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        for step in (0, 10):
            writer.write(step, "train", {"loss": step + 0.5})
        writer.write(10, "test", {"accuracy": 0.25})
    (events,) = (tmp_path / "tensorboard").iterdir()
    shown = EventAccumulator(str(events))
    shown.Reload()
    assert sorted(shown.Tags()["tensors"]) == ["test/accuracy", "train/loss"]
    losses = [
        (event.step, float(make_ndarray(event.tensor_proto)))
        for event in shown.Tensors("train/loss")
    ]
    assert losses == [(0, 0.5), (10, 10.5)]


def test_a_rank_other_than_the_chief_writes_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_writer(tmp_path, is_chief=False, step=0, total_steps=9) as writer:
        assert isinstance(writer, SilentWriter)
        writer.write(0, "train", {"loss": 1.0})
        writer.say("words")
        writer.advance(3, "words")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_without_a_terminal_each_state_is_a_line_with_its_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        writer.advance(10, "loss = 4.66 (533.8 examples/sec; 0.240 sec/batch)")
        writer.say("test accuracy = 0.8600")
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: "
    assert re.fullmatch(
        stamp + r"step 10, loss = 4\.66 \(533\.8 examples/sec; 0\.240 sec/batch\)\n"
        + stamp + r"test accuracy = 0\.8600\n",
        capfd.readouterr().out,
    )  # fmt: skip


def test_a_timestamp_always_has_its_six_digits() -> None:
    assert all(len(timestamp()) == 26 for _ in range(100))


def write_lines(run: Path, *wanted: tuple[str, int]) -> Path:
    path = run / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": n, "split": s}) + "\n" for s, n in wanted))
    return path


def test_going_on_forgets_what_will_be_measured_again_and_nothing_else(tmp_path: Path) -> None:
    before = [("train", 0), ("test", 3), ("train", 5), ("test", 6)]
    again = [("train", 6), ("train", 8), ("test", 9)]
    forget_lines_after(write_lines(tmp_path, *before, *again), 6)
    assert steps_of(tmp_path) == before


def test_a_line_that_a_crash_cut_is_forgotten(tmp_path: Path) -> None:
    path = write_lines(tmp_path, ("train", 0), ("train", 1))
    path.write_text(path.read_text()[:-9])
    forget_lines_after(path, 5)
    assert steps_of(tmp_path) == [("train", 0)]


@pytest.mark.parametrize(
    "junk",
    [
        b'{"step": 5, "split": "test", "loss": null}\n',
        b"7\n",
        b"[1]\n",
        b"{}\n",
        b'{"step": 1}\n',
        b"\xff\xfe\n",
    ],
)
def test_a_line_that_is_none_of_ours_does_not_stop_the_run(tmp_path: Path, junk: bytes) -> None:
    path = write_lines(tmp_path, ("train", 0))
    path.write_bytes(path.read_bytes() + junk)
    forget_lines_after(path, 5)
    assert steps_of(tmp_path)[:1] == [("train", 0)]


def test_a_run_that_starts_has_nothing_to_forget(tmp_path: Path) -> None:
    forget_lines_after(tmp_path / "metrics.jsonl", 0)
    assert list(tmp_path.iterdir()) == []


def test_lines_are_added_to_those_of_an_earlier_start(tmp_path: Path) -> None:
    for start in (0, 2):
        with open_writer(tmp_path, is_chief=True, step=start, total_steps=4) as writer:
            for step in (start, start + 1):
                writer.write(step, "train", {"loss": 0.0})
    assert steps_of(tmp_path) == [("train", step) for step in range(4)]


def test_tensorboard_shows_no_step_twice_after_going_on(tmp_path: Path) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        for step in range(6):
            writer.write(step, "train", {"loss": float(step)})
        for done in (2, 4, 6):
            writer.write(done, "test", {"loss": float(done)})
    (events,) = (tmp_path / "tensorboard").iterdir()  # a second's resolution tells their order
    events.rename(events.with_name("events.out.tfevents.0000000001.host.1.0.v2"))
    with open_writer(tmp_path, is_chief=True, step=4, total_steps=9) as writer:
        for step in range(4, 8):
            writer.write(step, "train", {"loss": step + 0.5})
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()

    def curve(tag: str) -> list[tuple[int, float]]:
        return [(e.step, float(make_ndarray(e.tensor_proto))) for e in shown.Tensors(tag)]

    again = [(4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5)]
    assert curve("train/loss") == [(0, 0), (1, 1), (2, 2), (3, 3), *again]
    assert curve("test/loss") == [(2, 2), (4, 4)]


def test_going_on_keeps_the_pictures_of_its_evaluation_and_drops_later_summaries(
    tmp_path: Path,
) -> None:
    def picture(tag: str, shade: int) -> Summary.Value:
        return image_value(tag, [np.full((2, 2, 1), shade, np.uint8)])

    for number, start in enumerate((0, 4, 4)):  # gone on with twice
        with open_writer(tmp_path, is_chief=True, step=start, total_steps=9) as writer:
            for step in range(start, 6):
                writer.write(step, "train", {"loss": float(step)})
                writer.show(step, [picture("images", 10 * number + step)])
                if step % 2:
                    writer.show(step + 1, [picture("test/confusion", 10 * number + step)])
                    writer.write(step + 1, "test", {"loss": float(step)})
        for events in (tmp_path / "tensorboard").glob("*.v2"):  # a second's resolution
            events.rename(events.with_name(f"events.out.tfevents.000000000{number}.host"))
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()

    def shades(tag: str) -> list[tuple[int, int]]:
        pictures = [(e.step, make_ndarray(e.tensor_proto)[2]) for e in shown.Tensors(tag)]
        return [(step, Image.open(io.BytesIO(data)).getpixel((0, 0))[0]) for step, data in pictures]

    assert shades("images") == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 24), (5, 25)]
    assert shades("test/confusion") == [(2, 1), (4, 3), (6, 25)]
    assert [event.step for event in shown.Tensors("test/loss")] == [2, 4, 6]


def test_going_on_after_a_crash_reads_what_is_whole(tmp_path: Path) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        writer.write(1, "test", {"loss": 1.0})
        writer.write(1, "train", {"loss": 1.0})
    (events,) = (tmp_path / "tensorboard").iterdir()
    events.write_bytes(events.read_bytes()[:-5])
    assert [value.tag for value in evaluations_shown(events.parent, 1, {"test"})] == ["test/loss"]


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=9) as writer:
        writer.write(1, "train", {"loss": math.nan, "gradient_norm": math.inf, "epoch": 0.5})
    (line,) = lines(tmp_path)
    assert {*line} == {"step", "split", "time", "epoch"}


def test_a_folder_in_place_of_the_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with (
        pytest.raises(DataError) as caught,
        open_writer(tmp_path, is_chief=True, step=0, total_steps=1),
    ):
        pass
    assert str(caught.value) == (
        f"error: INPUT: {tmp_path / 'metrics.jsonl'}: Is a directory; "
        "check that the path exists and its permissions"
    )


@pytest.mark.parametrize("is_chief", [True, False])
def test_a_ranks_log_holds_its_lines_and_numbers_and_goes_on(
    tmp_path: Path, is_chief: bool
) -> None:
    log = tmp_path / "logs" / "rank-1.log"
    for start in (0, 5):
        with open_writer(tmp_path, is_chief=is_chief, step=start, total_steps=9, log=log) as writer:
            writer.write(start, "train", {"loss": 4.25, "input_wait_sec": math.inf})
            writer.advance(start, "loss = 4.25")
            writer.say("precision @ 1 = 0.860")
    times, lines = zip(*(line.split(": ", 1) for line in log.read_text().splitlines()), strict=True)
    assert lines == tuple(
        line
        for start in (0, 5)
        for line in (
            f"host {socket.gethostname()}, process {os.getpid()}",
            f"step {start}, train: loss = 4.25, input_wait_sec = inf",
            "precision @ 1 = 0.860",
        )
    )
    assert sorted(times) == list(times)
    assert (tmp_path / "metrics.jsonl").exists() == is_chief


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_rank_whose_log_can_not_be_written_says_so_once_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_writer(
        tmp_path, is_chief=False, step=0, total_steps=9, log=Path("/dev/full")
    ) as writer:
        writer.write(0, "train", {"loss": 1.5})
        writer.say("goes on")
    assert capsys.readouterr().err == (
        "warning: /dev/full: No space left on device; this log goes no further\n"
    )
