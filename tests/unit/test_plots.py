"""Pictures that stand in a page among others, with whatever names, and say what they show."""

import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest

from hvd_train import plots
from hvd_train.plots import Series

HOSTILE = ["<script>alert(1)</script>", '"><img src=//x>', "$\\frac{1$", "a0000#\x00\n", "日本", ""]


class Tags(HTMLParser):
    """The tags of a text with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def pictures() -> list[str]:
    line = Series("test", [1, 2, 3], [0.5, 0.25, 0.75], plots.SECOND)
    return [
        plots.curves([line], title="Loss", x_label="epoch", y_label="loss"),
        plots.curves(
            [Series("a batch", [0, 3], [90, 0.1], faint=True), line], title="Rate",
            x_label="epoch", y_label="rate", log=True,
        ),
        plots.bars(HOSTILE, [0.1] * 6, title="Errors", y_label="share"),
        plots.matrix(np.arange(36).reshape(6, 6), HOSTILE, title='Taken "for" <what>'),
    ]  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_pictures_bear_words_and_hostile_names_stay_text() -> None:
    for picture in pictures():
        found = Tags(picture)
        names = {tag for tag, _ in found.tags}
        assert names <= {"svg", "title", "desc", "defs", "g", "path", "use", "text", "clippath",
                         "rect"}  # fmt: skip
        root = found.tags[0][1]
        assert (found.tags[0][0], root["role"]) == ("svg", "img")
        assert str(root["aria-label"]).strip()
    assert "<script>alert(…" in Tags(pictures()[2]).text


def test_ids_are_of_one_picture_alone_and_all_that_is_referred_to_is_there() -> None:
    page = "".join(pictures())
    ids = Counter(attributes["id"] for _, attributes in Tags(page).tags if "id" in attributes)
    assert max(ids.values()) == 1
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", page)) == set(ids)


def test_colors_are_the_page_s_own_and_nothing_is_fetched() -> None:
    for picture in pictures():
        colors = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", picture))
        assert colors <= {"none", *plots.PAGE_COLORS.values()}
        assert "http" not in picture
        assert "font-family" not in picture
        assert "<style" not in picture


def test_the_words_tell_ends_and_bounds_of_each_line() -> None:
    label = Tags(pictures()[0]).tags[0][1]["aria-label"]
    assert label == "Loss. test: 0.5 at 1, 0.75 at 3; between 0.25 and 0.75."


def test_only_cells_that_count_are_drawn_and_few_names_show_counts() -> None:
    counts = np.diag([5, 7, 9])
    counts[0, 2] = 3
    picture = plots.matrix(counts, ["a", "b", "c"], title="Confusion")
    assert len(re.findall(r"fill: var\(--first\)", picture)) == 3
    assert len(re.findall(r"fill: var\(--second\)", picture)) == 1
    _, _, drawn = Tags(picture).text.partition("most frequent.")
    assert drawn.split() == ["a", "b", "c", "taken", "for", "a", "b", "c", "truth", *"5379"]
    assert "3 of 24 are beside the diagonal" in picture
