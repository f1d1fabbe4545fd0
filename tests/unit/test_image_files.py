"""Image files are read for a trained model as the conversion of its data set reads them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_captchas import Ran, draw

from data_tools import manifest, schema, tfrecord
from data_tools.errors import DataError
from data_tools.manifest import ImageSpec
from hvd_train import image_files
from hvd_train.image_files import Preparation

Tools = Callable[..., Ran]
PLAIN = ImageSpec(height=12, width=24, channels=3, encoding="png")
AS_IS = Preparation(image=PLAIN, transcode=False, resize=False, pad=False)


def write_kinds(folder: Path, size: tuple[int, int] = (24, 12)) -> None:
    """Writes one picture as files of all the kinds that a conversion takes as they are."""
    folder.mkdir()
    picture = draw(0, width=size[0], height=size[1])
    grey = np.asarray(picture.convert("L"))
    clear = picture.convert("RGBA")
    clear.putalpha(Image.fromarray(grey))
    for name, image in {
        "rgb.png": picture, "grey.png": picture.convert("L"), "rgba.png": clear,
        "la.png": clear.convert("LA"), "palette.png": picture.quantize(8),
        "deep.png": Image.fromarray(grey.astype(np.uint16) * 200),
        "rgb.jpg": picture, "grey.jpg": picture.convert("L"), "cmyk.jpg": picture.convert("CMYK"),
        "named-wrongly.jpg": picture,
    }.items():  # fmt: skip
        png = name.endswith(".png") or name == "named-wrongly.jpg"
        image.save(folder / name, "PNG" if png else "JPEG")


@pytest.mark.parametrize(
    ("flags", "others"),
    [
        ((), ()),
        (("--image-encoding", "raw"), ()),
        (("--transcode",), ("bmp", "gif", "webp")),
        (("--resize", "20x10"), ("large",)),
        (("--pad", "30x20"), ("small",)),
        (("--pad", "30x20", "--transcode"), ("small", "bmp")),
    ],
)
def test_files_are_read_to_the_pixels_that_conversion_stores(
    data_tools: Tools, tmp_path: Path, flags: tuple[str, ...], others: tuple[str, ...]
) -> None:
    folder, out = tmp_path / "images", tmp_path / "set"
    write_kinds(folder)
    for other in others:
        size = {"large": (40, 30), "small": (7, 5)}.get(other, (24, 12))
        suffix = "png" if other in ("large", "small") else other
        draw(1, width=size[0], height=size[1]).save(folder / f"other-{other}.{suffix}")
    names = sorted(path.name for path in folder.iterdir())
    csv = tmp_path / "labels.csv"
    csv.write_text("".join(f"{name},{chr(65 + i)}\n" for i, name in enumerate(names)))
    ran = data_tools("captcha-to-tfrecord", folder, csv, out, "--split", "all=1", *flags)
    assert (ran.rc, ran.stderr) == (0, "")
    made = manifest.load(out)
    preparation = Preparation.of(made)
    stored = {}
    for shard in made.splits["all"].shards:
        for _, record in tfrecord.read_records(out / shard.file):
            pixels, label = schema.decode_record(record, made, "here")
            stored[int(label[0])] = pixels
    assert len(stored) == len(names)
    for number, name in enumerate(names):
        np.testing.assert_array_equal(preparation.read(str(folder / name)), stored[number])


def test_a_grey_data_set_has_the_one_channel_of_grey_files(tmp_path: Path) -> None:
    values = np.arange(288).reshape(12, 24).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "grey.png")
    Image.fromarray(values).convert("RGB").save(tmp_path / "rgb.png")
    spec = ImageSpec(height=12, width=24, channels=1, encoding="raw")
    grey = Preparation(image=spec, transcode=False, resize=False, pad=False)
    for name in ("grey.png", "rgb.png"):
        found = grey.read(str(tmp_path / name))
        np.testing.assert_array_equal(found, values[:, :, None])


@pytest.mark.parametrize(
    ("size", "pad", "reason"),
    [
        ((30, 12), False, "30x12 pixels, the run reads 24x12"),
        ((24, 13), True, "24x13 pixels, the run reads 24x12"),
    ],
)
def test_another_size_is_a_line_that_names_both(
    tmp_path: Path, size: tuple[int, int], pad: bool, reason: str
) -> None:
    path = tmp_path / "a.png"
    draw(0, width=size[0], height=size[1]).save(path)
    preparation = Preparation(image=PLAIN, transcode=False, resize=False, pad=pad)
    with pytest.raises(DataError) as caught:
        preparation.read(str(path))
    fix = "scale or cut it to that size"
    assert str(caught.value) == f"error: INPUT: {path}: {reason}; {fix}"


def test_files_are_found_in_the_order_given_and_of_folders_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "deep" / "er").mkdir(parents=True)
    for name in ("b.PNG", "a.jpg", "deep/er/c.gif", "labels.csv", "deep/notes.txt", ".hidden.png"):
        (folder / name).touch()
    given = [tmp_path / "missing.png", folder, folder / "b.PNG"]
    files, others = image_files.find(given)
    names = ["a.jpg", "b.PNG", "deep/er/c.gif"]
    assert files == [str(given[0]), *(str(folder / name) for name in names), str(given[2])]
    assert others == 2


def test_a_folder_without_images_and_a_link_out_of_it_are_input(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "labels.csv").touch()
    with pytest.raises(DataError) as caught:
        image_files.find([folder])
    fix = "name them *.jpg, *.jpeg, *.png, *.bmp, *.gif, *.webp"
    assert str(caught.value) == f"error: INPUT: {folder}: no images; {fix}"
    (tmp_path / "other").mkdir()
    (folder / "link").symlink_to(tmp_path / "other")
    with pytest.raises(DataError) as caught:
        image_files.find([folder])
    reason = "it leads out of the source; remove the link"
    assert str(caught.value) == f"error: INPUT: {folder / 'link'}: {reason}"


def test_a_chunk_has_what_could_be_read_and_the_faults_of_the_rest(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.png") for number in range(5)]
    for number in (0, 2, 4):
        draw(number).save(files[number])
    chunk = image_files.read_chunk(files, range(1, 5), AS_IS)
    assert chunk.numbers == [2, 4]
    np.testing.assert_array_equal(chunk.images[1], np.asarray(draw(4)))
    missing = "No such file or directory"
    assert [fault.line() for fault in chunk.faults] == [f"{files[n]}: {missing}" for n in (1, 3)]


@pytest.mark.parametrize(("side", "size"), [(24, 256), (1000, 22), (4000, 1)])
def test_a_chunk_of_large_images_has_fewer(side: int, size: int) -> None:
    image = ImageSpec(height=side, width=side, channels=3, encoding="png")
    assert image_files.chunk_size(image) == size
