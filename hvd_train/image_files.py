"""Finds image files and reads them as the conversion of a run's data set did."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data_tools import images
from data_tools.errors import INPUT, DataError, Fault
from data_tools.images import Pixels
from data_tools.manifest import ImageSpec, Manifest
from data_tools.sources.image_folder import IMAGE_SUFFIXES, ImageFolder

CHUNK = 256
"""Images that are read and kept together, at most."""
CHUNK_BYTES = 1 << 26
"""What their pixels may take; at least one is read."""


def conversion_flags(manifest: Manifest) -> dict[str, str]:
    """The flags that decided what is in a data set, `--NAME` to value."""
    arguments = manifest.created_from.get("arguments", [])
    return dict(text.split("=", 1) for text in arguments if "=" in text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """What a conversion did to image files, so that it is done to others too.

    Attributes:
        image: what each became.
        transcode: whether BMP, GIF and WEBP were taken.
        resize: whether they were scaled to that size.
        pad: whether smaller ones were put in the middle of a white one of that size.
    """

    image: ImageSpec
    transcode: bool
    resize: bool
    pad: bool

    @classmethod
    def of(cls, manifest: Manifest) -> "Preparation":
        """Reads it from the flags of the conversion."""
        given = conversion_flags(manifest)
        return cls(
            image=manifest.image,
            transcode=given.get("--transcode") == "True",
            resize=given.get("--resize", "None") != "None",
            pad=given.get("--pad", "None") != "None",
        )

    def read(self, path: str) -> Pixels:
        """Returns the pixels of an image file, uint8 [H, W, C] as the data set has them.

        Raises:
            DataError: INPUT when it can't be read, or isn't of the data set's size.
        """
        width, height = self.image.width, self.image.height
        pixels = images.decode(images.read(path), path, transcode=self.transcode)
        if self.resize:
            pixels = images.resize(pixels, width, height)
        rows, columns = pixels.shape[:2]
        if self.pad and rows <= height and columns <= width:
            pixels = images.pad(pixels, width, height, path)
        elif (rows, columns) != (height, width):
            raise DataError(
                INPUT, path, f"{columns}x{rows} pixels, the run reads {width}x{height}",
                fix="scale or cut it to that size",
            )  # fmt: skip
        return images.grey(pixels) if self.image.channels == 1 else pixels


@dataclass(slots=True)
class Chunk:
    """Images that were read together.

    Attributes:
        numbers: of those that could be read, their places among all files.
        images: of those, uint8 [H, W, C] each.
        faults: of the others, numbered alike.
    """

    numbers: list[int] = field(default_factory=list)
    images: list[Pixels] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def chunk_size(image: ImageSpec) -> int:
    """How many images of a data set are read and kept together."""
    return max(1, min(CHUNK, CHUNK_BYTES // (image.height * image.width * image.channels)))


def read_chunk(files: Sequence[str], numbers: range, preparation: Preparation) -> Chunk:
    """Reads the files with these numbers."""
    chunk = Chunk()
    for number in numbers:
        try:
            chunk.images.append(preparation.read(files[number]))
            chunk.numbers.append(number)
        except DataError as error:
            chunk.faults.append(Fault(number, error.kind, error.where, error.reason, error.fix))
    return chunk


def find(given: Sequence[Path]) -> tuple[list[str], int]:
    """Finds the images of files and folders, in the order given, of each folder by name.

    Returns:
        Their paths as the given ones begin, and how many other files the folders hold.

    Raises:
        DataError: INPUT when a folder has no image, or a link in it leads to a folder outside or
            to one that is read already.
    """
    files: list[str] = []
    others = 0
    for path in given:
        # os's function takes any name; images.read says what an image that isn't one is.
        if not os.path.isdir(path):  # noqa: PTH112
            files.append(str(path))
            continue
        folder = ImageFolder(path)
        folder.walk()
        names = folder.names
        if not names:
            fix = f"name them *{', *'.join(IMAGE_SUFFIXES)}"
            raise DataError(INPUT, path, "no images", fix=fix)
        files += (str(path / name) for name in names)
        others += folder.others
    return files, others
