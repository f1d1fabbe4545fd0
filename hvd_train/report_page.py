"""The page of `hvd_train report`: what is known of a run, set into its template."""

import base64
import importlib.resources
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from data_tools import images
from data_tools.errors import one_line
from hvd_train import config_files, history, plots, results
from hvd_train.evaluator import label_names
from hvd_train.history import ELAPSED, Line, evaluated_splits, of_split
from hvd_train.metric_writer import TRAIN
from hvd_train.plots import Series
from hvd_train.saved_run import SavedRun, training_program
from hvd_train.scores import Mistake, Scores

TEMPLATE = "report.html.jinja"
NUM_CONFUSIONS = 12
THUMBNAIL = 160
"""Pixels that a thumbnail is wide at least: smaller images are magnified by a whole number."""
MAX_STORED = 320
"""Pixels a side beyond which a thumbnail is scaled down, or the page would be too large."""
PARTS = {
    "compute": "computation and allreduce", "allreduce_estimate": "of it allreduce, an estimate",
    "input_wait": "wait for input", "evaluation": "evaluation", "checkpoints": "checkpoints",
    "summaries": "summaries for TensorBoard",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scored:
    """How a checkpoint reads a split.

    Attributes:
        step: of the checkpoint.
        split: its name.
        scores: the counts and the worst mistakes.
        pictures: of those mistakes, uint8 [n, H, W, C].
    """

    step: int
    split: str
    scores: Scores
    pictures: np.ndarray


def render(
    saved: SavedRun, lines: Sequence[Line], result: Line, scored: Scored | None,
    notes: Sequence[str], *, task_path: str | None,
) -> str:  # fmt: skip
    """Returns the page.

    Args:
        saved: the run.
        lines: what it has measured, at least one.
        result: what its eval.json says, if there is one.
        scored: how it reads a split, if that could be found out.
        notes: what is missing, and why.
        task_path: MODULE:NAME of the user's own task.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["clean"] = one_line  # names may hold anything
    template = importlib.resources.files("hvd_train").joinpath(TEMPLATE).read_text("utf-8")
    return environment.from_string(template).render(
        name=saved.folder.resolve().name,
        metric=saved.task.metric_in_words,
        status=_status(saved, lines, result),
        notes=notes,
        tiles=_tiles(saved, lines, result, scored),
        curves=_curves(saved, lines),
        scored=_scored(saved, scored) if scored else None,
        times=_times(result),
        settings=_settings(saved),
        versions=result.get("versions", {}),
        manifest=saved.manifest,
        digest=saved.digest,
        arguments=_arguments(saved),
        command=_command(saved, result, task_path),
    )


def _status(saved: SavedRun, lines: Sequence[Line], result: Line) -> str:
    done, total = history.steps_done(lines), history.total_steps(saved)
    if done >= total and results.OF_TRAINER in result:
        state = f"ended after all {total:,} steps"
    elif results.OF_TRAINER in result:
        state = f"stopped early after {done:,} of {total:,} steps"
    else:
        state = f"not at its end: {done:,} of {total:,} steps are done"
    return f"{saved.task.name}, {state}; last measured {lines[-1]['time'][:19]}"


def _tiles(
    saved: SavedRun, lines: Sequence[Line], result: Line, scored: Scored | None
) -> list[tuple[str, str, str]]:
    """The figures at the head of the page: what, how much, and of what."""
    done, batch = history.steps_done(lines), saved.config.optim.global_batch
    steps = f"{history.epoch(saved, done):.4g} epochs of {batch} examples a step"
    tiles = [("steps", f"{done:,}", steps)]
    if "ranks" in result:
        tiles.append(("ranks", f"{result['ranks']}", f"{batch} examples a step"))
    rate = history.examples_per_sec(lines)
    if rate is not None:
        tiles.append(("examples/sec", f"{rate:,.0f}", "over all ranks, median of the lines"))
    tiles.append(
        ("time", history.duration(lines[-1][ELAPSED]), "from the first step to the last line")
    )
    if memory := result.get("memory_mib"):
        most = max(peak for _, peak in memory)
        tiles.append(("memory", f"{most:,} MiB", "the most that a rank has held"))
    return [*_accuracy(saved, lines, result, scored), *tiles]


def _accuracy(
    saved: SavedRun, lines: Sequence[Line], result: Line, scored: Scored | None
) -> list[tuple[str, str, str]]:
    """The tile of the newest checkpoint's accuracy, or of the last one that was measured."""
    words, metric = saved.task.metric_in_words, saved.task.metric
    if scored is not None:
        correct, examples = scored.scores.correct, scored.scores.examples
        step, split = scored.step, scored.split
    elif "correct" in result:
        correct, examples = result["correct"], result["examples"]
        step, split = result["step"], result["split"]
    else:
        evaluated = [line for line in lines if line["split"] != TRAIN and metric in line]
        return [
            (words, f"{line[metric]:.3f}", f"of {line['split']} after step {line['step']}")
            for line in evaluated[-1:]
        ]
    of = f"{correct:,} of {examples:,} of {split}, checkpoint of step {step:,}"
    return [(words, f"{correct / examples:.3f}", of)]


def _curves(saved: SavedRun, lines: Sequence[Line]) -> list[tuple[str, Markup]]:
    """The pictures over epochs, with their titles."""

    def series(
        name: str, split: str, number: str, color: str = plots.FIRST, *, faint: bool = False
    ) -> list[Series]:
        found = of_split(lines, split, number)
        if number == "examples_per_sec":
            found = found[1:]  # the first step is compiled in its time
        epochs = [history.epoch(saved, line["step"]) for line in found]
        values = [line[number] for line in found]
        return [Series(name, epochs, values, color, faint)] if found else []

    def evaluations(number: str) -> list[Series]:
        colors = zip(evaluated_splits(lines), (plots.SECOND, plots.INK), strict=False)
        return [one for split, color in colors for one in series(split, split, number, color)]

    def picture(title: str, drawn: list[Series], y: str, **look: bool) -> list[tuple[str, Markup]]:
        if not drawn:
            return []
        svg = plots.curves(drawn, title=f"{title} by epoch", x_label="epoch", y_label=y, **look)
        return [(title, Markup(svg))]

    metric, words = saved.task.metric, saved.task.metric_in_words
    losses = [
        *series("a batch", TRAIN, "cross_entropy", faint=True),
        *series("training, smoothed", TRAIN, "cross_entropy_smoothed"),
        *evaluations("loss"),
    ]
    shares = [*series("a batch", TRAIN, metric, faint=True), *evaluations(metric)]
    rates = series("learning rate", TRAIN, "learning_rate")
    speeds = series("examples/sec", TRAIN, "examples_per_sec")
    return [
        *picture("Loss", losses, "loss without weight decay", log=True),
        *picture(words.capitalize(), shares, words),
        *picture("Learning rate", rates, "learning rate"),
        *picture("Examples/sec", speeds, "examples/sec", from_zero=True),
    ]


def _scored(saved: SavedRun, scored: Scored) -> dict[str, Any]:
    """What the page tells of right and wrong labels."""
    scores, manifest = scored.scores, saved.manifest
    names = [one_line(name) for name in label_names(manifest)]
    what = "class" if manifest.classes is not None else "character"
    rows = _shares(names, scores.names)
    bars = plots.bars(
        [row[0] for row in rows], [1 - row[3] for row in rows],
        title=f"Errors by {what}", y_label="share read wrong",
    )  # fmt: skip
    return {
        "step": scored.step,
        "split": scored.split,
        "examples": scores.examples,
        "wrong": scores.examples - scores.correct,
        "what": what,
        "names": rows,
        "positions": _shares(range(1, len(scores.positions) + 1), scores.positions),
        "bars": Markup(bars),
        "matrix": _matrix(scores, names),
        "confusions": _confusions(scores.confusion, names),
        "worst": [
            _thumbnail(mistake, pixels, of_characters=manifest.label is not None)
            for mistake, pixels in zip(scores.worst, scored.pictures, strict=True)
        ],
    }


def _shares(names: Iterable[Any], counts: np.ndarray) -> list[tuple[Any, int, int, float]]:
    """Of each name that there is: right, how many, and the share."""
    return [
        (name, int(right), int(there), right / there)
        for name, (there, right) in zip(names, counts, strict=True)
        if there
    ]


def _matrix(scores: Scores, names: Sequence[str]) -> Markup:
    """The picture of the confusion matrix, of the names that occur; empty if none is counted."""
    if not scores.confusion.size:
        return Markup()
    seen = (scores.confusion.sum(axis=0) > 0) | (scores.confusion.sum(axis=1) > 0)
    own = [name for name, is_seen in zip(names, seen, strict=True) if is_seen]
    counts = scores.confusion[np.ix_(seen, seen)]
    return Markup(plots.matrix(counts, own, title="Confusion matrix"))


def _confusions(confusion: np.ndarray, names: Sequence[str]) -> list[tuple[str, str, int, float]]:
    """The most frequent confusions: truth, guess, how often, and the share of the truth's."""
    if not confusion.size:
        return []
    wrong = confusion * (1 - np.eye(len(confusion), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:NUM_CONFUSIONS]
    pairs = [divmod(int(place), len(confusion)) for place in order]
    return [
        (names[truth], names[guess], int(wrong[truth, guess]),
         float(wrong[truth, guess] / confusion[truth].sum()))
        for truth, guess in pairs
        if wrong[truth, guess]
    ]  # fmt: skip


def _thumbnail(mistake: Mistake, pixels: np.ndarray, *, of_characters: bool) -> dict[str, Any]:
    """A mistake with its picture."""
    height, width = pixels.shape[:2]
    if max(height, width) > MAX_STORED:
        share = MAX_STORED / max(height, width)
        pixels = images.resize(pixels, max(1, round(width * share)), max(1, round(height * share)))
        height, width = pixels.shape[:2]
    by = max(1, THUMBNAIL // width)
    png = images.encode_png(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return {
        "truth": one_line(mistake.truth),
        "guess": one_line(mistake.guess),
        "characters": marked(mistake, of_characters=of_characters),
        "probability": mistake.probability,
        "probability_of_truth": mistake.probability_of_truth,
        "width": width * by,
        "height": height * by,
        "source": "data:image/png;base64," + base64.b64encode(png).decode(),
    }


def marked(mistake: Mistake, *, of_characters: bool) -> list[tuple[str, bool]]:
    """The guess in parts, and whether each is wrong; whole where places have no counterparts."""
    if not of_characters or len(mistake.truth) != len(mistake.guess):
        return [(one_line(mistake.guess), False)]
    pairs = zip(mistake.guess, mistake.truth, strict=True)
    return [(char, char != right) for char, right in pairs]


def _times(result: Line) -> list[tuple[str, float, float, float]]:
    """The parts of the time: mean and longest over the ranks in seconds, and share of the whole."""
    seconds: Sequence[Mapping[str, float]] = result.get("seconds", [])
    if not seconds:
        return []
    total = statistics.fmean(rank["total"] for rank in seconds)
    return [
        (words, mean := statistics.fmean(rank[part] for rank in seconds),
         max(rank[part] for rank in seconds), mean / total)
        for part, words in PARTS.items()
    ]  # fmt: skip


def _settings(saved: SavedRun) -> list[tuple[str, Any, Any]]:
    """Each setting, its value and its default."""
    defaults = config_files.to_save(type(saved.config)())
    values = config_files.to_save(saved.config)
    return [(name, values[name], default) for name, default in defaults.items()]


def _arguments(saved: SavedRun) -> list[str]:
    """The flags that the data set was converted with, without those that say nothing."""
    arguments: list[str] = saved.manifest.created_from.get("arguments", [])
    return [text for text in arguments if text.partition("=")[2] not in ("None", "False")]


def _command(saved: SavedRun, result: Line, task_path: str | None) -> str:
    """The command that trains the same again, by flags alone."""
    ranks = result.get("ranks", 1)
    launch = [] if ranks == 1 else ["horovodrun", "-np", str(ranks)]
    changed = {name: value for name, value, default in _settings(saved) if value != default}
    name = f"--name={saved.folder.resolve().name}-again"
    return shlex.join(
        [*launch, *training_program(saved, task_path), *config_files.flags_of(changed), name]
    )
