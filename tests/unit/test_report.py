"""`hvd_train report` and `compare`, on small runs that were really trained."""

import contextlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import browser
import pytest
from small_cifar import binary
from small_sets import texts, write_set
from test_plots import Tags

from data_tools.errors import DataError
from hvd_train.flags import Report

HOSTILE_RUN = "<b>&\"'{{ 7 * 7 }}"
CLASSES = [
    "<script>document.title='taken'</script>", '"><img src=http://host.invalid/x.png>',
    "$\\frac{1$", "{{ 7 * 7 }}", "&lt;", "日本", "a" * 60, "truck", "ship", "frog",
]  # fmt: skip
SHORT = ["--batch-size", "10", "--log-every", "2", "--summary-every", "0"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, run_cli: Callable[..., Any]) -> Path:
    """A folder with data sets, `captcha` and `classes`, and a run of each below runs/."""
    folder = tmp_path_factory.mktemp("place")
    write_set(folder / "captcha", train=texts(40), test=texts(30), encoding="png")
    source = folder / "binary"
    source.mkdir()
    (source / "data_batch_1.bin").write_bytes(binary([(n % 10,) for n in range(30)]))
    (source / "test_batch.bin").write_bytes(binary([(n % 10,) for n in range(20)], first=30))
    (source / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n")
    for command in (
        ["data_tools", "cifar-to-tfrecord", source, "classes"],
        ["hvd_train", "captcha", "--data", "captcha", "--epochs", "2", *SHORT],
        ["hvd_train", "cifar", "--data", "classes", "--name", HOSTILE_RUN, "--steps", "2", *SHORT],
    ):  # fmt: skip
        done = run_cli(command, cwd=folder)
        assert done.rc == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(place: Path, tf: ModuleType) -> dict[str, Path]:
    """The reports of both runs."""
    from hvd_train import report

    runs = {name: place / "runs" / name for name in ("captcha", HOSTILE_RUN)}
    with contextlib.chdir(place):
        for folder in runs.values():
            report.main(Report(run=folder))
    return {name: folder / "report.html" for name, folder in runs.items()}


@pytest.fixture
def run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run of captchas, to be spoilt; the working folder is where it was trained."""
    monkeypatch.chdir(place)
    without_page = shutil.ignore_patterns("report.html")
    folder = place / "runs" / "captcha"
    return Path(shutil.copytree(folder, tmp_path / "captcha", ignore=without_page))


@pytest.fixture
def report(tf: ModuleType) -> Callable[..., Tags]:
    from hvd_train import report

    def write(run: Path, **flags: Any) -> Tags:
        report.main(Report(run=run, **flags))
        return Tags((run / "report.html").read_text())

    return write


def fault(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as raised:
        call()
    return str(raised.value)


def words(page: Tags) -> str:
    return " ".join(page.text.split())


def test_a_report_tells_the_figures_of_the_run_and_shows_its_mistakes(
    pages: dict[str, Path],
) -> None:
    result = json.loads((pages["captcha"].parent / "eval.json").read_text())
    page = Tags(pages["captcha"].read_text())
    told = words(page)
    wrong = result["examples"] - result["correct"]
    for text in (
        f"accuracy {result['accuracy']:.3f} {result['correct']} of 30 of test, checkpoint of step "
        "8 steps",
        "captcha, ended after all 8 steps; last measured 20",
        "8 2 epochs of 10 examples a step ranks 1 10 examples a step",
        f"read {wrong} of the 30 images of test wrong",
        f"4 {round(result['accuracy_by_position'][3] * 30)} 30",
        "hvd_train captcha --data=captcha --global-batch=10 --epochs=2.0 --log-every=2 "
        "--summary-every=0 --name=captcha-again",
        result["data"], "tensorflow 2.",
    ):  # fmt: skip
        assert text in told
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == min(24, wrong)
    for image in images:
        assert re.fullmatch("truth [A-Z]{4}, guess [A-Z]{4}", str(image["alt"]))
        assert (image["width"], image["height"]) == ("160", "40")
        assert str(image["src"]).startswith("data:image/png;base64,")


@pytest.mark.parametrize("name", ["captcha", HOSTILE_RUN])
def test_a_page_is_sound_and_asks_for_nothing(pages: dict[str, Path], name: str) -> None:
    page = Tags(pages[name].read_text())
    names = [tag for tag, _ in page.tags]
    assert page.tags[0] == ("html", {"lang": "en"})
    assert (names.count("title") > 0, names.count("h1"), names.count("main")) == (True, 1, 1)
    levels = [int(tag[1]) for tag in names if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert names.count("caption") == names.count("table")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        assert tag not in ("script", "iframe", "object", "base", "form")
        assert not [name for name in attributes if name.startswith("on")]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "img":
            assert attributes["alt"]
        if "scroll" in str(attributes.get("class", "")).split():
            assert (attributes["tabindex"], attributes["role"]) == ("0", "region")
            assert attributes["aria-label"]
        for address in ("src", "href", "xlink:href"):
            assert str(attributes.get(address, "#")).startswith(("#", "data:"))


def test_colors_stand_out_in_light_and_in_dark(pages: dict[str, Path]) -> None:
    light, dark = re.findall(r":root \{([^}]*)\}", pages["captcha"].read_text())
    for scheme in (light, dark):
        colors = dict(re.findall(r"--([\w-]+): (#\w{6})", scheme))
        for ink in ("ink", "muted", "link", "second"):
            assert min(contrast(colors[ink], colors[on]) for on in ("page", "card")) >= 4.5
        assert contrast(colors["note-ink"], colors["note"]) >= 4.5
        assert contrast(colors["first"], colors["card"]) >= 3


def contrast(one: str, other: str) -> float:
    """By https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_hostile_names_stay_text(pages: dict[str, Path]) -> None:
    page = Tags(pages[HOSTILE_RUN].read_text())
    names = {tag for tag, _ in page.tags}
    assert "script" not in names
    assert {str(a.get("src", "data:"))[:5] for tag, a in page.tags if tag == "img"} == {"data:"}
    told = words(page)
    for name in (HOSTILE_RUN, *CLASSES):
        assert name in told
    assert "precision @ 1" in told
    assert "horovodrun" not in told


def test_what_is_missing_is_said_and_the_rest_shown(
    run: Path, report: Callable[..., Tags], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    page = report(run)
    note = (
        "The run's data set can't be read (captcha: no data set there), so its mistakes aren't "
        "shown; --data names another place."
    )
    assert note in words(page)
    assert "of 30 of test, checkpoint of step 8" in words(page)
    digits = {"train": ["0123"], "test": ["0123"], "charset": "0123456789"}
    write_set(elsewhere / "captcha", **digits)  # where the run had another
    assert "charset is 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', the data set's" in words(report(run))
    shutil.rmtree(run / "checkpoints")
    (run / "eval.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-3]) + lines[-3][:-20])
    page = report(run)
    told = words(page)
    assert "The run has no checkpoint yet, so its mistakes aren't shown." in told
    assert re.search(r"captcha, not at its end: \d of 8 steps are done", told)
    assert "of test after step 4" in told
    assert [tag for tag, _ in page.tags].count("svg") == 4
    assert "img" not in [tag for tag, _ in page.tags]


def test_what_can_not_be_reported_is_one_line_and_leaves_no_page(
    run: Path, report: Callable[..., Tags], place: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    write_set(small, train=texts(4), test=texts(4), size=(12, 80))
    digits = tmp_path / "digits"
    write_set(digits, train=["0123"], test=["0123"], charset="0123456789")
    fix = "name another data set with --data"
    expected = {
        "CONFIG: captcha: no split 'best'; the splits are train, test": {"split": "best"},
        f"CONFIG: {small}: images of 80x12x3, the run's are 80x20x3; {fix}": {"data": small},
        f"CONFIG: {run}: the checkpoint's charset is 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', the data set's "
        f"is '0123456789'; {fix}": {"data": digits},
        f"CONFIG: {place / 'classes'}: a data set of kind classes, captcha needs captcha; name "
        "another with --data": {"data": place / "classes"},
        f"CONFIG: {tmp_path / 'none'}: no data set there; make one: data_tools make-captcha "
        "captcha-images; data_tools captcha-to-tfrecord captcha-images captcha-images/labels.csv "
        "datasets/captcha": {"data": tmp_path / "none"},
    }  # fmt: skip
    assert {
        fault(lambda flags=flags: report(run, **flags)): line for line, flags in expected.items()
    } == {f"error: {line}": line for line in expected}
    newest = next((run / "checkpoints").iterdir())
    (newest / "ema.npz").write_bytes(b"")
    assert fault(lambda: report(run)) == (
        f"error: INTEGRITY: {run / 'checkpoints'}: no checkpoint is whole; start a new run with "
        "--name, or bring back a copy"
    )
    (run / "metrics.jsonl").unlink()
    assert fault(lambda: report(run)) == (
        f"error: INPUT: {run}: the run has measured nothing yet; wait for its first step"
    )
    assert fault(lambda: report(tmp_path / "none")) == (
        f"error: INPUT: {tmp_path / 'none'}: no such folder; name one such as runs/captcha"
    )
    assert not [path for path in run.iterdir() if path.name.startswith("report.html")]


def test_a_damaged_shard_is_told_before_it_is_read(
    run: Path, report: Callable[..., Tags], place: Path, tmp_path: Path
) -> None:
    damaged = Path(shutil.copytree(place / "captcha", tmp_path / "set"))
    shard = next(damaged.glob("*test.tfrecord*"))
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    assert fault(lambda: report(run, data=damaged)).startswith(
        f"error: INTEGRITY: {shard}: SHA-256 "
    )


def test_without_the_programs_that_draw_it_is_one_line(
    run: Path, run_cli: Callable[..., Any]
) -> None:
    script = (
        "import sys; sys.modules['jinja2'] = None; from hvd_train.cli import main; "
        f"sys.exit(main(['report', {str(run)!r}]))"
    )
    done = run_cli(["python", "-c", script])
    assert done.rc == 2
    assert re.fullmatch(
        r"error: CONFIG: \S+: jinja2 isn't installed, which draws reports; run make env, or pip "
        "install jinja2 matplotlib", done.error,
    )  # fmt: skip


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[browser.Page]:
    program = browser.find()
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with browser.open_browser(program, tmp_path / "profile") as page:
        yield page


def test_a_browser_shows_a_page_without_asking_for_more(
    pages: dict[str, Path], chromium: browser.Page, tmp_path: Path
) -> None:
    for file in pages.values():
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                chromium.open(file, width=width, scheme=scheme)
                asked = [url for url in chromium.requests() if not url.startswith("data:")]
                assert asked == [file.resolve().as_uri()]
                assert chromium.said() == []
                assert chromium.evaluate("document.documentElement.scrollWidth") == width
                assert chromium.evaluate("document.title").endswith(": report of a run")
                assert chromium.evaluate("[...document.images].every(i => i.naturalWidth > 0)")
                page = "getComputedStyle(document.body).backgroundColor"
                color = {"light": "rgb(245, 246, 248)", "dark": "rgb(16, 20, 24)"}[scheme]
                assert chromium.evaluate(page) == color
        picture = tmp_path / "picture.png"
        chromium.screenshot(picture)
        assert picture.stat().st_size > 20_000
