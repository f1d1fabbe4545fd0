"""What one rank under a launcher finds out; as a program it writes that down for the doctor."""

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from data_tools import launch_env
from data_tools.errors import EXIT_CODES, RANK, DataError, Kind, run_main
from hvd_train import probe

MARK = "hvd-train-rank:"
"""Stands before a report in what a launcher passes on, which may have put its own words before."""
TOGETHER_SECONDS = probe.LOAD_SECONDS + probe.MEET_SECONDS
"""How long the ranks may take to load TensorFlow and to come together."""
ERROR = re.compile(rf"^error: ({'|'.join(Kind)}): (.+?): (.+); (.+)$", re.MULTILINE)
ROOT = Path(__file__).resolve().parent.parent


def report(data: str | None) -> dict[str, Any]:
    """Looks at this host, then meets the other ranks.

    Args:
        data: the data set folder.

    Returns:
        The facts of `probe.facts` with "rank" and "size" as the launcher says and "slots", the
        ranks of this host, "mask", the cores it may use; "reports", those of all ranks, or "error",
        why they don't come together, None where another rank tells, and then "load" of
        `probe.loaded`.
    """
    launch = launch_env.read()
    own = {
        "rank": launch.rank, "size": launch.size, "slots": launch.local_size,
        "mask": sorted(os.sched_getaffinity(0)), **probe.facts(str(ROOT), str(Path.cwd()), data),
    }  # fmt: skip
    found = _meet(own)
    if "error" in found:
        loading = probe.start_loading(sys.executable, str(ROOT))
        found["load"] = probe.loaded(loading, probe.LOAD_SECONDS)
    return {**own, **found}


def _meet(own: dict[str, Any]) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hvd_train.rollcall"], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, words = process.communicate(json.dumps(own), timeout=TOGETHER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return _failed(f"the ranks don't come together within {TOGETHER_SECONDS:.0f} s")
    return understood(process.returncode, output, words)


def understood(code: int, output: str, words: str) -> dict[str, Any]:
    """What has become of a roll call: "reports" or "error", as in `report`.

    Args:
        code: its exit code.
        output: of standard output.
        words: of standard error.
    """
    try:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        # Of a fault that the ranks agree on, its own rank writes the line; all end with its code.
        if errors := ERROR.findall(words):
            return {"error": list(errors[-1])}
        if code in EXIT_CODES.values():
            return {"error": None}
        said = [line for line in words.splitlines() if line.strip()] or ["nothing"]
        return _failed(f"Horovod ends with {code} and says {said[-1].strip()!r}")
    return found


def _failed(reason: str) -> dict[str, Any]:
    fix = "hvd_train doctor -H HOST:SLOTS,... looks at the network between the hosts"
    return {"error": [RANK.name, "Horovod", reason, fix]}


def error_of(found: dict[str, Any]) -> DataError | None:
    """Why the ranks didn't come together, as an exception."""
    if found.get("error") is None:
        return None
    kind, where, reason, fix = found["error"]
    return DataError(Kind[kind], where, reason, fix=fix)


def encode(found: dict[str, Any]) -> str:
    """A report as one short line, which launchers pass on whole."""
    return MARK + base64.b64encode(zlib.compress(json.dumps(found).encode())).decode()


def decode(line: str) -> dict[str, Any] | None:
    """The report in a line of a launcher's output, if there is one."""
    _, mark, text = line.strip().partition(MARK)
    if not mark:
        return None
    try:
        found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    except (ValueError, zlib.error):
        return None
    return found


def main() -> None:
    """Writes this rank's report on standard output."""
    data = sys.argv[1] if len(sys.argv) > 1 else None
    print(f"\n{encode(report(data))}", flush=True)


if __name__ == "__main__":
    sys.exit(run_main(main))
