"""What benchmarks print is what they keep."""

import sys
from pathlib import Path

import harness
import pytest


def test_figures_are_printed_and_kept_under_a_dated_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["benchmarks/startup.py", "--save"])
    line = harness.summary("ratio", [1.5, 1.25, 4])
    assert line == "- ratio: 1.5 (1.25 to 4)"
    harness.report([line], save=False)
    assert not (tmp_path / "results").exists()
    for _ in range(2):
        harness.report([line], save=True)
    kept = (tmp_path / "results" / "startup.md").read_text()
    assert kept.startswith("# Figures by `benchmarks/startup.py`\n\n## 20")
    assert kept.count("# Figures") == 1
    assert kept.count(" UTC, ") == kept.count("Horovod 0.28.1") == kept.count(f"\n\n{line}\n") == 2
    assert capsys.readouterr().out == f"{line}\n" * 3
