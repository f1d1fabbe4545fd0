"""The labels of captchas and the CSV that they stand in."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_captchas import (
    CONVERT,
    DIGITS,
    LABEL_FIX,
    MISSING_FIX,
    SKIP_FIX,
    UPPER,
    Ran,
    csv_gives,
    draw,
    read_set,
    texts,
    write_captchas,
)

from data_tools import manifest

Tools = Callable[..., Ran]
RunCli = Callable[..., Ran]
LABELS = [f"{UPPER[i % 26]}{UPPER[i // 26]}{UPPER[i * 7 % 26]}Z" for i in range(60)]


# Labels


@pytest.mark.parametrize(
    ("labels", "charset"),
    [
        (["0012", "9999"], DIGITS),
        (["ABCD"], UPPER),
        (["abcd"], UPPER.lower()),
        (["AB12"], DIGITS + UPPER),
        (["AB_2"], "2AB_"),
        (["ЖЫ", "ЯЖ"], "ЖЫЯ"),
    ],
)
def test_the_charset_in_the_manifest_is_the_smallest_named_one_else_the_sorted_characters(
    convert: Tools, folder: Path, out: Path, labels: list[str], charset: str
) -> None:
    write_captchas(folder, labels)
    assert convert().rc == 0
    assert manifest.load(out).label.charset == charset
    assert texts(out) == sorted(labels)


def test_a_charset_by_name_and_one_by_its_characters_are_taken_as_given(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["12", "34"])
    assert convert("--charset", "digits").rc == 0
    assert manifest.load(out).label.charset == DIGITS
    assert convert("--charset", "4321X", "--overwrite").rc == 0
    assert manifest.load(out).label.charset == "4321X"
    assert {row["label"] for rows in read_set(out).values() for row in rows} == {
        bytes([3, 2]), bytes([1, 0]),
    }  # fmt: skip


def test_labels_that_look_like_numbers_or_truth_stay_strings(
    convert: Tools, folder: Path, out: Path
) -> None:
    labels = ["0012", "1E10", "TRUE", "null", "1.50", "+123", "nan4", "1_00"]
    write_captchas(folder, labels)
    assert convert().rc == 0
    assert texts(out) == sorted(labels)


def test_a_label_outside_the_charset_is_label_with_row_label_and_the_allowed(
    convert: Tools, folder: Path
) -> None:
    csv = write_captchas(folder, ["AB12", "AB_2"])
    ran = convert("--charset", DIGITS + UPPER)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}:row 2: 1.jpg: label 'AB_2' has '_', which is not of "
        f"'{DIGITS + UPPER}'; {LABEL_FIX}\n"
    )


def test_a_label_of_another_length_is_label_with_the_length(convert: Tools, folder: Path) -> None:
    csv = write_captchas(folder, ["ABCD", "ABCDE"])
    ran = convert("--length", 4)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}:row 2: 1.jpg: label 'ABCDE' has 5 characters in place of 4; "
        f"{LABEL_FIX}\n"
    )


def test_labels_of_several_lengths_need_a_flag(convert: Tools, folder: Path, out: Path) -> None:
    csv = write_captchas(folder, ["ABCD", "ABCDE", "AB"])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: 1.jpg: label 'ABCDE' has 5 characters in place of 4",
        f"{csv}:row 3: 2.jpg: label 'AB' has 2 characters in place of 4",
        f"error: LABEL: {csv}: 2 of 3 rows can't be used; {LABEL_FIX}{SKIP_FIX}",
    ]
    assert convert("--variable-length").rc == 0
    label = manifest.load(out).label
    assert (label.min_length, label.max_length) == (2, 5)
    assert texts(out) == ["AB", "ABCD", "ABCDE"]


def test_lower_case_is_outside_an_upper_case_charset_unless_folded(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["ab12"])
    ran = convert("--charset", DIGITS + UPPER)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {folder.parent / 'labels.csv'}:row 1: 0.jpg: label 'ab12' has 'ab', which "
        f"is not of '{DIGITS + UPPER}'; {LABEL_FIX}\n"
    )
    ran = convert("--charset", DIGITS + UPPER, "--case", "upper")
    assert ran.rc == 0
    assert "labels were folded to upper case\n" in ran.stdout
    assert texts(out) == ["AB12"]
    assert manifest.load(out).label.case == "upper"


def test_case_lower_folds_to_lower_case(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, ["Ab", "CD"])
    assert convert("--case", "lower").rc == 0
    assert texts(out) == ["ab", "cd"]
    assert manifest.load(out).label.charset == UPPER.lower()
    assert manifest.load(out).label.case == "lower"


def test_the_length_of_a_label_is_that_of_the_folded_one(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["Maß", "fuß"])
    assert convert("--case", "upper").rc == 0
    assert texts(out) == ["FUSS", "MASS"]
    assert manifest.load(out).label.max_length == 4


def test_an_empty_label_is_a_fault_of_its_row(convert: Tools, folder: Path) -> None:
    csv = write_captchas(folder, ["AB", "", "  "])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: the label of 1.jpg is empty",
        f"{csv}:row 3: the label of 2.jpg is empty",
        f"error: LABEL: {csv}: 2 of 3 rows can't be used; write its label{SKIP_FIX}",
    ]


def test_more_than_256_different_characters_are_one_label_line(
    convert: Tools, folder: Path
) -> None:
    letters = [chr(0x4E00 + index) for index in range(300)]
    csv = write_captchas(folder, ["".join(letters[i : i + 100]) for i in (0, 100, 200)])
    ran = convert()
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: LABEL: {csv}: 300 different characters, at most 256 can be told; "
        "name the characters with --charset and pass --skip-bad\n"
    )


# The CSV


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("CRLF", b"0,AB12\r\n1,CD34\r\n"),
        ("CR", b"0,AB12\r1,CD34\r"),
        ("no final newline", b"0,AB12\n1,CD34"),
        ("byte order mark", b"\xef\xbb\xbf0,AB12\n1,CD34\n"),
        ("quotes", b'"0","AB12"\n"1","CD34"\n'),
        ("trailing space", b"0,AB12 \n1 , CD34\t\n"),
        ("header id,label", b"id,label\n0,AB12\n1,CD34\n"),
        ("header file,label", b"file,label\n0.jpg,AB12\n1.jpg,CD34\n"),
        ("quoted header with a byte order mark", b'\xef\xbb\xbf"ID","Label"\r\n0,AB12\r\n1,CD34'),
        ("file names", b"0.jpg,AB12\n1.jpg,CD34\n"),
        ("spaces before quotes", b'"0", "AB12"\n "1.jpg",  "CD34"\n'),
        ("numbers that a spreadsheet is kept from", b'0,="AB12"\n1,"=""CD34"""\n'),
        ("paths of Windows", b".\\0.jpg,AB12\r\n.\\1,CD34\r\n"),
        ("blank lines", b"0,AB12\n\n1,CD34\n\n"),
        ("Excel's empty lines at the end", b"0,AB12\r\n1,CD34\r\n,\r\n"),
    ],
)
def test_csv_dialects_of_the_same_rows_give_the_same_labels(
    convert: Tools, folder: Path, out: Path, name: str, data: bytes
) -> None:
    write_captchas(folder, ["", ""])
    ran = csv_gives(convert, folder, data)
    assert ran.rc == 0, ran.stderr
    assert [row["text"] for row in read_set(out)["train"]] == [b"AB12", b"CD34"]


