"""Draws curves, bars and matrices by matplotlib, as SVG that takes the colors of its page."""

import io
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import StrMethodFormatter

INK, GRID, FIRST, SECOND = "#a00000", "#a00001", "#a00002", "#a00003"
"""Stand for the colors that the page's style sheet sets, in light and in dark."""
PAGE_COLORS = {
    INK: "currentColor", GRID: "var(--grid)", FIRST: "var(--first)", SECOND: "var(--second)",
}  # fmt: skip
WIDTH = 4.4
"""Inches of 72 units; small, so that the text can be read when a telephone shows it."""
LONGEST_NAME = 14
MAX_TICKS = 62
MAX_COUNTS = 12
"""Names up to which a matrix shows its counts in its cells."""
STYLE: dict[Any, Any] = {
    "font.size": 8.5, "svg.fonttype": "none", "svg.hashsalt": "hvd-train", "text.parse_math": False,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.edgecolor": GRID, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "legend.frameon": False, "lines.linewidth": 1.6, "figure.constrained_layout.use": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a picture: what it is, its points and its color; a faint one is thin and pale."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = FIRST
    faint: bool = False


def curves(
    series: Sequence[Series], *, title: str, x_label: str, y_label: str, log: bool = False,
    from_zero: bool = False,
) -> str:  # fmt: skip
    """Draws lines over one axis.

    Args:
        series: the lines.
        title: what the picture shows, for those who don't see it; their summary is made from
            the ends of the lines.
        x_label: of the axis.
        y_label: of the axis.
        log: whether the values are drawn by their logarithm, if all are positive.
        from_zero: whether the axis of the values starts at 0.

    Returns:
        An svg element.
    """
    with _figure(height=2.6) as figure:
        axes = figure.subplots()
        for one in series:
            width, alpha = (0.8, 0.45) if one.faint else (1.6, 1.0)
            marker = "o" if len(one.x) == 1 else None
            axes.plot(one.x, one.y, color=one.color, linewidth=width, alpha=alpha, label=one.name,
                      marker=marker, markersize=4)  # fmt: skip
        axes.set(xlabel=x_label, ylabel=y_label)
        if log and all(min(one.y) > 0 for one in series):
            axes.set_yscale("log", subs=(2, 5))
            for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                which(StrMethodFormatter("{x:g}"))
        if from_zero:
            axes.set_ylim(bottom=0)
        if len(series) > 1:
            axes.legend()
        return _inline(figure, title, " ".join(map(_summary, series)))


def _summary(series: Series) -> str:
    low, high = min(series.y), max(series.y)
    return (
        f"{series.name}: {series.y[0]:.4g} at {series.x[0]:.4g}, {series.y[-1]:.4g} at "
        f"{series.x[-1]:.4g}; between {low:.4g} and {high:.4g}."
    )


def bars(names: Sequence[str], values: Sequence[float], *, title: str, y_label: str) -> str:
    """Draws a bar from 0 on for each name; an svg element."""
    with _figure(height=2.4) as figure:
        axes = figure.subplots()
        axes.bar(range(len(names)), values, color=SECOND, width=0.75)
        axes.set(ylabel=y_label, xlim=(-0.7, len(names) - 0.3))
        axes.grid(visible=False, axis="x")
        _name_ticks(axes, names, "x")
        order = np.argsort(values)[::-1]
        highest = ", ".join(f"{names[place]} {values[place]:.3f}" for place in order[:3])
        return _inline(figure, title, f"{len(names)} bars. The highest: {highest}.")


def matrix(counts: np.ndarray, names: Sequence[str], *, title: str) -> str:
    """Draws which name, by row, was taken for which, by column.

    A cell is as strong as its share of the row; mistakes by the root of it, for rare ones to be
    seen.

    Args:
        counts: int64 [n, n].
        names: n of them.
        title: what it shows.

    Returns:
        An svg element.
    """
    rows, columns = np.nonzero(counts)
    of_row = counts[rows, columns] / counts.sum(axis=1)[rows]
    right = rows == columns
    shows_counts = len(names) <= MAX_COUNTS
    faintest, strongest = (0.1, 0.5) if shows_counts else (0.3, 1.0)
    strength = np.where(right, of_row, np.sqrt(of_row)) * (strongest - faintest) + faintest
    with _figure(height=WIDTH) as figure:
        axes = figure.subplots()
        axes.grid(visible=False)
        for own, color in ((right, FIRST), (~right, SECOND)):
            cells = [
                Rectangle((float(column) - 0.5, float(row) - 0.5), 1, 1)
                for row, column in zip(rows[own], columns[own], strict=True)
            ]
            colors = [(color, float(alpha)) for alpha in strength[own]]
            axes.add_collection(PatchCollection(cells, facecolors=colors, linewidths=0))
        size = len(names)
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal",
                 xlabel="taken for", ylabel="truth")  # fmt: skip
        _name_ticks(axes, names, "x")
        _name_ticks(axes, names, "y")
        if shows_counts:
            for row, column in zip(rows, columns, strict=True):
                axes.text(int(column), int(row), str(counts[row, column]), ha="center", va="center",
                          fontsize=7)  # fmt: skip
        mistakes = int(counts.sum() - counts.trace())
        return _inline(
            figure, title,
            f"{size} rows and columns; {mistakes} of {int(counts.sum())} are beside the diagonal. "
            "The table of confusions lists the most frequent.",
        )  # fmt: skip


def _name_ticks(axes: Axes, names: Sequence[str], which: Literal["x", "y"]) -> None:
    """Names the places of an axis, as many as fit."""
    shown = [name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "…" for name in names]
    places = range(0, len(shown), -(-len(shown) // MAX_TICKS))
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(list(places), [shown[place] for place in places])
    size = 8.5 if len(places) <= 30 else 6
    upright = which == "x" and max(map(len, shown), default=0) > 1
    axes.tick_params(which, labelsize=size, labelrotation=90 if upright else 0, length=0)


@contextmanager
def _figure(*, height: float) -> Iterator[Figure]:
    """A figure in our style; names may have characters that matplotlib's own font lacks."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield Figure(figsize=(WIDTH, height))


def _inline(figure: Figure, title: str, description: str) -> str:
    """The figure as an svg element for a page: with words, and without what belongs to a file."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    head = re.search(r'<svg[^>]*viewBox="([^"]*)"[^>]*>', text)
    assert head is not None
    # Its style sheet would hold for the whole page.
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", text[head.end() :], flags=re.S)
    used = set(re.findall(r"<[^>]*#([\w-]+)[)\"]", body))
    prefix = re.sub(r"\W+", "-", title.lower()) + "-"
    body = re.sub(r"<[^>]*>", lambda tag: _inline_tag(tag[0], used, prefix), body)
    return (
        f'<svg viewBox="{head[1]}" role="img" aria-label="{escape(title)}. {escape(description)}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{body}"
    )


def _inline_tag(tag: str, used: Collection[str], prefix: str) -> str:
    """A tag of a picture with the page's font and colors, and ids that no other picture has."""
    tag = re.sub(
        r' id="([^"]*)"', lambda own: f' id="{prefix}{own[1]}"' if own[1] in used else "", tag
    )
    tag = re.sub(r'(url\(|xlink:href="|href=")#', rf"\g<1>#{prefix}", tag)
    tag = re.sub(r" font-family: [^;\"]*;", "", tag)
    for stand_in, color in PAGE_COLORS.items():
        tag = tag.replace(stand_in, color)
    return tag.replace("\n", "")
