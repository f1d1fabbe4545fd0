"""The flags of the commands that work on a trained run: what each means, its default.

They stand apart from the commands, so that `--help` needn't import TensorFlow.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True, kw_only=True, slots=True)
class OfRun:
    """What every command on a run has."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, such as runs/captcha."""
    task: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Of a run of your own task, where it is, such as photos:TASK."""
    debug: bool = False
    """Show tracebacks."""