def test_a_path_as_windows_writes_it_is_found_unless_a_file_has_that_name(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {"0.jpg": "", "a\\2.jpg": "", "3.jpg": ""})
    (folder / "a/b").mkdir(parents=True)
    (folder / "0.jpg").rename(folder / "a/b/0.jpg")
    (folder / "3.jpg").rename(folder / "a/2.jpg")
    ran = csv_gives(convert, folder, b"a\\b\\0.jpg,AB12\na\\2.jpg,CD34\n")
    assert ran.rc == 0, ran.stderr
    images = [row["image"] for row in read_set(out)["train"]]
    assert images == [(folder / name).read_bytes() for name in ("a/b/0.jpg", "a\\2.jpg")]
    for cell in (b"..\\out.jpg", b"C:\\x\\0.jpg", b"a\\b\\1.jpg"):
        shutil.rmtree(out, ignore_errors=True)
        ran = csv_gives(convert, folder, cell + b",AB12\n")
        assert ran.rc == 3
        assert ran.stderr == (
            f"error: INPUT: {folder.parent / 'labels.csv'}:row 1: no image {cell.decode()!r}; "
            "add the image or take out the row\n"
        )


def test_a_letter_with_a_mark_is_one_character_in_either_unicode_form(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, ["", ""])
    ran = csv_gives(convert, folder, "0,e\u0301X\n1,\u00e9X\n".encode())
    assert ran.rc == 0, ran.stderr
    assert [row["text"].decode() for row in read_set(out)["train"]] == ["\u00e9X"] * 2


