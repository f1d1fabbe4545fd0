"""Trains on every small number of examples and batch, on 1 to 4 ranks: no deadlock, exact counts.

    .venv/bin/python benchmarks/rank_grid.py --save                 (make rank-grid)

All runs of a number of ranks happen inside one mpirun: two epochs and a remainder of a tiny linear
model by `train_and_evaluate`, with evaluations of another split. Each batch is tried both as that
of a rank and as that of all ranks. Of every run the ranks compare what each of them trained and
evaluated on:

- all take the same number of steps, the fewest that cover the epochs;
- an epoch is every example exactly once, and the last one reaches as far as the steps do;
- each evaluation is every example of its split exactly once, fewer than ranks among them;
- a batch that doesn't fit is refused by all ranks.
"""

import argparse
import contextlib
import io
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import BIN, add_save, environment, report
from PIL import Image

from data_tools import cli, launch_env

EPOCHS = 2.3
BATCHES = (1, 2, 3, 7)
COUNTED = (
    "runs trained", "examples trained on", "evaluations", "examples evaluated",
    "runs refused by all ranks alike",
)  # fmt: skip
FOUND = "found "
"""Begins the line in which the chief tells what came of all runs."""


def main() -> None:
    """Makes the data and starts the ranks; in a rank, trains."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--examples", type=int, nargs="+", default=list(range(1, 42)))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)  # given to the ranks
    add_save(parser)
    arguments = parser.parse_args()
    if arguments.data is not None:
        train_grid(arguments.data, arguments.examples, arguments.batches)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = make_splits(Path(folder), arguments.examples)
        lines = [run_ranks(size, data, arguments) for size in arguments.ranks]
    wanted = f"{arguments.examples[0]}..{arguments.examples[-1]} examples"
    batches = ", ".join(map(str, arguments.batches))
    report([f"- {wanted}, batches of {batches}:", *lines], save=arguments.save)


def make_splits(folder: Path, sizes: Sequence[int]) -> Path:
    """Makes a data set that has a split for each number of examples, of captchas of a letter."""
    rng = np.random.default_rng(0)
    for size in sizes:
        images = folder / "images" / split_of(size)
        images.mkdir(parents=True)
        for number in range(size):
            pixels = rng.integers(0, 256, (4, 4, 3), np.uint8)
            Image.fromarray(pixels).save(images / f"{'AB'[number % 2]}_{number}.png")
    splits = ",".join(f"{split_of(size)}={split_of(size)}" for size in sizes)
    command = [
        "captcha-to-tfrecord", folder / "images", "-", folder / "set", "--label-from-name",
        "^[^_]+", "--split-folders", splits, "--charset", "AB", "--workers", 1,
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        if cli.main(list(map(str, command))):
            sys.exit("the data set was not made")
    return folder / "set"


def split_of(size: int) -> str:
    """The split of so many examples."""
    return f"of_{size}"


def run_ranks(size: int, data: Path, arguments: argparse.Namespace) -> str:
    """Runs the whole grid on so many ranks, and returns what they tell."""
    command = [
        str(BIN / "mpirun"), "--oversubscribe", "-np", str(size), sys.executable, __file__,
        "--data", str(data), "--examples", *map(str, arguments.examples),
        "--batches", *map(str, arguments.batches),
    ]  # fmt: skip
    start = time.perf_counter()
    # Ranks that deadlock never end; an hour is many times what the grid takes.
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=3600, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(FOUND)]
    if done.returncode or len(found) != 1:
        sys.exit(f"{size} ranks failed\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    seconds = time.perf_counter() - start
    return f"- {size} ranks: {found[0].removeprefix(FOUND)}, in {seconds:.0f} s"


def train_grid(data: Path, sizes: Sequence[int], batches: Sequence[int]) -> None:
    """Trains every run of the grid on this rank."""
    from hvd_train import threads

    launch = launch_env.read()
    threads.configure(launch)
    import tensorflow as tf

    from hvd_train import dist

    # Tracing takes longer than such a run; the loop, the order and the collectives are the same.
    tf.config.run_functions_eagerly(True)
    world = dist.init(launch)
    totals = Counter(dict.fromkeys(COUNTED, 0))
    with tempfile.TemporaryDirectory() as folder:
        for number, (examples, batch) in enumerate(grid(sizes, batches, world.size)):
            tested = sizes[-1 - sizes.index(examples)]
            flags = [
                "--data", str(data), "--train-split", split_of(examples),
                "--test-split", split_of(tested), "--global-batch", str(batch),
                "--epochs", str(EPOCHS), "--model", "linear", "--augment", "none",
                "--runs-dir", folder, "--name", str(number), "--seed", str(number),
            ]  # fmt: skip
            totals.update(train_one(flags, examples, tested, batch, world))
    if world.is_chief:
        counted = ", ".join(f"{count} {what}" for what, count in totals.items())
        print(f"{FOUND}{counted}", flush=True)


def grid(sizes: Sequence[int], batches: Sequence[int], ranks: int) -> list[tuple[int, int]]:
    """Every number of examples with every global batch."""
    whole = sorted({batch * ranks for batch in batches} | set(batches))
    return [(examples, batch) for examples in sizes for batch in whole]


def train_one(
    flags: Sequence[str], examples: int, tested: int, batch: int, world: Any
) -> Counter[str]:
    """Trains one run, compares what all ranks saw, and counts."""
    from data_tools.errors import CONFIG, EXIT_CODES, DataError
    from hvd_train import config, config_files, dist, task, train

    settings, given = config_files.parse_config(config.CaptchaConfig, flags, prog="rank_grid.py")
    trained: list[list[int]] = []
    evaluated: list[list[int]] = []
    refused = 0
    with (
        recorded(trained, evaluated),
        contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()),
    ):  # fmt: skip
        try:
            train.train_and_evaluate(task.CAPTCHA, settings, given, world)
        except SystemExit as stop:  # agreed by all ranks
            refused = int(stop.code or 0)
        except DataError as error:  # of one rank alone
            refused = EXIT_CODES[error.kind]
    of_all = dist.allgather_json([refused, trained, evaluated])
    where = f"{examples} examples, a batch of {batch}, {world.size} ranks"
    if batch > examples or batch < world.size:
        assert of_all == [[EXIT_CODES[CONFIG], [], []]] * world.size, f"{where}: not refused"
        return Counter({COUNTED[-1]: 1})
    assert not any(code for code, *_ in of_all), f"{where}: {of_all}"
    check_trained([of_one for _, of_one, _ in of_all], examples, batch, where)
    evaluations = check_evaluated([of_one for *_, of_one in of_all], tested, where)
    counts = (1, len(trained) * batch, evaluations, evaluations * tested)
    return Counter(dict(zip(COUNTED[:-1], counts, strict=True)))


def check_trained(of_ranks: list[list[list[int]]], examples: int, batch: int, where: str) -> None:
    """Checks steps, shares, and that each epoch is every example once."""
    steps = math.ceil(EPOCHS * examples / batch)
    assert {len(of_one) for of_one in of_ranks} == {steps}, f"{where}: unequal steps"
    stream: list[int] = []
    for shares in zip(*of_ranks, strict=True):
        sizes = [len(share) for share in shares]
        assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1, f"{where}: shares {sizes}"
        assert sum(sizes) == batch, f"{where}: a step of {sum(sizes)}"
        stream += [example for share in shares for example in share]
    for start in range(0, len(stream), examples):
        epoch = stream[start : start + examples]
        whole = set(range(examples))
        right = set(epoch) == whole if len(epoch) == examples else set(epoch) < whole
        assert right and len(set(epoch)) == len(epoch), f"{where}: an epoch of {epoch}"


def check_evaluated(of_ranks: list[list[list[int]]], tested: int, where: str) -> int:
    """Checks that each evaluation is every example once, and returns how many there were."""
    (count,) = {len(of_one) for of_one in of_ranks}
    assert count >= 1, f"{where}: no evaluation"
    for shares in zip(*of_ranks, strict=True):
        ids = sorted(example for share in shares for example in share)
        assert ids == list(range(tested)), f"{where}: evaluated {ids}"
    return count


@contextlib.contextmanager
def recorded(trained: list[list[int]], evaluated: list[list[int]]) -> Iterator[None]:
    """Notes the examples of each step and of each evaluation of this rank."""
    from hvd_train.evaluator import Evaluator
    from hvd_train.trainer import Trainer

    real_step, real_run, real_batches = Trainer.step, Evaluator.run, Evaluator._own_batches

    def step(self: Any, batch: Any, **rest: Any) -> Any:
        trained.append(batch.ids.tolist())
        return real_step(self, batch, **rest)

    def run(self: Any, *args: Any) -> Any:
        evaluated.append([])
        return real_run(self, *args)

    def own_batches(self: Any) -> Iterator[Any]:
        for batch in real_batches(self):
            evaluated[-1] += batch.ids.tolist()
            yield batch

    Trainer.step, Evaluator.run, Evaluator._own_batches = step, run, own_batches
    try:
        yield
    finally:
        Trainer.step, Evaluator.run, Evaluator._own_batches = real_step, real_run, real_batches


if __name__ == "__main__":
    main()
