import io
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data_tools import images
from data_tools.errors import INPUT, DataError

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6  # colour types of a PNG
Pixels = list[list[list[int]]]


def png(colour_type: int, bits: int, rows: list[bytes], width: int, **chunks: bytes) -> bytes:
    """A PNG written here, so that no library stands between the stored values and the test."""

    def chunk(kind: str, data: bytes) -> bytes:
        crc = zlib.crc32(kind.encode() + data)
        return struct.pack(">I", len(data)) + kind.encode() + data + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour_type, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    extra = b"".join(chunk(kind, data) for kind, data in chunks.items())
    return (
        b"\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + extra + chunk("IDAT", body)
        + chunk("IEND", b"")
    )  # fmt: skip


def encoded(pixels: np.ndarray, format: str, mode: str | None = None, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode).save(buffer, format, **options)
    return buffer.getvalue()


def photo(height: int = 20, width: int = 80, seed: int = 0) -> np.ndarray:
    """Smooth colours with an edge and some noise, uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(x / width * 5 + y / height * k) for k in (1, 2, 3)]
    pixels = np.stack(waves, -1) + rng.normal(0, 6, (height, width, 3))
    pixels[:, width // 2 :] = 255 - pixels[:, width // 2 :]
    return pixels.clip(0, 255).astype(np.uint8)


def grey(values: list[int]) -> Pixels:
    return [[[value] * 3 for value in values]]


def big_endian(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


def stored_pixels(data: bytes, where: str) -> tuple[bytes, str, np.ndarray]:
    """What conversion keeps, with the array of the image that it has decoded."""
    kept, encoding, image = images.stored(data, where)
    return kept, encoding, np.asarray(image)


def fault_of(data: bytes, where: str = "folder/7.jpg") -> DataError:
    with pytest.raises(DataError) as caught:
        images.decode(data, where)
    assert caught.value.kind is INPUT
    assert caught.value.where == where
    assert "\n" not in str(caught.value)
    return caught.value


PALETTE_OF_3 = bytes([10, 20, 30, 200, 100, 0, 0, 255, 0])

# name: (file, the pixels by hand, whether it is plain 8-bit grey or RGB without transparency)
PNGS: dict[str, tuple[bytes, Pixels, bool]] = {
    "grey 8 bit": (png(GREY, 8, [bytes([0, 7, 255])], 3), grey([0, 7, 255]), True),
    "grey 1 bit": (png(GREY, 1, [b"\xa0"], 3), grey([255, 0, 255]), False),
    "grey 2 bit": (png(GREY, 2, [b"\x1b"], 4), grey([0, 85, 170, 255]), False),
    "grey 4 bit": (png(GREY, 4, [b"\x0f\x30"], 3), grey([0, 255, 51]), False),
    "grey 16 bit": (
        # 257 v is v; the others are nearest to 1, 2 and 254, neither clipped nor wrapped.
        png(GREY, 16, [big_endian(0, 257, 128 * 257, 65535, 300, 500, 65200)], 7),
        grey([0, 1, 128, 255, 1, 2, 254]),
        False,
    ),
    "grey 8 bit with a transparent value": (
        png(GREY, 8, [bytes([0, 7, 255])], 3, tRNS=big_endian(7)), grey([0, 255, 255]), False,
    ),
    "grey 1 bit with a transparent value": (
        png(GREY, 1, [b"\xa0"], 3, tRNS=big_endian(0)), grey([255, 255, 255]), False,
    ),
    "grey and alpha": (
        png(GREY_ALPHA, 8, [bytes([0, 0, 90, 255, 100, 51, 0, 51, 0, 128])], 5),
        # v a/255 + 255 (1 - a/255): 100/5 + 204 = 224, 204, 127
        grey([255, 90, 224, 204, 127]),
        False,
    ),
    "grey and alpha 16 bit": (
        png(GREY_ALPHA, 16, [big_endian(0, 0, 90 * 257, 65535, 100 * 257, 51 * 257)], 3),
        grey([255, 90, 224]),
        False,
    ),
    "RGB 8 bit": (
        png(RGB, 8, [bytes([10, 20, 30, 200, 100, 0])], 2), [[[10, 20, 30], [200, 100, 0]]], True,
    ),
    "RGB 16 bit": (
        png(RGB, 16, [big_endian(10 * 257, 20 * 257, 30 * 257)], 1), [[[10, 20, 30]]], False,
    ),
    "RGB with a transparent colour": (
        png(RGB, 8, [bytes([10, 20, 30, 200, 100, 0])], 2, tRNS=big_endian(10, 20, 30)),
        [[[255, 255, 255], [200, 100, 0]]],
        False,
    ),
    "RGBA": (
        png(RGBA, 8, [bytes([1, 2, 3, 0, 1, 2, 3, 255, 100, 0, 200, 51])], 3),
        [[[255, 255, 255], [1, 2, 3], [224, 204, 244]]],
        False,
    ),
    "RGBA that is opaque everywhere": (
        png(RGBA, 8, [bytes([1, 2, 3, 255])], 1), [[[1, 2, 3]]], False,
    ),
    "RGBA 16 bit": (
        png(RGBA, 16, [big_endian(100 * 257, 0, 200 * 257, 51 * 257)], 1),
        [[[224, 204, 244]]],
        False,
    ),
    "palette": (
        png(PALETTE, 8, [bytes([0, 2, 1])], 3, PLTE=PALETTE_OF_3),
        [[[10, 20, 30], [0, 255, 0], [200, 100, 0]]],
        False,
    ),
    "palette 2 bit": (
        png(PALETTE, 2, [b"\x18"], 3, PLTE=PALETTE_OF_3),
        [[[10, 20, 30], [200, 100, 0], [0, 255, 0]]],
        False,
    ),
    "palette with an alpha for each entry": (
        png(PALETTE, 8, [bytes([0, 1, 2])], 3, PLTE=PALETTE_OF_3, tRNS=bytes([0, 51])),
        # 200/5 + 204, 100/5 + 204, 204; the third entry has no alpha, so it is opaque
        [[[255, 255, 255], [244, 224, 204], [0, 255, 0]]],
        False,
    ),
    "palette with one transparent entry": (
        png(PALETTE, 8, [bytes([0, 1, 2])], 3, PLTE=PALETTE_OF_3, tRNS=bytes([255, 0])),
        [[[10, 20, 30], [255, 255, 255], [0, 255, 0]]],
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PNGS)
def test_every_kind_of_png_decodes_to_the_values_computed_by_hand(name: str) -> None:
    data, expected, _ = PNGS[name]
    pixels = images.decode(data, "a.png")
    assert pixels.dtype == np.uint8
    assert pixels.tolist() == expected


@pytest.mark.parametrize("name", PNGS)
def test_plain_pngs_are_stored_unchanged_and_others_as_rgb_png_of_the_same_pixels(
    name: str,
) -> None:
    data, expected, plain = PNGS[name]
    stored, encoding, pixels = stored_pixels(data, "a.png")
    assert encoding == "png"
    assert pixels.tolist() == expected
    if plain:
        assert stored == data
    else:
        with Image.open(io.BytesIO(stored)) as image:
            assert (image.format, image.mode, image.info.get("transparency")) == (
                "PNG",
                "RGB",
                None,
            )
            assert np.asarray(image).tolist() == expected


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_plain_jpegs_are_stored_unchanged(mode: str) -> None:
    pixels = photo() if mode == "RGB" else photo()[..., 0]
    data = encoded(pixels, "JPEG")
    stored, encoding, decoded = stored_pixels(data, "a.jpg")
    assert (stored, encoding) == (data, "jpeg")
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(decoded, np.asarray(image.convert("RGB")))


def test_the_content_tells_the_format_and_not_the_name() -> None:
    data = encoded(photo(), "PNG")
    stored, encoding, pixels = stored_pixels(data, "really_a_png.jpg")
    assert (stored, encoding) == (data, "png")
    np.testing.assert_array_equal(pixels, photo())


def test_16_bit_with_one_transparent_colour_is_refused_and_not_read_wrong() -> None:
    data = png(GREY, 16, [big_endian(257, 514)], 2, tRNS=big_endian(257))
    assert str(fault_of(data, "a.png")) == (
        "error: INPUT: a.png: 16-bit PNG with one transparent color isn't supported; "
        "replace the file"
    )


def test_encode_png_is_lossless_and_deterministic() -> None:
    data = images.encode_png(photo())
    np.testing.assert_array_equal(images.decode(data, "a.png"), photo())
    assert data == images.encode_png(photo().copy())


def test_encode_jpeg_is_a_jpeg_near_the_pixels() -> None:
    data = images.encode_jpeg(photo())
    stored, encoding, pixels = stored_pixels(data, "a.jpg")
    assert (stored, encoding) == (data, "jpeg")
    assert np.abs(pixels.astype(int) - photo()).mean() < 8
    assert len(images.encode_jpeg(photo(), quality=30)) < len(data)


# CMYK


def cmyk_jpeg(cmyk: np.ndarray) -> bytes:
    """Pillow's CMYK JPEG, which carries an Adobe marker and so holds the inks inverted."""
    data = encoded(cmyk, "JPEG", "CMYK", quality=95)
    assert b"\xff\xee\x00\x0eAdobe" in data
    return data


