import csv
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from captcha.image import DEFAULT_FONTS
from matplotlib import get_data_path
from PIL import Image
from small_captchas import Ran, files_of

from data_tools import manifest

Tools = Callable[..., Ran]
UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# SHA-256 over labels.csv and the decoded pixels of 40 images of seed 0. JPEG bytes can differ
# between builds of libjpeg, and decoded pixels between versions of Pillow or of the captcha
# library: this is the value for those that setup.cfg pins.
FONT = Path(DEFAULT_FONTS[0])
OTHER_FONT = Path(get_data_path()) / "fonts/ttf/DejaVuSerif.ttf"
GOLDEN = "a6ead05d945388b59cabfde736b599f296e72e8b67cc3185ba8bbd680fb28592"


def rows_of(folder: Path) -> list[tuple[str, str]]:
    with (folder / "labels.csv").open(newline="") as file:
        return [(name, label) for name, label in csv.reader(file)]


def digest(folder: Path) -> str:
    sha = hashlib.sha256((folder / "labels.csv").read_bytes())
    for name, _ in rows_of(folder):
        with Image.open(folder / f"{name}.jpg") as image:
            sha.update(np.asarray(image).tobytes())
    return sha.hexdigest()


@pytest.fixture(scope="module")
def made(data_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 captchas of seed 0 by one worker."""
    folder = tmp_path_factory.mktemp("made") / "captchas"
    ran = data_tools("make-captcha", folder, "--count", 40, "--workers", 1)
    assert (ran.rc, ran.stderr) == (0, "")
    return folder


def test_the_captchas_of_seed_0_have_the_golden_hash(made: Path) -> None:
    assert digest(made) == GOLDEN


def test_any_number_of_workers_makes_the_same_files(
    made: Path, data_tools: Tools, tmp_path: Path
) -> None:
    folder = tmp_path / "captchas"
    assert data_tools("make-captcha", folder, "--count", 40, "--workers", 3).rc == 0
    assert files_of(folder) == files_of(made)


def test_a_smaller_set_is_the_start_of_a_larger_one(
    made: Path, data_tools: Tools, tmp_path: Path
) -> None:
    assert data_tools("make-captcha", tmp_path / "five", "--count", 5, "--workers", 1).rc == 0
    few = files_of(tmp_path / "five")
    whole = files_of(made)
    assert len(few) == 6
    assert all(whole[name] == data for name, data in few.items() if name != "labels.csv")
    assert whole["labels.csv"].startswith(few["labels.csv"])


def test_another_seed_makes_other_labels_and_other_pictures(
    made: Path, data_tools: Tools, tmp_path: Path
) -> None:
    folder = tmp_path / "captchas"
    assert data_tools("make-captcha", folder, "--count", 5, "--seed", 1, "--workers", 1).rc == 0
    assert {label for _, label in rows_of(folder)}.isdisjoint(label for _, label in rows_of(made))
    for name, data in files_of(folder).items():
        assert files_of(made)[name] != data


def test_images_are_80x20_rgb_jpegs_and_no_two_are_equal(made: Path) -> None:
    for index in range(40):
        with Image.open(made / f"{index}.jpg") as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (80, 20))
    assert len(set(files_of(made).values())) == 41


def test_the_folder_holds_nothing_but_the_images_and_the_labels(made: Path) -> None:
    assert set(files_of(made)) == {"labels.csv", *(f"{index}.jpg" for index in range(40))}
    assert [path.name for path in made.parent.iterdir()] == ["captchas"]


def test_labels_are_id_and_four_upper_case_letters_without_header_and_with_lf(made: Path) -> None:
    data = (made / "labels.csv").read_bytes().decode()
    assert "\r" not in data
    assert data.endswith("\n")
    assert [name for name, _ in rows_of(made)] == [str(index) for index in range(40)]
    assert all(len(label) == 4 and set(label) <= set(UPPER) for _, label in rows_of(made))


def test_all_letters_occur_about_equally_often_at_every_position(
    data_tools: Tools, tmp_path: Path
) -> None:
    folder = tmp_path / "captchas"
    assert data_tools("make-captcha", folder, "--count", 520).rc == 0
    labels = [label for _, label in rows_of(folder)]
    assert len(set(labels)) > 510
    for position in range(4):
        counts = Counter(label[position] for label in labels)
        assert set(counts) == set(UPPER)
        assert max(counts.values()) < 45  # 20 are expected; 45 is more than 5 sigma away


def test_pictures_show_dark_or_coloured_letters_and_are_not_blank(made: Path) -> None:
    for index in range(10):
        with Image.open(made / f"{index}.jpg") as image:
            assert np.asarray(image.convert("L")).std() > 10


def test_length_sets_the_number_of_letters(data_tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "captchas"
    ran = data_tools("make-captcha", folder, "--count", 3, "--length", 6, "--workers", 1)
    assert ran.rc == 0
    assert [len(label) for _, label in rows_of(folder)] == [6, 6, 6]


def test_an_existing_output_is_config_and_stays(data_tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("work")
    ran = data_tools("make-captcha", tmp_path, "--count", 3)
    assert ran.rc == 2
    assert ran.stderr == (f"error: CONFIG: {tmp_path}: it exists already; choose another folder\n")
    assert files_of(tmp_path) == {"precious": b"work"}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--count", 0), ("--count", -1), ("--workers", 0), ("--seed", -1), ("--dots", -1),
        ("--curves", -1),
    ],
)  # fmt: skip
def test_a_number_that_makes_no_sense_is_config(
    data_tools: Tools, tmp_path: Path, flag: str, value: int
) -> None:
    ran = data_tools("make-captcha", tmp_path / "captchas", flag, value)
    assert ran.rc == 2
    negative = flag in ("--seed", "--dots", "--curves")
    rule = "not be negative" if negative else "be at least 1"
    assert ran.stderr == (
        f"error: CONFIG: command line: {flag} is {value}; it must {rule}; "
        "see data_tools make-captcha --help\n"
    )
    assert list(tmp_path.iterdir()) == []


LIKE_LENGTH = "write it like 4, or 4-6 for 4 to 6"
LIKE_SIZE = "write width and height like 80x20"


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        *(("--length", value, f"--length is {value!r}; {LIKE_LENGTH}")
          for value in ("0", "-1", "6-4", "4-", "four", "1000")),
        *(("--size", value, f"--size is {value!r}; {LIKE_SIZE}")
          for value in ("80", "0x20", "80x", "100000x1")),
        ("--charset", "", "--charset has 0 characters; 1 to 256 can be told"),
        ("--charset", "ABA", "--charset is 'ABA'; it names a character twice"),
        ("--charset", "A B", "--charset has a space; it can't be seen in an image"),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_config(
    data_tools: Tools, tmp_path: Path, flag: str, value: str, reason: str
) -> None:
    ran = data_tools("make-captcha", tmp_path / "captchas", flag, value)
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: command line: {reason}; see data_tools make-captcha --help\n"
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_drawn_is_config(data_tools: Tools, tmp_path: Path) -> None:
    no_font, out = tmp_path / "font", tmp_path / "captchas"
    no_font.write_text("none")
    open_type = "pass a TrueType or OpenType file"
    for flags, line in (
        (("--font", no_font), f"--font:{no_font}: unknown file format; {open_type}"),
        (("--font", FONT, out), f"--font:{out}: cannot open resource; {open_type}"),
        (("--charset", "AB\u9a8c"), "--charset: the font of the captcha library can't draw "
         "'\u9a8c'; leave them out, or pass a --font that can"),
        (("--font", FONT, "--charset", "\u9a8cA"), f"--charset: the font {FONT} can't draw "
         "'\u9a8c'; leave them out, or pass a --font that can"),
        (("--size", "99999x1"), "--size: 99999x1 is too large to draw; choose a smaller one"),
        (("--size", "5000x5000"), "--size: 5000x5000 is too large to draw; choose a smaller one"),
    ):  # fmt: skip
        ran = data_tools("make-captcha", out, *flags)
        assert (ran.rc, ran.stderr) == (2, f"error: CONFIG: {line}\n")
    assert list(tmp_path.iterdir()) == [no_font]


def test_length_charset_and_size_are_those_of_the_flags_and_workers_change_nothing(
    data_tools: Tools, tmp_path: Path
) -> None:
    flags = ("--count", 60, "--length", "2-4", "--charset", 'ab",', "--size", "50x30")
    for name, workers in (("one", 1), ("two", 2)):
        ran = data_tools("make-captcha", tmp_path / name, *flags, "--workers", workers)
        assert (ran.rc, ran.stderr) == (0, "")
    one = tmp_path / "one"
    assert files_of(one) == files_of(tmp_path / "two")
    assert {len(label) for _, label in rows_of(one)} == {2, 3, 4}
    assert {character for _, label in rows_of(one) for character in label} == set('ab",')
    for index in range(60):
        with Image.open(one / f"{index}.jpg") as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (50, 30))
    ran = data_tools(
        "captcha-to-tfrecord", one, one / "labels.csv", tmp_path / "set", "--variable-length"
    )
    assert (ran.rc, ran.stderr) == (0, "")
    label = manifest.load(tmp_path / "set").label
    assert label is not None
    assert (label.charset, label.min_length, label.max_length) == ('",ab', 2, 4)


def test_noise_changes_the_pictures_and_no_label(
    made: Path, data_tools: Tools, tmp_path: Path
) -> None:
    def strokes(name: str, *flags: object) -> float:
        """The mean difference between neighbours, which noise makes larger."""
        folder = tmp_path / name
        flags = ("--count", 8, "--workers", 1, "--size", "240x60", *flags)
        assert data_tools("make-captcha", folder, *flags).rc == 0
        assert rows_of(folder) == rows_of(made)[:8]
        pictures = [np.asarray(Image.open(folder / f"{i}.jpg").convert("L"), int) for i in range(8)]
        return float(np.mean([np.abs(np.diff(picture)).mean() for picture in pictures]))

    clean = strokes("clean", "--dots", 0, "--curves", 0)
    assert clean < strokes("curves", "--dots", 0, "--curves", 5)
    assert clean < strokes("dots", "--dots", 60, "--curves", 0)


def test_one_of_the_fonts_is_chosen_for_each_character(
    made: Path, data_tools: Tools, tmp_path: Path
) -> None:
    flags = ("--count", 5, "--workers", 1, "--font")
    assert data_tools("make-captcha", tmp_path / "own", *flags, FONT).rc == 0
    own = files_of(tmp_path / "own")
    assert all(files_of(made)[name] == own[name] for name in own if name != "labels.csv")
    assert data_tools("make-captcha", tmp_path / "two", *flags, FONT, OTHER_FONT).rc == 0
    assert rows_of(tmp_path / "two") == rows_of(made)[:5]
    assert all(own[name] != data for name, data in files_of(tmp_path / "two").items()
               if name != "labels.csv")  # fmt: skip


def test_what_is_made_converts_and_verifies(made: Path, data_tools: Tools, tmp_path: Path) -> None:
    out = tmp_path / "set"
    ran = data_tools("captcha-to-tfrecord", made, made / "labels.csv", out, "--workers", 1)
    assert (ran.rc, ran.stderr) == (0, "")
    assert "labels.csv" not in ran.stdout  # which lies in the folder of images and is none
    assert data_tools("verify", out).rc == 0
