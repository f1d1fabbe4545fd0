"""What one rank does for test_bad_input.py: every case of bad_input.py in turn.

python bad_ranks.py SETS OUT runs under mpirun or alone. A case runs in the folder OUT/NAME; its
exit code and output go to OUT/NAME-RANK.code, .out and .err; OUT/NAME.json tells which files were
there before.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bad_input import CASES, GOOD, STOPPED, Place, files_below

from data_tools import launch_env
from hvd_train import threads

LAUNCH = launch_env.read()
threads.configure(LAUNCH)

from hvd_train import captcha, dist


def main(sets: Path, out: Path) -> None:
    """Runs every case in turn on this rank."""
    world = dist.init(LAUNCH)
    good = [(name, flags, prepare, True, None) for name, (flags, prepare) in GOOD.items()]
    bad = [
        (name, case.flags, case.prepare, case.data, case.other)
        for name, case in (CASES | STOPPED).items()
        if world.size in case.sizes
    ]
    for name, flags, prepare, names_data, other in [*good, *bad]:
        place = Place(cwd=out / name, sets=sets, out=out, size=world.size)
        afterwards: object = None
        if world.is_chief:
            place.cwd.mkdir()
            afterwards = prepare(place)
            (out / f"{name}.json").write_text(json.dumps(files_below(place.cwd)))
        dist.broadcast_json(None)  # the others wait for the files
        argv = [*(["--data", str(place.data)] if names_data else []), *flags]
        if world.rank == 1 and other is not None:
            argv += other(place)
        run_case(place.cwd, argv, out / f"{name}-{world.rank}")
        if callable(afterwards):
            afterwards()
        dist.broadcast_json(None)


def run_case(
    cwd: Path,
    argv: Sequence[str],
    report: Path,
    main: Callable[[list[str]], int] = captcha.main,
) -> None:
    """Runs captcha.py, or another program, and writes its exit code and output to REPORT.*"""
    os.chdir(cwd)
    with redirected(1, report.with_suffix(".out")), redirected(2, report.with_suffix(".err")):
        try:
            code: object = main(list(argv))
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
            code = "an exception"
    report.with_suffix(".code").write_text(json.dumps(code))


@contextlib.contextmanager
def redirected(descriptor: int, path: Path) -> Iterator[None]:
    """Sends what is written to a file descriptor into a file, for the block."""
    stream = {1: sys.stdout, 2: sys.stderr}[descriptor]
    stream.flush()
    kept = os.dup(descriptor)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, descriptor)
    try:
        yield
    finally:
        stream.flush()
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