def test_a_file_name_with_a_comma_is_quoted_as_rfc_4180_says(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {"a,b.jpg": "", 'say "hi".jpg': ""})
    ran = csv_gives(convert, folder, b'"a,b.jpg","AB12"\n"say ""hi"".jpg",CD34\n')
    assert ran.rc == 0, ran.stderr
    assert [row["text"] for row in read_set(out)["train"]] == [b"AB12", b"CD34"]


def test_a_first_row_that_names_an_image_is_no_header(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {"id.jpg": "", "0.jpg": ""})
    ran = csv_gives(convert, folder, b"id,label\n0,other\n")
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["label", "other"]


def test_a_first_row_without_its_image_is_a_fault_and_no_header(
    convert: Tools, folder: Path
) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b"9,CD\n0,AB\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 1: no image '9'; "
        "add the image or take out the row; if it is a header, pass --header yes\n"
    )


def test_a_cyrillic_label_is_utf_8_in_any_locale(run_cli: RunCli, folder: Path, out: Path) -> None:
    csv = write_captchas(folder, {"é.jpg": "ЖЫ"})
    ran = run_cli([*CONVERT, folder, csv, out], env={"LC_ALL": "C", "LANG": "C"})
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["ЖЫ"]


@pytest.mark.parametrize(
    ("line", "columns"), [("1", 1), ("1,CD,extra", 3), ("1;CD", 1), ("1\tCD", 1)]
)
def test_a_wrong_column_count_is_input_with_the_row(
    convert: Tools, folder: Path, line: str, columns: int
) -> None:
    write_captchas(folder, ["AB", "CD", "EF"])
    ran = csv_gives(convert, folder, f"0,AB\n{line}\n2,EF\n".encode())
    csv = folder.parent / "labels.csv"
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {csv}:row 2: {columns} columns in place of 2; "
        "write `image,label`; quote a cell that holds a comma, or see --separator\n"
    )


def test_rows_are_counted_as_an_editor_counts_lines(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB", "CD"])
    ran = csv_gives(convert, folder, b"id,label\n\n0,AB\n1\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 4: 1 columns in place of 2; "
        "write `image,label`; quote a cell that holds a comma, or see --separator\n"
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [("empty", b""), ("only a header", b"id,label\n"), ("only a mark", b"\xef\xbb\xbf"),
     ("only blank lines", b"\r\n\r\n")],
)  # fmt: skip
def test_a_csv_without_rows_is_input_no_examples(
    convert: Tools, folder: Path, name: str, data: bytes
) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, data)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}: no examples; "
        "write a row `image,label` for each image\n"
    )


UTF_8 = "the CSV is not UTF-8; save it as UTF-8"
QUOTE = "quote cells as RFC 4180 says"
NO_CSV = {
    "Latin-1": ("0,é1\n".encode("latin-1"), f"byte 2: {UTF_8}"),
    "UTF-16 that is cut": (
        "0,AB\n".encode("utf-16")[:-1], "byte 10: the CSV is not UTF-16; save it as UTF-8",
    ),
    "an image in place of the CSV": (b"\xff\xd8\xff\xe0\0\x10JFIF", f"byte 0: {UTF_8}"),
    "a NUL": (b"0,A\0B\n", " a NUL character: not a CSV; save it as UTF-8 text"),
    "a quote without an end": (
        b'0,"AB\n1,CD\n', f"row 2: not a CSV: unexpected end of data; {QUOTE}",
    ),
    "a quote in the middle": (
        b'0,"AB"x\n', f"row 1: not a CSV: ',' expected after '\"'; {QUOTE}",
    ),
    "a field of 200 kB": (
        b"0," + b"A" * 200_000 + b"\n",
        f"row 1: not a CSV: field larger than field limit (131072); {QUOTE}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CSV)
@pytest.mark.parametrize("flags", [(), ("--skip-bad",)], ids=["", "--skip-bad"])
def test_a_file_that_is_no_utf_8_csv_is_input_that_names_it(
    convert: Tools, folder: Path, name: str, flags: tuple[str, ...]
) -> None:
    csv = write_captchas(folder, ["AB"])
    data, reason = NO_CSV[name]
    csv.write_bytes(data)
    ran = convert(*flags)
    assert ran.rc == 3
    assert ran.stderr == f"error: INPUT: {csv}:{reason}\n"


def test_all_missing_images_are_listed(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b"0,AB\n7,CD\n8.jpg,EF\nsub/9.png,GH\n")
    csv = folder.parent / "labels.csv"
    assert ran.rc == 3
    assert ran.stderr.splitlines() == [
        f"{csv}:row 2: no image '7'",
        f"{csv}:row 3: no image '8.jpg'",
        f"{csv}:row 4: no image 'sub/9.png'",
        f"error: INPUT: {csv}: 3 of 4 rows can't be used; {MISSING_FIX}",
    ]


def test_one_missing_image_is_one_line(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB"])
    ran = csv_gives(convert, folder, b"0,AB\n7,CD\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 2: no image '7'; "
        "add the image or take out the row\n"
    )


@pytest.mark.parametrize(
    "data", [b"0,AB\n1,CD\n0,AB\n", b"0,AB\n1,CD\n0,XY\n", b"0,AB\n1,CD\n0.jpg,AB\n"]
)
def test_an_image_named_twice_is_input_with_both_rows(
    convert: Tools, folder: Path, data: bytes
) -> None:
    write_captchas(folder, ["AB", "CD"])
    ran = csv_gives(convert, folder, data)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 3: 0.jpg is named in row 1 already; "
        "leave one row for each image\n"
    )


def test_an_id_of_two_images_is_input_with_both(convert: Tools, folder: Path) -> None:
    write_captchas(folder, {"0.jpg": "", "0.png": ""})
    ran = csv_gives(convert, folder, b"0,AB\n")
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 1: '0' can be 0.jpg or 0.png; "
        "write the whole file name\n"
    )


@pytest.mark.parametrize("name", ["../secret.jpg", "/SECRET", "sub/../../secret.jpg", "..", "."])
def test_names_that_leave_the_folder_are_input_though_the_file_exists(
    convert: Tools, folder: Path, name: str
) -> None:
    write_captchas(folder, ["AB"])
    secret = folder.parent / "secret.jpg"
    draw(9).save(secret)
    (folder / "sub").mkdir()
    name = name.replace("/SECRET", str(secret))
    ran = csv_gives(convert, folder, f"0,AB\n{name},CD\n".encode())
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'labels.csv'}:row 2: {name!r} is not the name of an image "
        f"inside the folder; name images of the folder only\n"
    )


