"""Files of labels as people have them: columns, headers, lost zeros, rows alone, Unicode."""

import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_captchas import (
    LABEL_FIX,
    SKIP_FIX,
    Ran,
    draw_all,
    found,
    write_captchas,
)

from data_tools import manifest
from data_tools.errors import INPUT, DataError
from data_tools.sources.captcha import read_labels
from data_tools.sources.image_folder import ImageFolder

Tools = Callable[..., Ran]


@pytest.fixture
def convert(convert_labels: Tools) -> Tools:
    return convert_labels


# Columns


@pytest.mark.parametrize(
    ("separator", "written"),
    [(";", ";"), (r"\t", "\t"), ("\t", "\t"), (" ", " "), ("|", "|"), ("，", "，"), (":", ":")],
)
def test_a_separator_parts_the_columns_and_labels_may_hold_commas(
    convert: Tools, folder: Path, csv: Path, out: Path, separator: str, written: str
) -> None:
    draw_all(folder, ["0.png", "1.png"])
    csv.write_text(f"file{written}label\n0.png{written}A,B\n1{written}1,5\n")
    ran = convert("--separator", separator)
    assert (ran.rc, ran.stderr) == (0, "")
    assert found(out, folder) == {"0.png": "A,B", "1.png": "1,5"}


def test_a_quoted_label_holds_the_separator_and_quotes(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, ["0.png", "1.png"])
    csv.write_text('0,"A,B"\n1,"C""D"\n')
    assert convert().rc == 0
    assert found(out, folder) == {"0.png": "A,B", "1.png": 'C"D'}
    shutil.rmtree(out)
    csv.write_text('0;"A;B"\n1;"C""D"\n')
    assert convert("--separator", ";").rc == 0
    assert found(out, folder) == {"0.png": "A;B", "1.png": 'C"D'}


def test_an_unquoted_comma_in_a_label_is_input_with_the_row_and_both_ways_out(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["0.png"])
    csv.write_text("0,A,B\n")
    assert (convert().stderr) == (
        f"error: INPUT: {csv}:row 1: 3 columns in place of 2; "
        "write `image,label`; quote a cell that holds a comma, or see --separator\n"
    )


def test_rows_that_all_want_the_same_are_told_so_in_the_last_line(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["0.png", "1.png"])
    csv.write_text("0 AB\n1 CD\n")
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 1: 1 columns in place of 2",
        f"{csv}:row 2: 1 columns in place of 2",
        f"error: INPUT: {csv}: 2 of 2 rows can't be used; write `image,label`; "
        f"quote a cell that holds a comma, or see --separator{SKIP_FIX}",
    ]


@pytest.mark.parametrize(("given", "other"), [(",", ";"), (",", "\t"), (";", ","), (",", "|")])
def test_another_separator_of_all_rows_is_one_line_that_names_it(
    convert: Tools, folder: Path, csv: Path, out: Path, given: str, other: str
) -> None:
    names = [f"{index}.png" for index in range(60)]
    draw_all(folder, names)
    csv.write_text("".join(f"{name}{other}AB\n\n" for name in names))
    ran = convert("--separator", given)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}: the rows are separated by {other!r}; pass --separator {other!r}\n"
    )
    assert convert("--separator", repr(other).strip("'")).rc == 0  # as the line says
    assert len(found(out, folder)) == 60


def test_a_row_of_two_columns_among_others_leaves_them_faults_of_their_own(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["0.png", "1.png"])
    csv.write_text("0;AB\n1,CD\n")
    assert convert().stderr == (
        f"error: INPUT: {csv}:row 1: 1 columns in place of 2; "
        "write `image,label`; quote a cell that holds a comma, or see --separator; "
        "if it is a header, pass --header yes\n"
    )


# Headers


