"""BMP, GIF and WEBP become PNG of the same pixels, and images of other sizes are fitted."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data_tools import images
from data_tools.errors import INPUT, DataError


def picture(width: int = 30, height: int = 20) -> Image.Image:
    """A flat half and a noisy one, so that all codecs have runs and none."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    pixels[:, : width // 2] = (10, 20, 200)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def turned(image: Image.Image) -> list[Image.Image]:
    return [image.transpose(Image.Transpose.ROTATE_180)]


def clear(image: Image.Image) -> Image.Image:
    """The image with a transparent stripe."""
    alpha = Image.new("L", image.size, 255)
    alpha.paste(0, (4, 0, 9, image.height))
    image.putalpha(alpha)
    return image


FEW = picture().quantize(16)
FILES = {
    "GIF": encoded(FEW, "GIF"),
    "GIF without interlace": encoded(FEW, "GIF", interlace=0),
    "GIF of greys": encoded(picture().convert("L"), "GIF"),
    "GIF of two colors": encoded(picture().convert("1"), "GIF"),
    "GIF that moves": encoded(FEW, "GIF", save_all=True, append_images=turned(FEW)),
    "GIF with transparency": encoded(clear(picture()), "GIF"),
    "BMP": encoded(picture(), "BMP"),
    "BMP of odd rows": encoded(picture(31, 7), "BMP"),
    "BMP with a palette": encoded(FEW, "BMP"),
    "BMP of greys": encoded(picture().convert("L"), "BMP"),
    "BMP of two colors": encoded(picture().convert("1"), "BMP"),
    "BMP with alpha": encoded(clear(picture()), "BMP"),
    "WEBP": encoded(picture(), "WEBP"),
    "WEBP without loss": encoded(picture(), "WEBP", lossless=True),
    "WEBP with alpha": encoded(clear(picture()), "WEBP", lossless=True),
    "WEBP that moves": encoded(
        picture(), "WEBP", save_all=True, append_images=turned(picture()), lossless=True
    ),
}


def on_white(data: bytes) -> np.ndarray:
    """Pillow's own decoding of the first frame, uint8 [height, width, 3]."""
    with Image.open(io.BytesIO(data)) as image:
        whole = image.convert("RGBA")
    white = Image.new("RGBA", whole.size, "white")
    return np.asarray(Image.alpha_composite(white, whole).convert("RGB"))


def transcoded(data: bytes, where: str) -> np.ndarray:
    """The pixels that conversion decodes, uint8 [height, width, 3]."""
    return np.asarray(images.stored(data, where, transcode=True)[2])


def fault_of(data: bytes, where: str = "folder/7.jpg", *, transcode: bool = True) -> DataError:
    with pytest.raises(DataError) as caught:
        images.stored(data, where, transcode=transcode)
    assert (caught.value.kind, caught.value.where) == (INPUT, where)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_a_transcoded_image_is_a_png_of_pillows_pixels_of_the_first_frame_on_white(
    name: str,
) -> None:
    stored, encoding, image = images.stored(FILES[name], name, transcode=True)
    pixels = np.asarray(image)
    assert encoding == images.encoding_of(stored) == "png"
    np.testing.assert_array_equal(pixels, on_white(FILES[name]))
    np.testing.assert_array_equal(images.decode(stored, name), pixels)


@pytest.mark.parametrize("name", ["BMP", "WEBP without loss", "WEBP that moves"])
def test_a_file_without_loss_gives_the_pixels_that_were_drawn(name: str) -> None:
    pixels = transcoded(FILES[name], name)
    np.testing.assert_array_equal(pixels, np.asarray(picture()))


@pytest.mark.parametrize("name", FILES)
def test_without_the_flag_the_line_names_it(name: str) -> None:
    assert str(fault_of(FILES[name], transcode=False)) == (
        f"error: INPUT: folder/7.jpg: {name.split(maxsplit=1)[0]} is neither JPEG nor PNG; "
        "pass --transcode to store it as PNG"
    )


@pytest.mark.parametrize("name", FILES)
def test_a_record_never_holds_one(name: str) -> None:
    with pytest.raises(DataError) as caught:
        images.decode(FILES[name], "record 3")
    assert caught.value.reason == f"{name.split(maxsplit=1)[0]} is neither JPEG nor PNG"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encoded(picture(), "TIFF"), "TIFF is neither JPEG nor PNG"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "the content is neither JPEG nor PNG"),
        (b"GIF90a" + bytes(20), "the content is neither JPEG nor PNG"),
        (b"", "the file is empty"),
    ],
)
def test_the_flag_takes_no_other_format(data: bytes, reason: str) -> None:
    for transcode in (True, False):
        assert str(fault_of(data, transcode=transcode)) == (
            f"error: INPUT: folder/7.jpg: {reason}; replace the file"
        )


def test_jpeg_and_png_are_stored_alike_with_the_flag_and_without() -> None:
    for format in ("JPEG", "PNG"):
        data = encoded(picture(), format)
        for transcode in (True, False):
            assert images.stored(data, "a", transcode=transcode)[0] == data


# Damage


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_is_refused_unless_only_padding_is_gone(name: str) -> None:
    whole = transcoded(FILES[name], name)
    for cut in range(len(FILES[name])):
        try:
            pixels = transcoded(FILES[name][:cut], name)
        except DataError as error:
            assert error.kind is INPUT
        else:
            assert name.startswith("BMP")
            assert len(FILES[name]) - cut < 4  # a row is filled up to 4 bytes
            np.testing.assert_array_equal(pixels, whole)


