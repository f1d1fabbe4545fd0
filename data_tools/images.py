"""The one place that touches an image codec: decodes, checks and encodes by Pillow.

Records hold JPEG and PNG; conversion also reads BMP, GIF and WEBP, which become PNG.
Files are told by content, never by name. Pillow passes a JPEG without its end marker and a PNG with
a wrong checksum in its data; both are damage, so the file's own structure is checked first.
What stays unseen is damage inside the compressed data of a JPEG: libjpeg warns of it, but Pillow
doesn't pass that on. EXIF orientation is not applied, as TensorFlow's decoder doesn't either.
"""

import io
import os
import re
import stat
import warnings
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from data_tools.errors import INPUT, DataError, from_os_error

Pixels = npt.NDArray[np.uint8]

# What is wrong with a file is told by our own line; Pillow warns of metadata that nobody reads.
warnings.filterwarnings("ignore", module=r"PIL\.")

MAX_PIXELS = 16_000_000
MAX_BYTES = 2 * 4 * MAX_PIXELS  # 16-bit RGBA that can't be compressed
_AGAIN = "replace the file"
_MAGIC = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}
_OTHERS = {
    "GIF": re.compile(rb"GIF8[79]a"),
    "BMP": re.compile(rb"BM"),
    "WEBP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "TIFF": re.compile(rb"II\*\0|MM\0\*"),
}
_TRANSCODED = ("GIF", "BMP", "WEBP")
_GIF_IMAGE, _GIF_EXTENSION, _GIF_TRAILER = b",!;"

# 0xFF and a code that is neither stuffing (00) nor a restart (D0..D7) nor another fill byte.
_JPEG_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)
_JPEG_END = b"\xd9"
_PNG_DEPTH, _PNG_COLOR_TYPE, _PNG_INTERLACE = 24, 25, 28  # byte offsets in the file
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type
# First column and row of each pass of an interlaced PNG, and the steps between them.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
          (0, 1, 1, 2))  # fmt: skip
_PNG_PLAIN = (0, 2)  # color types grey and RGB


def encoding_of(data: bytes) -> str | None:
    """Returns "jpeg" or "png" by the first bytes, None for anything else."""
    for name, magic in _MAGIC.items():
        if data.startswith(magic):
            return name
    return None


def read(path: Path | str) -> bytes:
    """Returns the bytes of an image file.

    Raises:
        DataError: INPUT when there is no such file, when it is a pipe or the like, which might
            never end, or when it is larger than any image of MAX_PIXELS.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - to make a Path takes as long as the call
        if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES:
            with io.FileIO(path) as file:
                return file.readall()
    except OSError as error:
        raise from_os_error(error, path) from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError(INPUT, path, "not a file", fix=_AGAIN)
    reason = f"{status.st_size:,} bytes, the limit is {MAX_BYTES:,}"
    raise DataError(INPUT, path, reason, fix=_AGAIN)


def decode(data: bytes, where: str, *, transcode: bool = False) -> Pixels:
    """Decodes a JPEG or PNG.

    Alpha is composited on white. Grey, palette and CMYK become RGB; 16-bit grey is scaled by 1/257
    and 16-bit color keeps its high byte, as Pillow reads it.

    Args:
        data: the file.
        where: its path.
        transcode: decode BMP, GIF (its first frame) and WEBP too.

    Returns:
        uint8 [height, width, 3], RGB.

    Raises:
        DataError: INPUT `where` for anything but a whole JPEG or PNG of at most MAX_PIXELS.
    """
    return np.asarray(_decode(data, where, transcode=transcode)[1])


def stored(data: bytes, where: str, *, transcode: bool = False) -> tuple[bytes, str, Image.Image]:
    """Returns the bytes to keep of an image file, their encoding and the decoded image.

    An 8-bit grey or RGB file without transparency is kept as it is, since all decoders agree on it;
    any other becomes an RGB PNG of the same pixels.

    Args:
        data: the file.
        where: its path.
        transcode: read BMP, GIF (its first frame) and WEBP too.

    Returns:
        The bytes, "jpeg" or "png", and the image in RGB, all of it decoded, whose array is what
        `decode` gives. To make that takes a sixth of the time that the decoding does, and of most
        images nothing but the size is needed.

    Raises:
        DataError: as `decode`.
    """
    encoding = encoding_of(data)
    if not (transcode or encoding) and (other := _other_format(data)) in _TRANSCODED:
        fix = "pass --transcode to store it as PNG"
        raise DataError(INPUT, where, f"{other} is neither JPEG nor PNG", fix=fix)
    image, rgb = _decode(data, where, transcode=transcode)
    if encoding == "jpeg" and image.mode in ("L", "RGB"):
        return data, "jpeg", rgb
    if isinstance(image, PngImageFile) and _is_plain_png(data, image):
        return data, "png", rgb
    return encode_png(np.asarray(rgb)), "png", rgb


def grey(pixels: Pixels) -> Pixels:
    """Weighs uint8 [height, width, 3], RGB, to luminance [height, width, 1] by ITU-R 601-2."""
    return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """Scales uint8 [any height, any width, 1 or 3] to [height, width, ...] by Lanczos's filter."""
    channels = pixels.shape[2]
    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    scaled = image.resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(scaled).reshape(height, width, channels)