def test_upper_case_extensions_are_found(convert: Tools, folder: Path, out: Path) -> None:
    write_captchas(folder, {"A.JPG": "", "b.jpeg": "", "c.Png": ""})
    ran = csv_gives(convert, folder, b"A,AA\nb,BB\nc,CC\n")
    assert ran.rc == 0, ran.stderr
    assert texts(out) == ["AA", "BB", "CC"]


def test_images_without_a_row_are_reported_and_no_error(
    convert: Tools, folder: Path, out: Path
) -> None:
    write_captchas(folder, {f"{name}.jpg": "" for name in "abcde"})
    ran = csv_gives(convert, folder, b"a,AB\nb,CD\n")
    assert ran.rc == 0
    assert ran.stderr == ""
    assert "3 images have no row and were left out: c.jpg, d.jpg, e.jpg\n" in ran.stdout
    assert texts(out) == ["AB", "CD"]


def test_what_file_managers_leave_is_ignored(convert: Tools, folder: Path) -> None:
    write_captchas(folder, ["AB", "CD"])
    for name in (".DS_Store", "._0.jpg", "Thumbs.db", "desktop.ini"):
        (folder / name).write_bytes(b"\0\0\0\1Bud1")
    ran = convert()
    assert (ran.rc, ran.stderr) == (0, "")
    for name in ("DS_Store", "._0", "Thumbs", "desktop"):
        assert name not in ran.stdout


@pytest.mark.parametrize("what", ["images", "labels"])
def test_a_missing_input_is_named(data_tools: Tools, folder: Path, out: Path, what: str) -> None:
    csv = write_captchas(folder, ["AB"])
    given = {"images": folder, "labels": csv} | {what: folder.parent / "absent"}
    ran = data_tools("captcha-to-tfrecord", given["images"], given["labels"], out)
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {folder.parent / 'absent'}: No such file or directory; "
        "check that the path exists and its permissions\n"
    )


@pytest.mark.parametrize("swapped", ["a file as IMAGES", "a folder as LABELS"])
def test_a_file_for_a_folder_and_the_reverse_are_named(
    data_tools: Tools, folder: Path, out: Path, swapped: str
) -> None:
    csv = write_captchas(folder, ["AB"])
    given = (csv, csv) if "IMAGES" in swapped else (folder, folder)
    ran = data_tools("captcha-to-tfrecord", *given, out)
    reason = "Not a directory" if "IMAGES" in swapped else "Is a directory"
    assert ran.rc == 3
    assert ran.stderr == (
        f"error: INPUT: {given[0]}: {reason}; check that the path exists and its permissions\n"
    )