def gif(
    screen: tuple[int, int], frame: tuple[int, int, int, int], codes: list[int]
) -> bytes:  # fmt: skip
    """A GIF of red, green, blue and grey, whose codes of 3 bits are written as they are."""
    bits = "".join(f"{code:03b}"[::-1] for code in codes)
    packed = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    palette = bytes([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    return (
        b"GIF89a" + struct.pack("<HHBBB", *screen, 0x81, 0, 0) + palette
        + b"," + struct.pack("<HHHHB", *frame, 0) + bytes([2, len(packed)]) + packed + b"\0;"
    )  # fmt: skip


R, G, B, CLEAR, END = 0, 1, 2, 4, 5
FOUR = [CLEAR, G, CLEAR, G, CLEAR, B, CLEAR, R, END]
RED, GREEN, BLUE, WHITE = [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]


def test_the_pixels_of_a_gif_are_those_of_its_codes() -> None:
    pixels = transcoded(gif((2, 2), (0, 0, 2, 2), FOUR), "a.gif")
    assert pixels.tolist() == [[GREEN, GREEN], [BLUE, RED]]


def test_what_the_first_frame_of_a_gif_leaves_open_is_white() -> None:
    pixels = transcoded(gif((4, 3), (1, 1, 2, 2), FOUR), "a.gif")
    assert pixels.tolist() == [
        [WHITE] * 4, [WHITE, GREEN, GREEN, WHITE], [WHITE, BLUE, RED, WHITE],
    ]  # fmt: skip


@pytest.mark.parametrize("codes", [[CLEAR, G, END], [CLEAR, G, CLEAR, G], [END], []])
def test_a_gif_whose_codes_do_not_fill_its_frame_is_refused(codes: list[int]) -> None:
    fault_of(gif((2, 2), (0, 0, 2, 2), codes))


def test_a_gif_with_what_is_no_block_is_refused() -> None:
    whole = gif((2, 2), (0, 0, 2, 2), FOUR)
    assert str(fault_of(whole[:25] + b"?" + whole[25:])) == (
        "error: INPUT: folder/7.jpg: the GIF is damaged at byte 25; replace the file"
    )


@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_damaged_file_decodes_or_is_a_data_error(name: str, data: st.DataObject) -> None:
    broken = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, encoding, image = images.stored(bytes(broken), name, transcode=True)
        pixels = np.asarray(image)
    except DataError as error:
        assert error.kind is INPUT
        assert "\n" not in str(error)
    else:
        assert (encoding, pixels.dtype, pixels.ndim) == ("png", np.uint8, 3)


HUGE = {
    "GIF": b"GIF89a" + struct.pack("<HHBBB", 65000, 65000, 0, 0, 0)
    + b"," + struct.pack("<HHHHB", 0, 0, 65000, 65000, 0) + b"\x02\0;",
    "BMP": b"BM" + struct.pack("<IHHI", 54, 0, 0, 54)
    + struct.pack("<IiiHHIIiiII", 40, 65000, 65000, 1, 24, 0, 0, 0, 0, 0, 0),
    "WEBP": b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<II", 10, 0)
    + (64999).to_bytes(3, "little") * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_a_header_that_claims_4_gigapixels_is_refused_before_decoding(name: str) -> None:
    assert str(fault_of(HUGE[name])) == (
        "error: INPUT: folder/7.jpg: 65000x65000 pixels, the limit is 16,000,000; replace the file"
    )


@pytest.mark.parametrize("name", ["VP8 ", "VP8L", "VP8X"])
def test_the_size_of_a_webp_is_read_from_each_kind_of_header(name: str) -> None:
    options = {"VP8 ": {}, "VP8L": {"lossless": True}, "VP8X": {"exif": b"Exif\0\0MM"}}[name]
    data = encoded(picture(301, 7), "WEBP", **options)
    assert data[12:16].decode() == name
    assert images._webp_size(data) == (301, 7)


@pytest.mark.parametrize("name", ["pillow/hopper.bmp", "pillow/hopper.gif"])
def test_odd_images_of_other_formats_are_transcoded(test_data: Path, name: str) -> None:
    data = (test_data / "odd_images" / name).read_bytes()
    np.testing.assert_array_equal(
        transcoded(data, name), on_white(data)
    )  # fmt: skip


# Sizes


def test_resize_is_pillows_lanczos() -> None:
    pixels = np.asarray(picture())
    scaled = images.resize(pixels, 17, 40)
    expected = picture().resize((17, 40), Image.Resampling.LANCZOS)
    assert (scaled.shape, scaled.dtype) == ((40, 17, 3), np.uint8)
    np.testing.assert_array_equal(scaled, np.asarray(expected))
    np.testing.assert_array_equal(images.resize(pixels, 30, 20), pixels)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.integers(0, 5))
def test_pad_centres_on_white_and_keeps_every_pixel(
    width: int, height: int, more_columns: int, more_rows: int
) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (height, width, 3), np.uint8)
    padded = images.pad(pixels, width + more_columns, height + more_rows, "a.png")
    assert padded.shape == (height + more_rows, width + more_columns, 3)
    top, left = more_rows // 2, more_columns // 2
    inside = padded[top : top + height, left : left + width]
    np.testing.assert_array_equal(inside, pixels)
    assert (padded == 255).all(2).sum() >= padded.shape[0] * padded.shape[1] - width * height


@pytest.mark.parametrize(("width", "height"), [(29, 20), (30, 19), (1, 1)])
def test_an_image_larger_than_the_frame_is_a_fault_of_it(width: int, height: int) -> None:
    with pytest.raises(DataError) as caught:
        images.pad(np.asarray(picture()), width, height, "folder/7.jpg")
    assert str(caught.value) == (
        f"error: INPUT: folder/7.jpg: 30x20 pixels are more than the {width}x{height} of --pad; "
        "choose a larger --pad, or --resize"
    )
