"""What one rank does for test_evaluate_runs.py: trains a small run, then evaluates it in many ways.

python evaluate_ranks.py SETS OUT runs under mpirun or alone. All runs are in OUT/runs. What a case
printed, and its exit code, is in OUT/NAME-RANK.out, .err and .code; eval.json after it, on which
the others build, in OUT/NAME.json.
"""

import shutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

from bad_input import WHOLE_FLAGS
from bad_ranks import LAUNCH, run_case
from small_sets import texts, write_set

from hvd_train import cli, dist

RUN = "runs/captcha"
TRAINED = "trained"
DAMAGED = {"newest_damaged": (6,), "all_damaged": (2, 4, 6)}
"""Copies of the run, and the steps of their broken checkpoints."""
GOOD = {
    "plain": [RUN],
    "both": [RUN, "--both"],
    "train": [RUN, "--split", "train"],
    "other_data": [RUN, "--data", "{sets}/fewer", "--no-ema"],
    "watched": [RUN, "--watch"],
    "newest_damaged": ["runs/newest_damaged"],
}
"""Cases that end well."""
BAD = {
    "no_folder": ["runs/nothing"],
    "no_run": ["runs"],
    "no_checkpoint": ["runs/no_checkpoint"],
    "no_data": [RUN, "--data", "nowhere"],
    "other_kind": [RUN, "--data", "{sets}/cifar10"],
    "other_charset": [RUN, "--data", "{sets}/alnum"],
    "other_size": [RUN, "--data", "wide"],
    "other_lengths": [RUN, "--data", "long"],
    "unknown_split": [RUN, "--split", "val"],
    "empty_split": [RUN, "--data", "empty"],
    "all_damaged": ["runs/all_damaged"],
    "others_can_write": ["runs/others_can_write"],
    "no_task": [RUN, "--task", "photos:TASK"],
    "both_and_one": [RUN, "--both", "--no-ema"],
    "broken_shard": [RUN, "--data", "broken"],
}
"""Cases that must fail."""


def main(sets: Path, out: Path) -> None:
    """Runs the cases."""
    world = dist.init(LAUNCH)
    trained = ["--data", str(sets / "captcha"), *WHOLE_FLAGS]
    run_case(out, trained, out / f"{TRAINED}-{world.rank}")
    if world.is_chief:
        prepare(sets, out)
    dist.broadcast_json(None)
    cases = GOOD | BAD | ({"other_flags": [RUN]} if world.size > 1 else {})
    for name, argv in cases.items():
        words = ["evaluate", *(word.format(sets=sets) for word in argv)]
        if name == "other_flags" and world.rank == 1:
            words += ["--split", "train"]
        run_case(out, words, out / f"{name}-{world.rank}", cli.main)
        dist.broadcast_json(None)
        if world.is_chief:
            shutil.copy(out / RUN / "eval.json", out / f"{name}.json")


def prepare(sets: Path, out: Path) -> None:
    """Makes runs and data sets that have something wrong."""
    run = out / RUN
    shutil.copy(run / "eval.json", out / f"{TRAINED}.json")
    for name, steps in DAMAGED.items():
        copy = shutil.copytree(run, out / "runs" / name)
        for step in steps:
            (copy / "checkpoints" / f"step-{step:08d}" / "weights.npz").write_bytes(b"broken")
    shutil.rmtree(shutil.copytree(run, out / "runs" / "no_checkpoint") / "checkpoints")
    shutil.copytree(run, out / "runs" / "others_can_write").chmod(0o757)
    write_set(out / "wide", train=texts(3), test=texts(3), size=(20, 160))
    write_set(out / "long", train=texts(3, lengths=[5]), test=texts(3, lengths=[4]))
    write_set(out / "empty", train=texts(3), test=[])
    broken = shutil.copytree(sets / "captcha", out / "broken")
    # Another split's shard isn't looked at.
    for path in (*broken.glob("*-test.tfrecord-00000-*"), *broken.glob("*-train.tfrecord-*")):
        path.write_bytes(b"\0" * path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