def pad(pixels: Pixels, width: int, height: int, where: str) -> Pixels:
    """Puts uint8 [at most height, at most width, 3] in the middle of white [height, width, 3].

    Of an odd number of rows or columns to fill, the one more goes below or to the right.

    Raises:
        DataError: INPUT `where` when the image is larger.
    """
    rows, columns = pixels.shape[:2]
    if rows > height or columns > width:
        reason = f"{columns}x{rows} pixels are more than the {width}x{height} of --pad"
        raise DataError(INPUT, where, reason, fix="choose a larger --pad, or --resize")
    top, left = (height - rows) // 2, (width - columns) // 2
    padded = np.full((height, width, 3), 255, np.uint8)
    padded[top : top + rows, left : left + columns] = pixels
    return padded


def encode_jpeg(pixels: Pixels, quality: int = 95) -> bytes:
    """Encodes uint8 [height, width, 3] as JPEG."""
    return _encode(pixels, "JPEG", quality=quality)


def encode_png(pixels: Pixels) -> bytes:
    """Encodes uint8 [height, width, 3] as PNG, without loss."""
    return _encode(pixels, "PNG")


def _encode(pixels: Pixels, codec: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, codec, **options)
    return buffer.getvalue()


def _decode(
    data: bytes, where: str, *, transcode: bool = False
) -> tuple[ImageFile.ImageFile, Image.Image]:
    """The file as Pillow has opened it, and its pixels in RGB, decoded."""
    # On broken bytes Pillow raises nearly anything: OSError, SyntaxError, ValueError, struct.error,
    # zlib.error, KeyError...
    try:
        image = _open(data, transcode=transcode)
        width, height = image.size
        _check_pixels(width, height)
        if isinstance(image, PngImageFile):
            _check_png_rows(data, width, height)
        rgb = _to_rgb(data, image)
        rgb.load()
        return image, _framed(image, rgb) if isinstance(image, GifImageFile) else rgb
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DataError(INPUT, where, reason, fix=_AGAIN) from error


def _open(data: bytes, *, transcode: bool) -> ImageFile.ImageFile:
    """Reads the header only; ValueError says what the bytes are instead."""
    match encoding_of(data):
        case "jpeg":
            _check_jpeg_end(data)
            return JpegImageFile(io.BytesIO(data))
        case "png":
            _png_compressed(data)
            return PngImageFile(io.BytesIO(data))
    if not data:
        raise ValueError("the file is empty")
    other = _other_format(data)
    if transcode and other in _TRANSCODED:
        return _open_other(data, other)
    raise ValueError(f"{other or 'the content'} is neither JPEG nor PNG")


def _other_format(data: bytes) -> str | None:
    return next((name for name, magic in _OTHERS.items() if magic.match(data)), None)


def _open_other(data: bytes, name: str) -> ImageFile.ImageFile:
    match name:
        case "GIF":
            _check_gif_end(data)
            return GifImageFile(io.BytesIO(data))
        case "WEBP":
            # Pillow's decoder makes room for the pixels at once.
            _check_pixels(*_webp_size(data))
            return WebPImageFile(io.BytesIO(data))
    return BmpImageFile(io.BytesIO(data))


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width}x{height} pixels, the limit is {MAX_PIXELS:,}")
    if width * height == 0:
        raise ValueError(f"{width}x{height} pixels")