def test_what_was_taken_for_a_header_is_told(convert: Tools, folder: Path, csv: Path) -> None:
    draw_all(folder, ["0.png"])
    csv.write_text("\nfilename,text\n0,AB\n")
    ran = convert("--split", "all=1")
    assert (ran.rc, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[1:] == ["row 2, 'filename,text', was taken for a header"]
    csv.write_text("text\nAB\n")
    ran = convert("--split", "all=1", "--row-names", "{}.png", "--overwrite")
    assert ran.stdout.splitlines()[1:] == ["row 1, 'text', was taken for a header"]


def test_a_header_that_is_not_told_by_its_words_is_told_by_a_flag(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, ["0.png", "1.png"])
    csv.write_text("Datei;Beschriftung\n0;AB\n1;CD\n")
    assert convert("--separator", ";").stderr == (
        f"error: INPUT: {csv}:row 1: no image 'Datei'; add the image or take out the row; "
        "if it is a header, pass --header yes\n"
    )
    ran = convert("--separator", ";", "--header", "yes")
    assert (ran.rc, ran.stderr) == (0, "")
    assert "row 1, 'Datei;Beschriftung', was taken for a header" in ran.stdout
    assert found(out, folder) == {"0.png": "AB", "1.png": "CD"}
    csv.write_text("Beschriftung\nAB\nCD\n")
    ran = convert("--row-names", "{}.png", "--header", "yes", "--overwrite")
    assert (ran.rc, ran.stderr) == (0, "")
    assert found(out, folder) == {"0.png": "AB", "1.png": "CD"}


def test_a_row_like_a_header_is_none_with_header_no(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["0.png"])
    csv.write_text("id,label\n0,AB\n")
    assert convert("--header", "no").stderr == (
        f"error: INPUT: {csv}:row 1: no image 'id'; add the image or take out the row\n"
    )


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_unicode_text_of_a_spreadsheet_is_read_by_its_byte_order_mark(
    convert: Tools, folder: Path, csv: Path, out: Path, encoding: str
) -> None:
    draw_all(folder, ["é.png"])
    mark = "" if encoding == "utf-16" else "\ufeff"
    csv.write_bytes((mark + "é.png\t猫\r\n").encode(encoding))
    ran = convert("--separator", r"\t")
    assert (ran.rc, ran.stderr) == (0, "")
    assert found(out, folder) == {"é.png": "猫"}


# Zeros that a spreadsheet has dropped

DROPPED = {"0.png": "1234", "1.png": "56", "2.png": "7890", "3.png": "7"}


def test_short_numbers_are_refused_with_the_flag_that_fills_them(
    data_tools: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, list(DROPPED))
    csv.write_text("".join(f"{name},{label}\n" for name, label in DROPPED.items()))
    command = ("captcha-to-tfrecord", folder, csv, out, "--workers", 1)
    ran = data_tools(*command)
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: 1.png: label '56' has 2 characters in place of 4",
        f"{csv}:row 4: 3.png: label '7' has 1 characters in place of 4",
        f"error: LABEL: {csv}: 2 of 4 rows can't be used; "
        f"if a spreadsheet dropped leading zeros, pass --zero-pad{SKIP_FIX}",
    ]
    ran = data_tools(*command, "--zero-pad")
    assert (ran.rc, ran.stderr) == (0, "")
    assert "labels were filled with zeros on the left\n" in ran.stdout
    assert found(out, folder) == {name: label.zfill(4) for name, label in DROPPED.items()}
    assert "--zero-pad=True" in manifest.load(out).created_from["arguments"]
    assert data_tools(*command, "--zero-pad", "--length", 6, "--overwrite").rc == 0
    assert set(found(out, folder).values()) == {"001234", "000056", "007890", "000007"}


def test_letters_are_not_filled_with_zeros(
    data_tools: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, ["0.png", "1.png", "2.png"])
    csv.write_text("0,1234\n1,5678\n2,A\n")
    for flags in ((), ("--zero-pad",)):
        ran = data_tools("captcha-to-tfrecord", folder, csv, out, *flags)
        assert ran.rc == 3
        assert ran.stderr == (
            f"error: LABEL: {csv}:row 3: 2.png: label 'A' has 1 characters in place of 4; "
            f"{LABEL_FIX}\n"
        )