def without_adobe_marker(data: bytes) -> bytes:
    start = data.index(b"\xff\xee\x00\x0eAdobe")
    return data[:start] + data[start + 16 :]


@pytest.mark.parametrize("marker", [True, False], ids=["with Adobe marker", "without"])
def test_a_cmyk_jpeg_is_within_3_levels_of_pillows_conversion_and_stored_as_rgb_png(
    marker: bool,
) -> None:
    cmyk = np.concatenate([photo(), photo(seed=1)[..., :1] // 2], -1)
    data = cmyk_jpeg(cmyk) if marker else without_adobe_marker(cmyk_jpeg(cmyk))
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == "CMYK"
        expected = np.asarray(image.convert("RGB")).astype(int)
    stored, encoding, pixels = stored_pixels(data, "a.jpg")
    assert np.abs(pixels - expected).max() <= 3
    assert encoding == "png"
    np.testing.assert_array_equal(images.decode(stored, "a.png"), pixels)


@pytest.mark.parametrize(
    ("ink", "colour"),
    [((0, 0, 0, 0), (255, 255, 255)), ((255, 0, 0, 0), (0, 255, 255)), ((0, 0, 0, 255), (0, 0, 0))],
    ids=["paper is white", "cyan", "black"],
)
def test_the_inks_of_a_cmyk_jpeg_with_adobe_marker_are_not_inverted(
    ink: tuple[int, ...], colour: tuple[int, ...]
) -> None:
    data = cmyk_jpeg(np.full((16, 16, 4), ink, np.uint8))
    assert np.abs(images.decode(data, "a.jpg").astype(int) - colour).max() <= 3


# Against TensorFlow


@pytest.mark.parametrize("subsampling", [0, 2], ids=["4:4:4", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_jpegs_are_within_4_levels_of_tensorflows_decoder(
    tf: ModuleType, subsampling: int, progressive: bool
) -> None:
    for seed in range(4):
        data = encoded(
            photo(seed=seed), "JPEG", quality=85, subsampling=subsampling, progressive=progressive
        )
        theirs = tf.io.decode_jpeg(data, channels=3).numpy().astype(int)
        assert np.abs(images.decode(data, "a.jpg") - theirs).max() <= 4


def test_pngs_equal_tensorflows_decoder(tf: ModuleType) -> None:
    for name in ("grey 8 bit", "RGB 8 bit", "palette", "RGBA that is opaque everywhere"):
        theirs = tf.io.decode_png(PNGS[name][0], channels=3).numpy()
        np.testing.assert_array_equal(images.decode(PNGS[name][0], name), theirs)


# Stored bytes are what the trainer, TensorFlow and Pillow's Image.open all see; none of them turns
# an image by its EXIF tag, so ours does not either: stored and decoded pixels have one orientation.


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_an_exif_orientation_turns_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded(photo(), "JPEG", exif=exif)
    stored, encoding, pixels = stored_pixels(data, "a.jpg")
    assert (stored, encoding) == (data, "jpeg")
    np.testing.assert_array_equal(pixels, images.decode(encoded(photo(), "JPEG"), "b.jpg"))


# Damaged images


@pytest.mark.parametrize(
    "options",
    [{"format": "JPEG"}, {"format": "JPEG", "progressive": True}, {"format": "PNG"}],
    ids=["JPEG", "progressive JPEG", "PNG"],
)
def test_an_image_cut_at_any_byte_is_refused(options: dict[str, object]) -> None:
    data = encoded(photo(16, 24), **options)
    for cut in range(len(data)):
        fault_of(data[:cut])


@pytest.mark.parametrize("missing", [1, 2])
def test_a_jpeg_without_its_last_bytes_is_refused(missing: int) -> None:
    data = encoded(photo(), "JPEG")
    assert data[-2:] == b"\xff\xd9"
    assert str(fault_of(data[:-missing], "folder/7.jpg")) == (
        "error: INPUT: folder/7.jpg: the JPEG is cut short, its end marker is missing; "
        "replace the file"
    )


def test_a_jpeg_cut_in_half_and_filled_with_zeros_is_refused() -> None:
    data = encoded(photo(), "JPEG")
    fault_of(data[: len(data) // 2] + bytes(len(data) // 2))


def test_a_jpeg_with_zeros_after_its_end_is_whole() -> None:
    data = encoded(photo(), "JPEG")
    np.testing.assert_array_equal(
        images.decode(data + bytes(100), "padded.jpg"), images.decode(data, "a.jpg")
    )


def test_a_cut_jpeg_is_refused_though_its_thumbnail_has_an_end_marker() -> None:
    thumbnail = encoded(photo(8, 8), "JPEG")
    exif = b"Exif\0\0" + thumbnail
    data = encoded(photo(), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    whole = data[:2] + segment + data[2:]
    np.testing.assert_array_equal(images.decode(whole, "a.jpg"), images.decode(data, "a.jpg"))
    for missing in (1, 2, 50, len(data) // 2):
        fault_of(whole[:-missing])


@pytest.mark.parametrize("format", ["BMP", "GIF", "WEBP", "TIFF"])
def test_other_formats_named_jpg_are_refused_with_both_names(format: str) -> None:
    assert str(fault_of(encoded(photo(), format), "folder/7.jpg")) == (
        f"error: INPUT: folder/7.jpg: {format} is neither JPEG nor PNG; replace the file"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello", "the content is neither JPEG nor PNG"),
        (b"\xff\xd8", "the content is neither JPEG nor PNG"),
        (b"\xff\xd8\xff", "the JPEG is cut short, its end marker is missing"),
        (b"\x89PNG\r\n\x1a\n", "the PNG is cut short"),
    ],
)
def test_what_is_no_image_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    assert str(fault_of(data, "7.jpg")) == f"error: INPUT: 7.jpg: {reason}; replace the file"


def test_a_png_whose_data_do_not_fill_its_rows_is_refused() -> None:
    short = png(GREY, 8, [bytes(10)] * 10, 10)
    taller = struct.pack(">II", 10, 20)
    header = b"IHDR" + taller + short[24:29]
    patched = short[:12] + header + struct.pack(">I", zlib.crc32(header)) + short[33:]
    fault_of(patched)


def test_a_damaged_png_gives_its_own_pixels_or_a_data_error() -> None:
    data = bytearray(encoded(photo(8, 8), "PNG"))
    refused = 0
    for position in range(len(data)):
        for bit in (0, 4, 7):
            data[position] ^= 1 << bit
            try:
                images.decode(bytes(data), "a.png")
            except DataError:
                refused += 1
            data[position] ^= 1 << bit
    assert refused > len(data)


def test_a_damaged_jpeg_decodes_or_is_a_data_error() -> None:
    whole, rng = encoded(photo(8, 8), "JPEG"), random.Random(0)
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            images.decode(bytes(data), "a.jpg")
        except DataError as error:
            assert error.kind is INPUT


@given(
    st.sampled_from(
        [b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"]
    ),
    st.binary(max_size=80),
)
@settings(deadline=None)
def test_random_bytes_are_a_data_error(start: bytes, rest: bytes) -> None:
    fault_of(start + rest)


# Size limits


def test_16_million_pixels_are_the_limit_and_one_row_more_is_refused() -> None:
    assert images.MAX_PIXELS == 16_000_000
    row = bytes(4000 // 8)
    assert images.decode(png(GREY, 1, [row] * 4000, 4000), "a.png").shape == (4000, 4000, 3)
    assert str(fault_of(png(GREY, 1, [row] * 4001, 4000), "folder/big.png")) == (
        "error: INPUT: folder/big.png: 4000x4001 pixels, the limit is 16,000,000; replace the file"
    )


def test_a_png_whose_header_alone_claims_2_gigapixels_is_refused() -> None:
    huge = bytearray(png(GREY, 8, [b"\0"], 1))
    huge[16:24] = struct.pack(">II", 65000, 65000)
    huge[29:33] = struct.pack(">I", zlib.crc32(huge[12:29]))
    fault_of(bytes(huge))


PEAK = """
import resource, subprocess, sys
process = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=False)
print(process.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(process.stderr, end="")
"""


def test_a_png_of_20000_by_10000_is_refused_by_its_header_within_300_megabytes(
    tmp_path: Path,
) -> None:
    squeeze = zlib.compressobj(1)
    rows = bytes(20001 * 100)
    body = b"".join(squeeze.compress(rows) for _ in range(100)) + squeeze.flush()
    tiny = png(GREY, 8, [], 20000)
    bomb = bytearray(tiny[:33])
    bomb[16:24] = struct.pack(">II", 20000, 10000)
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    for kind, data in ((b"IDAT", body), (b"IEND", b"")):
        bomb += struct.pack(">I", len(data)) + kind + data
        bomb += struct.pack(">I", zlib.crc32(kind + data))
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "0.png").write_bytes(bomb)
    (tmp_path / "labels.csv").write_text("0,AB\n")
    convert = [
        sys.executable, "-m", "data_tools", "captcha-to-tfrecord", str(folder),
        str(tmp_path / "labels.csv"), str(tmp_path / "set"), "--workers", "2",
    ]  # fmt: skip
    # A process of its own in between: a child's peak starts from that of the process that forks it.
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, *convert], capture_output=True, text=True, check=True
    )
    first, *stderr = ran.stdout.splitlines()
    code, peak_kilobytes = map(int, first.split())
    assert code == 3
    assert stderr == [
        f"error: INPUT: {folder / '0.png'}: 20000x10000 pixels, the limit is 16,000,000; "
        "replace the file"
    ]
    assert peak_kilobytes < 300_000
    assert not (tmp_path / "set").exists()


# Real odd images, from the tests of Pillow and TensorFlow

ODD_REFUSED = [
    "pillow/broken.png",
    "pillow/broken_data_stream.png",
    "pillow/hopper.bmp",
    "pillow/hopper.gif",
    "pillow/truncated_end_chunk.png",
    "pillow/truncated_image.png",
    "pillow/truncated_jpeg.jpg",
    "tensorflow/corrupt.jpg",
    "tensorflow/corrupt34_2.jpg",
    "tensorflow/corrupt34_3.jpg",
    "tensorflow/corrupt34_4.jpg",
]
ODD_ACCEPTED = [
    "pillow/broken_exif_dpi.jpg",
    "pillow/exif_gps.jpg",
    "pillow/exif_gps_typeerror.jpg",
    "pillow/hopper.jpg",
    "pillow/hopper.png",
    "pillow/hopper_16bit_qtables.jpg",
    "pillow/hopper_bad_exif.jpg",
    "pillow/hopper_gray.jpg",
    "pillow/invalid-exif.jpg",
    "pillow/pil_sample_cmyk.jpg",
    "pillow/truncated_app14.jpg",
    "pillow/truncated_exif_dpi.jpg",
    "tensorflow/jpeg_merge_test1.jpg",
    "tensorflow/jpeg_merge_test1_cmyk.jpg",
    "tensorflow/lena_gray.png",
    "tensorflow/lena_rgba.png",
]


@pytest.mark.parametrize("name", ODD_REFUSED)
def test_odd_images_that_are_damaged_or_of_another_format_are_refused(
    test_data: Path, name: str
) -> None:
    fault_of((test_data / "odd_images" / name).read_bytes(), name)


@pytest.mark.parametrize("name", ODD_ACCEPTED)
def test_odd_images_that_are_whole_decode_near_pillows_own_conversion(
    test_data: Path, name: str
) -> None:
    data = (test_data / "odd_images" / name).read_bytes()
    pixels = images.decode(data, name)
    with Image.open(io.BytesIO(data)) as image:
        white = Image.new("RGBA", image.size, "white")
        expected = (
            Image.alpha_composite(white, image).convert("RGB")
            if image.mode == "RGBA"
            else image.convert("RGB")
        )
    assert pixels.dtype == np.uint8
    assert np.abs(pixels - np.asarray(expected).astype(int)).max() <= 3


def test_no_warning_of_pillow_reaches_the_user(
    test_data: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for name in ODD_ACCEPTED:
        images.decode((test_data / "odd_images" / name).read_bytes(), name)
    assert [str(warning.message) for warning in recwarn] == []


def test_damaged_metadata_that_nobody_reads_is_no_warning(
    tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    # Found by fuzzing: Pillow warned on standard error, where our own line stands.
    data = encoded(photo(8, 8), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\10")
    (tmp_path / "0.jpg").write_bytes(data)
    (tmp_path / "labels.csv").write_text("0,ABCD\n")
    command = ["captcha-to-tfrecord", tmp_path, tmp_path / "labels.csv", tmp_path.with_name("set")]
    done = run_cli(["data_tools", *command, "--workers", 1])
    assert (done.rc, done.stderr) == (0, "")


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_are_scaled_as_others(channels: int) -> None:
    pixels = np.full((400, 300, channels), 7, np.uint8)
    assert np.array_equal(images.resize(pixels, 30, 40), pixels[:40, :30])
