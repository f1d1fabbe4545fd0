"""Writes small captcha data sets of exact sizes, straight through the formats."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_tools import charsets, images, manifest, schema, tfrecord
from data_tools.manifest import ImageSpec, LabelSpec, Manifest, Shard, Split

UPPER = charsets.CHARSETS["upper"]


def draw(example: int, *, height: int = 20, width: int = 80) -> np.ndarray:
    """Pixels that differ by example, uint8 [height, width, 3]."""
    rng = np.random.default_rng(example)
    coarse = rng.integers(0, 256, (height // 4, width // 8, 3), np.uint8)
    return np.kron(coarse, np.ones((4, 8, 1), np.uint8))


def texts(count: int, *, charset: str = UPPER, lengths: Sequence[int] = (4,)) -> list[str]:
    """Labels that differ by example, of these lengths in turn."""
    rng = np.random.default_rng(count)
    return ["".join(rng.choice(list(charset), lengths[i % len(lengths)])) for i in range(count)]


def write_set(
    folder: Path,
    *,
    train: Sequence[str],
    test: Sequence[str],
    validation: Sequence[str] = (),
    charset: str = UPPER,
    shards: int = 2,
    encoding: str = "raw",
    size: tuple[int, int] = (20, 80),
) -> Manifest:
    """Writes a data set whose example i of each split has the pixels of `draw`.

    Args:
        folder: where; made here.
        train: the labels of the training split.
        test: those of the test split, whose pictures are numbered on from the last of train.
        validation: those of a validation split, numbered on from there, if there shall be one.
        charset: what the labels are made of.
        shards: files a split.
        encoding: "raw" or "png".
        size: height and width of the pictures.
    """
    folder.mkdir(parents=True)
    lengths = [len(text) for text in (*train, *test, *validation)]
    splits, named = {}, [("train", train, 0), ("test", test, len(train))]
    if validation:
        named.append(("validation", validation, len(train) + len(test)))
    for name, labels, first in named:
        framed = []
        for example, text in enumerate(labels, start=first):
            pixels = draw(example, height=size[0], width=size[1])
            image = pixels.tobytes() if encoding == "raw" else images.encode_png(pixels)
            framed.append(tfrecord.frame(schema.captcha_record(image, text, charset)))
        splits[name] = _write_split(folder, name, framed, shards)
    made = Manifest(
        tool="0.1.0", name="captcha", kind="captcha", created_from={},
        image=ImageSpec(height=size[0], width=size[1], channels=3, encoding=encoding),
        label=LabelSpec(
            charset=charset, min_length=min(lengths), max_length=max(lengths), case="keep"
        ),
        classes=None, skipped=(), splits=splits,
    )  # fmt: skip
    (folder / manifest.FILE_NAME).write_bytes(manifest.dump(made))
    return made


def _write_split(folder: Path, name: str, framed: list[bytes], shards: int) -> Split:
    written = []
    parts = np.array_split(np.arange(len(framed)), shards) if framed else []
    for index, part in enumerate(parts):
        data = b"".join(framed[i] for i in part)
        file = f"captcha-{name}.tfrecord-{index:05d}-of-{shards:05d}"
        (folder / file).write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        written.append(Shard(file=file, examples=len(part), bytes=len(data), sha256=sha256))
    offsets = np.cumsum([0, *map(len, framed)]).astype(np.int64)
    np.save(folder / f"offsets-{name}.npy", offsets)
    return Split(examples=len(framed), offsets=f"offsets-{name}.npy", shards=tuple(written))
