"""What a record holds, how a label becomes bytes and back, and the files that let TFDS read a set.

A captcha record is a tf.train.Example of

    image  the bytes of a JPEG or PNG file, or raw uint8 HWC
    label  one uint8 a character, the character's place in the charset
    text   the label as a UTF-8 string

and a class record one of

    image         the same
    label         int64, the number of the class
    coarse_label  int64, the number of its superclass, where the set has such (CIFAR-100)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data_tools import images, tfrecord
from data_tools.errors import INTEGRITY, DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest

Pixels = npt.NDArray[np.uint8]

KEYS = ("image", "label", "text", "coarse_label")
"""The features that are read; a record may have others."""


def encode_label(text: str, charset: str) -> bytes:
    """Returns one byte a character, its place in the charset; ValueError if it has none."""
    return bytes(map(charset.index, text))


def decode_label(values: Sequence[int] | bytes, charset: str) -> str:
    """Returns the text of label values; IndexError if one is outside the charset."""
    return "".join(charset[value] for value in values)


def captcha_record(image: bytes, text: str, charset: str) -> bytes:
    """Returns the record of one captcha, a serialized tf.train.Example."""
    label = encode_label(text, charset)
    return tfrecord.encode_example({"image": image, "label": label, "text": text.encode()})


def class_record(image: bytes, label: int, coarse_label: int | None = None) -> bytes:
    """Returns the record of an image with its class, a serialized tf.train.Example.

    Args:
        image: the pixels, uint8 HWC, or a JPEG or PNG.
        label: the number of the class.
        coarse_label: the number of its superclass, of CIFAR-100.
    """
    features: dict[str, bytes | int] = {"image": image, "label": label}
    if coarse_label is not None:
        features["coarse_label"] = coarse_label
    return tfrecord.encode_example(features)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where the fields of class records lie whose images are raw and of one size.

    Labels below 128 take one byte, so all such records are one array of rows, which is written and
    read a hundred times as fast as one message after the other.

    Attributes:
        template: the record of a black image of class 0, uint8 [length].
        image: the columns of the pixels.
        label: the column of the label.
        coarse_label: the column of the coarse label, if there is one.
    """

    template: Pixels
    image: slice
    label: int
    coarse_label: int | None


MAX_ROW_CLASSES = 128
"""A label below it is one byte of a varint."""


def row_layout(image_bytes: int, *, coarse: bool) -> RowLayout:
    """Returns the layout of records with that many bytes of pixels."""

    def record(fill: int, label: int, coarse_label: int) -> Pixels:
        image = bytes([fill]) * image_bytes
        data = class_record(image, label, coarse_label if coarse else None)
        return np.frombuffer(data, np.uint8)

    template = record(0, 0, 0)
    pixels, label, coarse_label = (
        np.flatnonzero(template != other)
        for other in (record(1, 0, 0), record(0, 1, 0), record(0, 0, 1))
    )
    return RowLayout(
        template=template,
        image=slice(int(pixels[0]), int(pixels[-1]) + 1),
        label=int(label[0]),
        coarse_label=int(coarse_label[0]) if coarse else None,
    )


def encode_rows(images: Pixels, labels: Pixels, coarse_labels: Pixels | None) -> Pixels:
    """Returns the records of many images with their classes, uint8 [n, length].

    Args:
        images: uint8 [n, H, W, C].
        labels: uint8 [n], below 128.
        coarse_labels: the same, if there are any.
    """
    layout = row_layout(int(np.prod(images.shape[1:])), coarse=coarse_labels is not None)
    rows = np.tile(layout.template, (len(images), 1))
    rows[:, layout.image].reshape(images.shape)[:] = images
    rows[:, layout.label] = labels
    if coarse_labels is not None:
        rows[:, layout.coarse_label] = coarse_labels
    return rows


