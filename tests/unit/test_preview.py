"""`data_tools preview`: a sheet of images with their labels."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captchas import Ran, write_captchas

from data_tools import images, manifest, preview, schema, tfrecord
from data_tools.sheet import draw_sheet

Tools = Callable[..., Ran]
LABELS = [f"{index * 37 % 10000:04d}" for index in range(30)]


@pytest.fixture(scope="module")
def out(data_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("previewed")
    csv = write_captchas(base / "images", {f"{i}.png": text for i, text in enumerate(LABELS)})
    ran = data_tools("captcha-to-tfrecord", base / "images", csv, base / "set", "--shards", 3)
    assert ran.rc == 0, ran.stderr
    return base / "set"


def drawn(data_tools: Tools, out: Path, path: Path, *flags: object) -> np.ndarray:
    ran = data_tools("preview", out, "--image", path, *flags)
    assert (ran.rc, ran.stderr) == (0, "")
    return images.decode(path.read_bytes(), str(path))


def records(out: Path, split: str) -> list[bytes]:
    return [
        record
        for shard in manifest.load(out).splits[split].shards
        for _, record in tfrecord.read_records(out / shard.file)
    ]


def magnified(record: bytes, whole: manifest.Manifest, scale: int) -> np.ndarray:
    image, _ = schema.decode_record(record, whole, "here")
    return image.repeat(scale, 0).repeat(scale, 1)


def contains(sheet: np.ndarray, image: np.ndarray) -> bool:
    """Tells whether the sheet shows the image somewhere, pixel by pixel."""
    height, width, _ = image.shape
    rows, columns = np.nonzero((sheet == image[0, 0]).all(2))
    return any(
        np.array_equal(sheet[row : row + height, column : column + width], image)
        for row, column in zip(rows, columns, strict=True)
    )


def test_a_sheet_shows_the_images_of_a_split_magnified(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    whole = manifest.load(out)
    for split in whole.splits:
        sheet = drawn(data_tools, out, tmp_path / "sheet.png", "--split", split)
        for record in records(out, split):
            assert contains(sheet, magnified(record, whole, 4))


def test_the_first_split_is_shown_and_the_count_is_told(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    path, train = tmp_path / "sheet.png", manifest.load(out).splits["train"].examples
    for flags, count in (((), train), (("--count", 5), 5)):
        ran = data_tools("preview", out, "--image", path, *flags)
        assert ran.stdout == f"{path}: {count} of {train} images of train\n"
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]


def test_the_choice_is_a_function_of_the_seed(data_tools: Tools, out: Path, tmp_path: Path) -> None:
    one, again, other = (
        drawn(data_tools, out, tmp_path / f"{index}.png", "--count", 4, "--seed", seed)
        for index, seed in enumerate((7, 7, 8))
    )
    assert (tmp_path / "0.png").read_bytes() == (tmp_path / "1.png").read_bytes()
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("count", [1, 5, 100])
def test_examples_are_chosen_once_each_and_in_order(count: int) -> None:
    chosen = preview.choose(20, count, seed=3)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(count, 20)
    assert preview.choose(20, 5, seed=0) == [0, 2, 9, 11, 17]


def test_records_are_read_by_number_over_the_borders_of_shards(out: Path) -> None:
    split = manifest.load(out).splits["train"]
    expected, offsets = records(out, "train"), preview.read_offsets(out, split)
    for numbers in ([0, 1, 2], [len(expected) - 1], list(range(len(expected)))):
        found = [record for _, record in preview.read_numbered(out, split, offsets, numbers)]
        assert found == [expected[number] for number in numbers]


def test_labels_are_drawn_below_their_images_and_differ(out: Path) -> None:
    whole = manifest.load(out)
    white = np.full((12, 24, 3), 255, np.uint8)
    sheets = [draw_sheet([text], [white], whole.image, "") for text in ("AB", "CD", "AB", "日本")]
    assert all((sheet.reshape(-1, 3).min(0) < 128).all() for sheet in sheets)
    np.testing.assert_array_equal(sheets[0], sheets[2])
    assert not np.array_equal(sheets[0], sheets[1])


def test_classes_are_shown_by_name(data_tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "file"
    record = schema.class_record(images.encode_png(np.zeros((8, 8, 3), np.uint8)), 2)
    file.write_bytes(tfrecord.frame(record))
    keys = ("--image-key", "image", "--label-key", "label", "--split", "train=1")
    assert data_tools("reshard", file, tmp_path / "set", *keys).rc == 0
    sheet = drawn(data_tools, tmp_path / "set", tmp_path / "sheet.png")
    whole = manifest.load(tmp_path / "set")
    black = np.zeros((8, 8, 3), np.uint8)
    np.testing.assert_array_equal(sheet, draw_sheet(["2"], [black], whole.image, ""))


def test_a_wide_image_is_not_magnified(data_tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (200, 50), "red").save(folder / "0.png")
    (tmp_path / "labels.csv").write_text("0,AB\n")
    split = ("--split", "train=1")
    data_tools("captcha-to-tfrecord", folder, tmp_path / "labels.csv", tmp_path / "set", *split)
    sheet = drawn(data_tools, tmp_path / "set", tmp_path / "sheet.png")
    assert sheet.shape == (78, 208, 3)
    assert int((sheet == (255, 0, 0)).all(2).sum()) == 200 * 50


def test_what_can_not_be_shown_is_one_line(data_tools: Tools, out: Path, tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    for flags, rc, message in (
        (("--split", "no"), 2, f"CONFIG: {out}: no split 'no'; the splits are train, test"),
        (("--count", 0), 2, "CONFIG: command line: --count is 0; it must be at least 1; "
         "see data_tools preview --help"),
        (("--seed", -1), 2, "CONFIG: command line: --seed is -1; it must not be negative; "
         "see data_tools preview --help"),
        (("--image", "sheet.jpg"), 2, "CONFIG: command line: --image is 'sheet.jpg'; its name must "
         "end in .png; see data_tools preview --help"),
    ):  # fmt: skip
        ran = data_tools("preview", out, "--image", path, *flags)
        assert (ran.rc, ran.stdout, ran.stderr) == (rc, "", f"error: {message}\n")
        assert not path.exists()
    ran = data_tools("preview", out, "--image", tmp_path / "no/sheet.png")
    assert (ran.rc, ran.stderr) == (
        3,
        f"error: INPUT: {tmp_path / 'no/sheet.png'}: No such file or directory; "
        "check that the path exists and its permissions\n",
    )


def test_a_picture_that_can_not_be_put_in_place_leaves_nothing(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sheet.png"
    folder.mkdir()
    ran = data_tools("preview", out, "--image", folder)
    assert (ran.rc, len(ran.stderr.splitlines())) == (3, 1)
    assert "Is a directory" in ran.error
    assert list(tmp_path.iterdir()) == [folder]


def test_a_sheet_of_more_than_16_million_pixels_is_config(out: Path) -> None:
    whole = manifest.load(out)
    endless = itertools.repeat(np.zeros((12, 24, 3), np.uint8))  # none may be taken
    with pytest.raises(preview.DataError) as caught:
        draw_sheet(["AB"] * 3000, endless, whole.image, "--count")
    assert next(endless) is not None
    assert str(caught.value).startswith("error: CONFIG: --count: the picture would have ")
    assert str(caught.value).endswith(" pixels; ask for fewer images")


def test_damaged_records_and_offsets_are_integrity_and_leave_no_picture(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    copy, path = tmp_path / "set", tmp_path / "sheet.png"
    shutil.copytree(out, copy)
    shard = copy / manifest.load(copy).splits["train"].shards[0].file
    whole = shard.read_bytes()
    shard.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    ran = data_tools("preview", copy, "--image", path)
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {shard}:record 0:byte 0: the checksum of the data is wrong; "
        "get the file again or convert the data set again\n",
    )
    shard.write_bytes(whole)
    offsets = np.load(copy / "offsets-train.npy")
    for wrong in (offsets[:-1], offsets + 10**12, -offsets, offsets[::-1], offsets * 0):
        np.save(copy / "offsets-train.npy", wrong)
        ran = data_tools("preview", copy, "--image", path)
        assert (ran.rc, len(ran.stderr.splitlines())) == (4, 1)
        assert ran.error.startswith(f"error: INTEGRITY: {copy}/")
    assert not path.exists()


def test_a_picture_replaces_no_other_file(data_tools: Tools, out: Path, tmp_path: Path) -> None:
    kept = tmp_path / "notes.png"
    kept.write_text("kept")
    for path, reason in (
        (out / "new.png", "it would lie in the data set"),
        (kept, "it exists already and is no PNG"),
    ):
        before = path.read_bytes() if path.exists() else None
        ran = data_tools("preview", out, "--image", path)
        fix = "choose another name with --image"
        assert (ran.rc, ran.stderr) == (2, f"error: CONFIG: {path}: {reason}; {fix}\n")
        assert (path.read_bytes() if path.exists() else None) == before


def test_a_picture_is_not_written_through_a_link(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    kept, path = tmp_path / "kept", tmp_path / "sheet.png"
    kept.write_text("kept")
    (tmp_path / "sheet.png.incomplete").symlink_to(kept)
    for _ in range(2):  # a PNG may be replaced
        assert data_tools("preview", out, "--image", path).rc == 0
    assert kept.read_text() == "kept"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["kept", "sheet.png"]


def test_a_manifest_of_too_many_examples_is_integrity(
    data_tools: Tools, out: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "set"
    shutil.copytree(out, copy)
    fields = json.loads((copy / "manifest.json").read_text())
    split = fields["splits"]["train"]
    added = 10**12 - split["examples"]
    split["examples"] += added
    split["shards"][0]["examples"] += added
    (copy / "manifest.json").write_text(json.dumps(fields))
    ran = data_tools("preview", copy, "--image", tmp_path / "sheet.png")
    assert (ran.rc, ran.stderr) == (
        4,
        f"error: INTEGRITY: {copy / split['offsets']}: {10**12 - added} places, "
        f"the manifest says {10**12}; convert the data set again\n",
    )