def _check_gif_end(data: bytes) -> None:
    """Walks the blocks to the trailer; Pillow takes a missing end for the end."""
    try:
        position = 13 + _gif_palette(data[10])
        while (block := data[position]) != _GIF_TRAILER:
            if block == _GIF_IMAGE:
                position += 11 + _gif_palette(data[position + 9])
            elif block == _GIF_EXTENSION:
                position += 2
            else:
                raise ValueError(f"the GIF is damaged at byte {position}")
            while data[position]:  # the length of a part of the block
                position += 1 + data[position]
            position += 1
    except IndexError:
        raise ValueError("the GIF is cut short") from None


def _gif_palette(flags: int) -> int:
    """The bytes of the palette that follows a header with these flags."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp_size(data: bytes) -> tuple[int, int]:
    """Reads width and height from the first chunk; ValueError when the file is cut short."""
    if len(data) < max(30, 8 + int.from_bytes(data[4:8], "little")):
        raise ValueError("the WEBP is cut short")
    if data[12:16] == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        return width + 1, height + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = (int.from_bytes(data[at : at + 2], "little") for at in (26, 28))
    return width & 0x3FFF, height & 0x3FFF


def _check_jpeg_end(data: bytes) -> None:
    """Walks the segments; inside compressed data the pattern skips to the next real marker.

    Where the file ends as it should there is no need to: a cut that leaves such an end lies in a
    segment before some of the pixels, which Pillow then misses.
    """
    if data.endswith(b"\xff" + _JPEG_END):
        return
    position = len(_MAGIC["jpeg"]) - 1
    while marker := _JPEG_MARKER.search(data, position):
        if marker[1] == _JPEG_END:
            return
        length = int.from_bytes(data[marker.end() : marker.end() + 2], "big")
        position = marker.end() + length
    raise ValueError("the JPEG is cut short, its end marker is missing")


def _png_compressed(data: bytes) -> bytes:
    """Walks the chunks up to the last, checks the CRC of each and joins the compressed pixels."""
    position, name, compressed = len(_MAGIC["png"]), b"", bytearray()
    while name != b"IEND":
        length = int.from_bytes(data[position : position + 4], "big")
        body = data[position + 4 : position + 8 + length]
        crc = data[position + 8 + length : position + 12 + length]
        if len(crc) < 4:
            raise ValueError("the PNG is cut short")
        name = body[:4]
        if zlib.crc32(body) != int.from_bytes(crc, "big"):
            raise ValueError(f"the PNG is damaged, the checksum at byte {position} is wrong")
        if name == b"IDAT":
            compressed += body[4:]
        position += 12 + length
    return bytes(compressed)


def _check_png_rows(data: bytes, width: int, height: int) -> None:
    """Inflates the pixels to count them: Pillow fills rows that are not there with zeros."""
    bits = data[_PNG_DEPTH] * _PNG_CHANNELS[data[_PNG_COLOR_TYPE]]
    passes = _ADAM7 if data[_PNG_INTERLACE] else ((0, 0, 1, 1),)
    sizes = [(len(range(x, width, dx)), len(range(y, height, dy))) for x, y, dx, dy in passes]
    # A row is a filter byte and its pixels; a pass without pixels has no rows.
    expected = sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns)
    inflated = zlib.decompressobj().decompress(_png_compressed(data), expected)
    if len(inflated) < expected:
        raise ValueError("the PNG is cut short, rows of pixels are missing")


def _is_plain_png(data: bytes, image: PngImageFile) -> bool:
    plain = data[_PNG_DEPTH] == 8 and data[_PNG_COLOR_TYPE] in _PNG_PLAIN
    return plain and not image.has_transparency_data


def _to_rgb(data: bytes, image: Image.Image) -> Image.Image:
    """Decodes the pixels, 8-bit RGB on white."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if encoding_of(data) == "png" and data[_PNG_DEPTH] == 16:
        if "transparency" in image.info:
            raise ValueError("16-bit PNG with one transparent color isn't supported")
        if image.mode.startswith("I"):
            grey = (np.asarray(image).astype(np.uint32) + 128) // 257
            image = Image.fromarray(grey.astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def _framed(gif: GifImageFile, rgb: Image.Image) -> Image.Image:
    """Makes white what the first frame doesn't cover; it has no color of its own."""
    extent = gif.dispose_extent or (0, 0, *gif.size)
    white = Image.new("RGB", gif.size, "white")
    white.paste(rgb.crop(extent), extent)
    return white