def decode_rows(rows: Pixels, manifest: Manifest) -> tuple[Pixels, Pixels] | None:
    """Decodes records of one length at once.

    Args:
        rows: unframed records, uint8 [n, length].
        manifest: of their data set.

    Returns:
        The images, uint8 [n, H, W, C], and the labels, uint8 [n]; None when the records are not
        all of RowLayout's form, and must be decoded one by one.
    """
    image = manifest.image
    if manifest.classes is None or image.encoding != "raw":
        return None
    shape = (image.height, image.width, image.channels)
    layout = row_layout(int(np.prod(shape)), coarse=manifest.coarse_classes is not None)
    if rows.shape[1] != len(layout.template):
        return None
    classes = {layout.label: len(manifest.classes)}
    if layout.coarse_label is not None and manifest.coarse_classes is not None:
        classes[layout.coarse_label] = len(manifest.coarse_classes)
    fixed = np.ones(len(layout.template), bool)
    fixed[layout.image] = fixed[list(classes)] = False
    fits = np.all(rows[:, fixed] == layout.template[fixed]) and all(
        np.all(rows[:, column] < min(count, MAX_ROW_CLASSES)) for column, count in classes.items()
    )
    return (rows[:, layout.image].reshape(-1, *shape), rows[:, layout.label]) if fits else None


def decode_record(
    record: bytes, manifest: Manifest, where: str
) -> tuple[Pixels, npt.NDArray[np.unsignedinteger[Any]]]:
    """Returns the image and the label of a record of this data set.

    Returns:
        uint8 [height, width, channels] as the manifest says, and the label: uint8 [length] of a
        captcha, uint16 [1] of a class.

    Raises:
        DataError: INTEGRITY `where` when the record isn't what the manifest says.
    """
    try:
        features = tfrecord.decode_example(record, KEYS)
        image = _decode_image(_one_bytes(features, "image"), manifest, where)
        if manifest.classes is not None:
            if manifest.coarse_classes is not None:
                _class_of(features, "coarse_label", manifest.coarse_classes)
            return image, np.array([_class_of(features, "label", manifest.classes)], np.uint16)
        label, text = _one_bytes(features, "label"), _one_bytes(features, "text").decode()
        return image, _decode_label(label, text, manifest.label)
    except (ValueError, DataError) as error:
        reason = error.reason if isinstance(error, DataError) else str(error)
        raise DataError(
            INTEGRITY, where, f"not a record of this data set: {reason}",
            fix="convert the data set again",
        ) from error  # fmt: skip


def image_and_text(record: bytes, manifest: Manifest, where: str) -> tuple[bytes, str]:
    """Returns the stored image of a record, undecoded, and its label as text, of a class its name.

    Raises:
        DataError: INTEGRITY `where` when it has none.
    """
    try:
        features = tfrecord.decode_example(record, KEYS)
        image = _one_bytes(features, "image")
        if manifest.classes is not None:
            return image, manifest.classes[_class_of(features, "label", manifest.classes)]
        return image, _one_bytes(features, "text").decode()
    except ValueError as error:
        raise DataError(
            INTEGRITY, where, f"not a record of this data set: {error}",
            fix="convert the data set again",
        ) from error  # fmt: skip


def _one_bytes(features: dict[str, tfrecord.Values], key: str) -> bytes:
    values = features.get(key, [])
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise ValueError(f"no single bytes feature {key!r}")
    return values[0]


def _class_of(features: dict[str, tfrecord.Values], key: str, classes: Sequence[str]) -> int:
    values = features.get(key, [])
    if len(values) != 1 or not isinstance(values[0], int):
        raise ValueError(f"no single int64 feature {key!r}")
    if not 0 <= values[0] < len(classes):
        raise ValueError(f"{key} {values[0]} of {len(classes)} classes")
    return values[0]