# A label alone in each row


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("plain", b"AB\nC,D\nEF\n"),
        ("no final newline", b"AB\nC,D\nEF"),
        ("CRLF and a byte order mark", b"\xef\xbb\xbfAB\r\nC,D\r\nEF\r\n"),
        ("blank lines at the end", b"AB\nC,D\nEF\n\n\n"),
        ("a header", b"label\nAB\nC,D\nEF\n"),
        ("spaces", b"AB \n C,D\nEF\t\n"),
        ("quotes", b'"AB"\n"C,D"\n"EF"\n'),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_row_i_is_the_image_i_from_0_or_1(
    convert: Tools, folder: Path, csv: Path, out: Path, name: str, data: bytes, first: int
) -> None:
    draw_all(folder, [f"{index}.png" for index in range(first, first + 3)])
    csv.write_bytes(data)
    separator = () if name == "quotes" else ("--separator", ";")
    ran = convert("--row-names", "{}.png", "--first-row", first, *separator)
    assert (ran.rc, ran.stderr) == (0, "")
    assert found(out, folder) == {
        f"{first}.png": "AB", f"{first + 1}.png": "C,D", f"{first + 2}.png": "EF",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row_names", "name"),
    [("{:05}.png", "00007.png"), ("img_{}", "img_7.png"), ("train/{:02}.png", "train/07.png"),
     ("{}", "7.png")],
)  # fmt: skip
def test_row_names_may_be_filled_up_with_zeros_and_lack_the_extension(
    convert: Tools, folder: Path, csv: Path, out: Path, row_names: str, name: str
) -> None:
    names = [name.replace("7", str(index)) for index in range(9)]
    draw_all(folder, names)
    csv.write_text("".join(f"L{index}\n" for index in range(9)))
    assert convert("--row-names", row_names).rc == 0
    assert found(out, folder) == {name: f"L{index}" for index, name in enumerate(names)}


def test_a_first_label_that_reads_like_a_header_is_a_label_where_each_row_has_its_image(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, ["0.png", "1.png"])
    csv.write_text("text\nwords\n")
    assert convert("--row-names", "{}.png").rc == 0
    assert found(out, folder) == {"0.png": "text", "1.png": "words"}


def test_a_blank_row_in_the_middle_is_an_empty_label_and_shifts_nothing(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["0.png", "1.png", "2.png"])
    csv.write_text("AB\n\nCD\n")
    ran = convert("--row-names", "{}.png")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}:row 2: the label of 1.png is empty; write its label\n"
    )


def test_rows_that_start_at_the_wrong_number_are_input_that_names_the_flags(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["1.png", "2.png"])
    csv.write_text("AB\nCD\n")
    ran = convert("--row-names", "{}.png")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}:row 1: no image '0.png'; "
        "add the image or see --row-names, --first-row and --header\n"
    )


def test_two_columns_where_a_label_stands_alone_are_input_with_the_row(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["0.png"])
    csv.write_text("0.png,AB\n")
    ran = convert("--row-names", "{}.png")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}:row 1: 2 columns in place of 1; "
        "write `label`; quote a cell that holds a comma, or see --separator\n"
    )


@pytest.mark.parametrize("data", ["", "\n\n", "label\n"])
def test_no_labels_are_input_no_examples(
    convert: Tools, folder: Path, csv: Path, data: str
) -> None:
    draw_all(folder, ["x.png"])
    csv.write_text(data)
    ran = convert("--row-names", "{}.png")
    assert ran.rc == 3
    assert ran.stderr == (f"error: INPUT: {csv}: no examples; write a row `label` for each image\n")


# Unicode

NAMES = ["é", "Å", "ñandú", "が", "각", "ﬁ", "plain", "ỗ"]


@pytest.mark.parametrize("on_disk", ["NFC", "NFD"])
@pytest.mark.parametrize("in_csv", ["NFC", "NFD"])
@pytest.mark.parametrize("suffix", [".png", ""])
def test_names_are_found_in_any_unicode_form(
    convert: Tools, folder: Path, csv: Path, out: Path, on_disk: str, in_csv: str, suffix: str
) -> None:
    label_of = {f"{name} ö/{name}": f"L{index}" for index, name in enumerate(NAMES)}
    draw_all(folder, [unicodedata.normalize(on_disk, name + ".png") for name in label_of])
    rows = [f"{name}{suffix},{label}\n" for name, label in label_of.items()]
    csv.write_text(unicodedata.normalize(in_csv, "".join(rows)))
    ran = convert("--split-folders", unicodedata.normalize(in_csv, "é ö=train") + "," + ",".join(
        f"{name} ö=train" for name in NAMES[1:]
    ))  # fmt: skip
    assert (ran.rc, ran.stderr) == (0, "")
    assert found(out, folder) == {
        unicodedata.normalize(on_disk, name + ".png"): label for name, label in label_of.items()
    }


