"""What the tests of real ranks share: sizes of the data set, and what ranks.py reported."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

TRAIN, TEST = 101, 53
"""Neither divides by 2, 3 or 4, nor by a batch of 10."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What the ranks of one start of ranks.py printed together and reported, by rank."""

    folder: Path
    stdout: str
    reports: list[dict[str, Any]]
    arrays: list[dict[str, np.ndarray]]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.reports)

    def of(self, run: str, what: str) -> list[Any]:
        """What each rank recorded of a run."""
        return [report[run][what] for report in self.reports]


def once(start: Callable[[int], T]) -> Callable[[int], T]:
    """Starts each number of ranks once, even if that fails: its many tests then fail at once."""
    results: dict[int, T] = {}
    failures: dict[int, BaseException] = {}

    def call(size: int) -> T:
        if size in failures:
            raise failures[size]
        if size not in results:
            try:
                results[size] = start(size)
            except BaseException as error:
                failures[size] = error
                raise
        return results[size]

    return call


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