def _decode_image(data: bytes, manifest: Manifest, where: str) -> Pixels:
    spec = manifest.image
    shape = (spec.height, spec.width, spec.channels)
    if spec.encoding == "raw":
        pixels = np.frombuffer(data, np.uint8)
        if pixels.size != np.prod(shape):
            raise ValueError(f"an image of {pixels.size} bytes, expected {np.prod(shape)}")
        return pixels.reshape(shape)
    pixels = images.decode(data, where)
    if spec.encoding not in (images.encoding_of(data), "mixed"):
        raise ValueError(f"an image that is not {spec.encoding}")
    if pixels.shape != shape:
        raise ValueError(f"an image of {pixels.shape[1]}x{pixels.shape[0]}, expected "
                         f"{spec.width}x{spec.height}")  # fmt: skip
    return pixels


def _decode_label(data: bytes, text: str, spec: LabelSpec | None) -> Pixels:
    label = np.frombuffer(data, np.uint8)
    if spec is None:
        return label
    if not spec.min_length <= len(label) <= spec.max_length:
        raise ValueError(f"a label of {len(label)} characters")
    if any(label >= len(spec.charset)):
        raise ValueError(f"label value {label.max()} is outside the charset")
    if decode_label(data, spec.charset) != text:
        raise ValueError(f"label {decode_label(data, spec.charset)!r} but text {text!r}")
    return label


def tfds_files(manifest: Manifest) -> dict[str, bytes]:
    """Returns the files with which tfds.builder_from_directory reads the data set, by name.

    TFDS gives `image` as uint8 [height, width, channels]; of captchas `label` as uint8 [length] and
    `text` as a string; of classes `label` and `coarse_label` as int64 with the names of classes.

    PNG and raw images have our pixels. TensorFlow's default transform of a JPEG is fast and off by
    some levels (4 or 5 in real captchas, up to 16 in pure colors); to have ours, pass
    decoders={"image": tfds.decode.SkipDecoding()} to as_dataset and decode by
    tf.io.decode_jpeg(image, dct_method="INTEGER_ACCURATE").
    """
    splits = [
        {
            "name": name,
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "shardLengths": [str(shard.examples) for shard in split.shards],
            "numBytes": str(split.bytes),
        }
        for name, split in manifest.splits.items()
    ]
    info = {
        "name": manifest.name, "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits
    }  # fmt: skip
    features = {
        "pythonClassName": f"{_TFDS}.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {"image": _tfds_image(manifest.image), **_tfds_labels(manifest)}
        },
    }
    names = {
        f"{key}.labels.txt": "".join(f"{name}\n" for name in classes).encode()
        for key, classes in _class_names(manifest).items()
    }
    return {"features.json": _json(features), "dataset_info.json": _json(info), **names}


_TFDS = "tensorflow_datasets.core.features"


def _tfds_image(image: ImageSpec) -> dict[str, object]:
    shape = [image.height, image.width, image.channels]
    if image.encoding == "raw":
        return _tfds_bytes(shape)
    spec = {"shape": {"dimensions": list(map(str, shape))}, "dtype": "uint8"}
    if image.encoding != "mixed":
        spec["encodingFormat"] = image.encoding
    return {"pythonClassName": f"{_TFDS}.image_feature.Image", "image": spec}


def _class_names(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """The names of the classes by the key of the label in a record."""
    both = {"label": manifest.classes, "coarse_label": manifest.coarse_classes}
    return {key: names for key, names in both.items() if names is not None}


def _tfds_labels(manifest: Manifest) -> dict[str, object]:
    if manifest.classes is None:
        return {
            "label": _tfds_bytes([_tfds_length(manifest.label)]),
            "text": {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}},
        }
    return {
        key: {
            "pythonClassName": f"{_TFDS}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(len(names))},
        }
        for key, names in _class_names(manifest).items()
    }


def _tfds_length(label: LabelSpec | None) -> int:
    """The fixed length of the labels, -1 where it varies."""
    return label.max_length if label and label.min_length == label.max_length else -1


def _tfds_bytes(shape: list[int]) -> dict[str, object]:
    """A uint8 tensor stored as its bytes."""
    spec = {
        "shape": {"dimensions": list(map(str, shape))}, "dtype": "uint8", "encoding": "bytes"
    }  # fmt: skip
    return {"pythonClassName": f"{_TFDS}.tensor_feature.Tensor", "tensor": spec}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
