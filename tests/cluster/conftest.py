"""Two hosts of their own on this machine, `benchmarks/virtual_hosts.py`, and commands on them."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import virtual_hosts
from virtual_hosts import Cluster, Host

BIN = Path(sys.executable).parent


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """host1 and host2, new for each test; skipped where this machine can't be several hosts."""
    if lacks := virtual_hosts.missing():
        pytest.skip(f"hosts of our own need {', '.join(lacks)}")
    with virtual_hosts.cluster(tmp_path / "cluster") as made:
        yield made


@pytest.fixture(scope="session")
def run_on(run_cli: Callable[..., Any]) -> Callable[..., Any]:
    """`run_on(host, args, env=, timeout=120)` runs a command there and returns its Result.

    The host's shell has activated the environment of this project, and lets root run mpirun.
    """

    def run(
        host: Host, args: Sequence[object], env: dict[str, str | None] | None = None, **options: Any
    ) -> Any:
        shell = {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(host.folder),  # where horovodrun remembers interfaces
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **virtual_hosts.UNBOUND,
        }  # fmt: skip
        return run_cli(host.command(args), env={**shell, **(env or {})}, **options)

    return run
