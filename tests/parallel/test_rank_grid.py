"""A part of benchmarks/rank_grid.py: few examples, batches that don't divide them, three ranks."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "rank_grid.py"
# Only tests allow root silently.
ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def test_any_small_number_of_examples_is_trained_and_evaluated_exactly_on_three_ranks(
    run_cli: Callable[..., Any],
) -> None:
    sizes, batches = [1, 2, 3, 5, 8, 13], [1, 2, 7]
    done = run_cli(
        ["python", SCRIPT, "--ranks", 3, "--examples", *sizes, "--batches", *batches],
        env=ALLOW_ROOT if os.geteuid() == 0 else {}, timeout=300,
    )  # fmt: skip
    assert done.rc == 0, done.stdout + done.stderr
    whole = {batch * 3 for batch in batches} | set(batches)
    fits = [(n, g) for n in sizes for g in whole if 3 <= g <= n]
    refused = len(sizes) * len(whole) - len(fits)
    assert re.search(
        rf"^- 3 ranks: {len(fits)} runs trained, .*, {refused} runs refused by all ranks alike, ",
        done.stdout, re.MULTILINE,
    )  # fmt: skip