@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/."), max_size=9))
def test_any_name_is_found_in_every_form_of_it(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.mktemp("images")
    path = folder / f"x{name}.png"
    path.touch()
    for form in ("NFC", "NFD"):
        cell = unicodedata.normalize(form, path.name)
        assert ImageFolder(folder).find(cell) == ImageFolder(folder).find(cell[:-4]) == [path.name]


def test_of_two_names_that_differ_by_form_the_exact_one_is_taken(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    one, two = "é.png", unicodedata.normalize("NFD", "é.png")
    draw_all(folder, [one, two])
    csv.write_text(f"{one},AA\n{two},BB\n")
    assert convert().rc == 0
    assert found(out, folder) == {one: "AA", two: "BB"}


def test_a_name_of_two_images_in_other_forms_is_input_with_both(
    convert: Tools, folder: Path, csv: Path
) -> None:
    forms = ["o\u0302\u0303.png", "ô\u0303.png"]  # ỗ apart, and half apart
    draw_all(folder, forms)
    csv.write_text("ỗ.png,AA\n")
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}:row 1: 'ỗ.png' can be {forms[0]} or {forms[1]}; "
        "write the whole file name\n"
    )


def test_a_label_from_a_name_has_one_character_a_letter_in_either_form(
    convert: Tools, folder: Path, out: Path
) -> None:
    draw_all(folder, [unicodedata.normalize("NFD", "éà.png"), "üö.png"])
    assert convert("--label-from-name", r"^..(?=\.)").rc == 0
    assert sorted(found(out, folder).values()) == ["éà", "üö"]
    assert manifest.load(out).label.max_length == 2


def test_a_name_of_thousands_of_folders_is_an_image_that_is_not_there(
    convert: Tools, folder: Path, csv: Path
) -> None:
    draw_all(folder, ["a/0.png"])
    csv.write_text(f"{'a/' * 5000}0.png,AB\n")
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.startswith(f"error: INPUT: {csv}:row 1: no image 'a/a/a/")


# Any file of labels

LINES = st.lists(
    st.sampled_from(["0", "1.png", ",", ";", "\t", '"', "\n", "\r\n", "label", "AB", " ", "é", "/"])
).map("".join)


