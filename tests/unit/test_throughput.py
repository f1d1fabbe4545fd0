"""What benchmarks/throughput.py makes of measurements; nothing is timed here."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import throughput

SETTINGS = Namespace(steps=60, warmup=20, log_every=10, data=None, torch_python="python")


def test_the_rate_of_a_run_is_all_examples_over_all_seconds_after_the_warm_up(
    tmp_path: Path,
) -> None:
    lines = [
        {"step": 0, "split": "train", "examples_per_sec": 1.0},
        {"step": 20, "split": "train", "examples_per_sec": 1.0},
        {"step": 30, "split": "train", "examples_per_sec": 100.0},
        {"step": 40, "split": "train", "examples_per_sec": 300.0},
        {"step": 41, "split": "test", "loss": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # 10 steps of b examples took b/10 s, 10 others b/30 s.
    assert throughput.rate_of_run(tmp_path, warmup=20) == pytest.approx(20 / (1 / 10 + 1 / 30))


def test_our_command_is_the_readmes_with_no_setting_of_threads_or_cores(tmp_path: Path) -> None:
    ours = throughput.CONTESTANTS["ours"]
    command = throughput.command_of(ours, SETTINGS, tmp_path)
    assert command[:5] == ["mpirun", "-np", "2", "python", "hvd_train/cifar.py"]
    assert command[command.index("--steps") + 1] == "81"
    assert not ours.environment


def test_a_peers_line_is_found_behind_a_launchers_tag() -> None:
    output = 'hello\n[1,0]<stdout>:{"images_per_sec": 12.5, "loss": 4.6, "memory_mib": [[1, 2]]}\n'
    assert throughput.rate_printed(output) == 12.5


@pytest.mark.parametrize("count", [0, 2])
def test_a_peer_that_prints_no_line_or_several_is_refused(count: int) -> None:
    with pytest.raises(SystemExit, match=f"not one line of JSON but {count}"):
        throughput.rate_printed('{"images_per_sec": 12.5}\n' * count)


def test_a_ratio_is_taken_round_by_round() -> None:
    rates = {"ours": [100.0, 300.0, 200.0], "horovod": [50.0, 100.0, 400.0]}
    text = throughput.tables(rates)
    assert "| Horovod, mpirun | 100 | 50..400 | 2.00 | 0.50..3.00 | >= 1.7: met |" in text


def test_efficiency_and_share_of_the_roof_are_taken_round_by_round() -> None:
    rates = {"ours": [760.0, 800.0], "ours-one-rank": [400.0, 400.0], "sgemm": [105.0, 210.0]}
    efficiency, _, share = throughput.whole_figures(rates)
    assert efficiency[1] == [0.95, 1.0]
    assert share[1] == pytest.approx([0.76, 0.4])


def test_a_cut_run_goes_on_from_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    throughput.write_log(log, 0, "ours", 700.0, 60)
    throughput.write_log(log, 0, "keras-fit", 600.0, 60)
    throughput.write_log(log, 1, "keras-fit", 610.0, 60)
    measured: list[str] = []

    def measure(contestant: throughput.Contestant, arguments: Namespace) -> float:
        measured.append(contestant.title)
        return 800.0

    monkeypatch.setattr(throughput, "measure", measure)
    settings = Namespace(log=log, rounds=2, steps=60)
    rates = throughput.measure_all(["ours", "keras-fit"], settings)
    assert rates == {"ours": [700.0, 800.0], "keras-fit": [600.0, 610.0]}
    assert measured == ["ours, mpirun"]
    assert len(log.read_text().splitlines()) == 4


def test_a_log_of_another_number_of_steps_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    throughput.write_log(log, 0, "ours", 700.0, 30)
    with pytest.raises(SystemExit, match="another number of steps than 60"):
        throughput.read_log(log, 60)
