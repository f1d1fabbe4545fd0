"""Small TFRecord files of other programs, for the tests of `data_tools reshard`."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from small_captchas import Ran, draw

from data_tools import images, tfrecord

Tools = Callable[..., Ran]
KEYS = ("--image-key", "image", "--label-key", "label")
COURSE = ("--charset", "upper", "--shape", "12x24x3")
FIX = "; see --image-key, --label-key, --charset and --shape"


def pixels(seed: int) -> np.ndarray:
    return np.asarray(draw(seed))


def png(seed: int) -> bytes:
    return images.encode_png(pixels(seed))


def write(path: Path, records: list[dict[str, bytes | int]]) -> Path:
    path.write_bytes(b"".join(tfrecord.frame(tfrecord.encode_example(of)) for of in records))
    return path


def start_of(records: list[dict[str, bytes | int]], index: int) -> int:
    return sum(len(tfrecord.encode_example(of)) + 16 for of in records[:index])


CLASSES = [{"image": png(index), "label": index % 3, "id": b"x"} for index in range(40)]
TEXTS = [{"image": png(index), "label": f"{index:04d}".encode()} for index in range(40)]
COURSE_RECORDS = [
    {"image": pixels(index).tobytes(), "label": bytes([index, 3, 25, 0])} for index in range(20)
]


def made(data_tools: Tools, *args: object) -> None:
    ran = data_tools("reshard", *args)
    assert (ran.rc, ran.stderr) == (0, "")


def refused(data_tools: Tools, out: Path, *args: object) -> Ran:
    """A command that leaves nothing."""
    ran = data_tools("reshard", *args)
    assert ran.rc != 0
    assert ran.stdout == ""
    assert not out.exists()
    assert not out.with_name(out.name + ".incomplete").exists()
    return ran