@given(
    st.one_of(LINES.map(str.encode), st.binary(max_size=40)),
    st.sampled_from([",", ";", "\t", " "]),
    st.sampled_from([None, "{}.png", "{:03}"]), st.sampled_from([0, 1]),
)  # fmt: skip
def test_any_file_of_labels_gives_rows_and_faults_or_one_error(
    tmp_path_factory: pytest.TempPathFactory,
    data: bytes, separator: str, row_names: str | None, first_row: int,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("images")
    for name in ("0.png", "1.png", "labels.csv"):
        (folder / name).write_bytes(data)
    try:
        rows, faults, _ = read_labels(
            folder / "labels.csv", ImageFolder(folder),
            separator=separator, row_names=row_names, first_row=first_row,
        )  # fmt: skip
    except DataError as error:
        assert (error.kind, error.where.split(":")[0]) == (INPUT, str(folder / "labels.csv"))
    else:
        assert rows or faults
        numbers = [found.number for found in (*rows, *faults)]
        assert len(set(numbers)) == len(numbers)
        assert len({row.image for row in rows}) == len(rows)
        for row in rows:
            assert (folder / row.image).is_file()
            assert row.label == row.label.strip() != ""


# Found by content


def test_a_row_finds_a_file_of_any_extension_by_its_whole_name(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    draw_all(folder, ["0.jfif", "1", "captcha.php"])
    (folder / "1.d").mkdir()
    csv.write_text("0.jfif,AA\n1,BB\ncaptcha.php,CC\n")
    assert convert().rc == 0
    assert found(out, folder) == {"0.jfif": "AA", "1": "BB", "captcha.php": "CC"}


# Flags


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--separator", ""], "--separator is ''; it must be one character"),
        (["--separator", ";;"], "--separator is ';;'; it must be one character"),
        (["--separator", r"\n"], r"--separator is '\\n'; it must be one character"),
        (["--separator", '"'], "--separator is '\"'; it must be one character"),
        (["--row-names", "img.png"], "--row-names is 'img.png'; write it like {}.jpg"),
        (["--row-names", "{}{}.png"], "--row-names is '{}{}.png'; write it like {}.jpg"),
        (["--row-names", "{0.real}"], "--row-names is '{0.real}'; write it like {}.jpg"),
        (["--separator", "\x01"], r"--separator is '\x01'; not all of it can be printed"),
        (
            ["--row-names", "\udcff{}.png"],
            r"--row-names is '\udcff{}.png'; not all of it can be printed",
        ),
        (["--row-names", "{:99}"], "--row-names is '{:99}'; write it like {}.jpg"),
        (["--first-row", "1"], "--first-row needs --row-names"),
        (
            ["--label-from-name", "x"],
            "--label-from-name takes no file of labels; write - for LABELS",
        ),
        (
            ["--split-folders", "a=train", "--split", "train=0.9,test=0.1"],
            "--split and --split-folders are both given; give one",
        ),
        (["--resize", "80"], "--resize is '80'; write width and height like 80x20"),
        (["--resize", "0x20"], "--resize is '0x20'; write width and height like 80x20"),
        (["--pad", "80x20x3"], "--pad is '80x20x3'; write width and height like 80x20"),
        (["--pad=-80x20"], "--pad is '-80x20'; write width and height like 80x20"),
        (["--pad", "80x20", "--resize", "80x20"], "--resize and --pad are both given; give one"),
    ],
)
def test_flags_that_make_no_sense_with_a_csv_are_config(
    convert: Tools, folder: Path, flags: list[str], reason: str
) -> None:
    write_captchas(folder, ["AB"])
    ran = convert(*flags)
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: command line: {reason}; see data_tools captcha-to-tfrecord --help\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "LABELS is -; say with --label-from-name where the labels are"),
        (
            ["--label-from-name", "(x"],
            "--label-from-name is '(x': missing ), unterminated subpattern at position 0",
        ),
        (
            ["--label-from-name", "x{99999999999}"],
            "--label-from-name is 'x{99999999999}': the repetition number is too large",
        ),
        (
            ["--label-from-name", "x\udcff"],
            r"--label-from-name is 'x\udcff'; not all of it can be printed",
        ),
        (
            ["--label-from-name", "x", "--row-names", "{}"],
            "--label-from-name and flags of a file of labels are given; give one",
        ),
        (
            ["--label-from-name", "x", "--separator", ";"],
            "--label-from-name and flags of a file of labels are given; give one",
        ),
    ],
)
def test_flags_that_make_no_sense_without_a_csv_are_config(
    convert: Tools, folder: Path, flags: list[str], reason: str
) -> None:
    draw_all(folder, ["x.png"])
    ran = convert(*flags)
    assert (ran.rc, ran.stderr) == (
        2, f"error: CONFIG: command line: {reason}; see data_tools captcha-to-tfrecord --help\n"
    )  # fmt: skip


def test_the_manifest_names_the_flags_that_decide_the_content(
    convert: Tools, folder: Path, out: Path
) -> None:
    draw_all(folder, ["train/AA.png"])
    flags = ("--split-folders", "train=train", "--label-from-name", r"^\w+", "--resize", "48x12")
    assert convert(*flags, "--transcode").rc == 0
    assert manifest.load(out).created_from["arguments"] == [
        "--split-folders=train=train", "--separator=,", "--header=guess", "--row-names=None",
        "--first-row=0", r"--label-from-name=^\w+",
        "--charset=None", "--case=keep", "--length=None",
        "--variable-length=True", "--zero-pad=False", "--shards=4", "--image-encoding=original",
        "--transcode=True",
        "--resize=48x12", "--pad=None", "--skip-bad=False",
    ]  # fmt: skip


def test_without_them_the_manifest_names_the_defaults(
    convert: Tools, folder: Path, csv: Path, out: Path
) -> None:
    write_captchas(folder, ["AB"])
    assert convert().rc == 0
    arguments = manifest.load(out).created_from["arguments"]
    assert arguments[:4] == [
        "--split=train=0.9,test=0.1", "--separator=,", "--header=guess", "--row-names=None",
    ]  # fmt: skip
