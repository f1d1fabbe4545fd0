"""Converts to 32 disks too small or just large enough: SPACE and nothing left, or a whole set.

    .venv/bin/python benchmarks/full_disk.py --save                 (make full-disk)

The disks are tmpfs of sizes from one page to what the set takes, mounted where only this process
sees them, so it needs root. With --overwrite the old set stays as it was.
"""

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable

from harness import add_save, report, scratch
from kill_points import CASES, Prepared, content, prepare, run_here

from data_tools import cli

SIZES = 32
CONVERSIONS = ("captcha", "captcha, --overwrite", "cifar", "cifar, --overwrite")
CANNOT_MOUNT = 99
ALONE = "FULL_DISK_MOUNTS_ALONE"


def main() -> None:
    """Starts itself again where its mounts are its own, and runs all conversions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_save(parser)
    arguments = parser.parse_args()
    if ALONE not in os.environ:
        if os.geteuid() or shutil.which("unshare") is None:
            print("it needs root and unshare, to mount a tmpfs", file=sys.stderr)
            sys.exit(CANNOT_MOUNT)
        again = ["unshare", "--mount", sys.executable, *sys.argv]
        sys.exit(subprocess.run(again, env={**os.environ, ALONE: "1"}, check=False).returncode)
    lines = ["| conversion | SPACE, nothing left | whole | s |", "| --- | --- | --- | --- |"]
    for name in CONVERSIONS:
        start = time.monotonic()
        with scratch() as folder:
            prepared = prepare(folder, CASES[name])
            done = Counter(fill(prepared, size) for size in sizes(prepared))
        assert done[True] and done[False], (name, done)
        seconds = time.monotonic() - start
        lines.append(f"| {name} | {done[False]} | {done[True]} | {seconds:.0f} |")
    report(lines, save=arguments.save)


def sizes(prepared: Prepared) -> list[int]:
    """The bytes of the disks: on the last there is room for the set, beside an old one."""
    page = os.sysconf("SC_PAGESIZE")
    old, new = (pages(made.values(), page) for made in (prepared.old, prepared.new))
    # Each folder takes a page beside its files, and each shard's lengths do until they are offsets.
    most = new + sum(".tfrecord-" in name for name in prepared.new) + 2
    return [page * (old + max(1, most * step // SIZES)) for step in range(1, SIZES + 1)]


def pages(files: Iterable[bytes], page: int) -> int:
    """The pages that files take."""
    return sum(-(-len(data) // page) for data in files)


def fill(prepared: Prepared, size: int) -> bool:
    """Converts to a disk of a size and returns whether the set got room.

    Raises:
        AssertionError: the set is there but not whole, or the command left anything.
    """
    disk = prepared.out.parent
    shutil.rmtree(disk)
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}"]
    if subprocess.run(["mount", *options, "tmpfs", disk], check=False).returncode:
        sys.exit(CANNOT_MOUNT)
    try:
        return converted(prepared, size)
    finally:
        subprocess.run(["umount", disk], check=True)


def converted(prepared: Prepared, size: int) -> bool:
    """See `fill`."""
    out, said = prepared.out, io.StringIO()
    if prepared.old:
        shutil.copytree(out.parent.parent / "old", out)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = cli.main(list(prepared.command))
    found = content(out) if out.exists() else {}
    left = {path.name for path in out.parent.iterdir()}
    if code == 0:
        run_here(["verify", str(out), "--deep"])
        assert (found, left) == (prepared.new, {out.name}), size
        return True
    assert code == 5, (size, said.getvalue())
    assert said.getvalue().startswith(f"error: SPACE: {out.parent}"), (size, said.getvalue())
    assert found == prepared.old, size
    assert left == ({out.name} if prepared.old else set()), (size, left)
    return False


if __name__ == "__main__":
    main()
