"""What a record holds, how a label becomes bytes and back, and the files that let TFDS read a set.

A captcha record is a tf.train.Example of

    image  the bytes of a JPEG or PNG file, or raw uint8 HWC
    label  one uint8 a character, the character's place in the charset
    text   the label as a UTF-8 string
"""

import json
import string
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from data_tools import images, tfrecord
from data_tools.errors import INTEGRITY, DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest

Pixels = npt.NDArray[np.uint8]

_UPPER, _LOWER, _DIGITS = string.ascii_uppercase, string.ascii_lowercase, string.digits
CHARSETS = {
    "digits": _DIGITS,
    "upper": _UPPER,
    "lower": _LOWER,
    "upper-digits": _DIGITS + _UPPER,
    "lower-digits": _DIGITS + _LOWER,
    "letters": _UPPER + _LOWER,
    "alnum": _DIGITS + _UPPER + _LOWER,
}
"""Named charsets from small to large; label value i stands for character i."""

MAX_CHARSET = 256
"""A label value is one byte."""


def choose_charset(labels: Iterable[str]) -> str:
    """Returns the smallest named charset that holds all labels, else their sorted code points."""
    used = set().union(*labels)
    named = (charset for charset in CHARSETS.values() if used <= set(charset))
    return next(named, "".join(sorted(used)))


def encode_label(text: str, charset: str) -> bytes:
    """Returns one byte a character, its place in the charset; ValueError if it has none."""
    return bytes(charset.index(character) for character in text)


def decode_label(values: Sequence[int] | bytes, charset: str) -> str:
    """Returns the text of label values; IndexError if one is outside the charset."""
    return "".join(charset[value] for value in values)


def captcha_record(image: bytes, text: str, charset: str) -> bytes:
    """Returns the record of one captcha, a serialized tf.train.Example."""
    label = encode_label(text, charset)
    return tfrecord.encode_example({"image": image, "label": label, "text": text.encode()})


def decode_record(record: bytes, manifest: Manifest, where: str) -> tuple[Pixels, Pixels]:
    """Returns the image and the label of a record of this data set.

    Returns:
        uint8 [height, width, channels] as the manifest says, and the label, uint8 [length].

    Raises:
        DataError: INTEGRITY `where` when the record isn't what the manifest says.
    """
    try:
        features = tfrecord.decode_example(record)
        image_bytes, label = _one_bytes(features, "image"), _one_bytes(features, "label")
        text = _one_bytes(features, "text").decode()
        image = _decode_image(image_bytes, manifest, where)
        return image, _decode_label(label, text, manifest.label)
    except (ValueError, DataError) as error:
        reason = error.reason if isinstance(error, DataError) else str(error)
        raise DataError(
            INTEGRITY, where, f"not a record of this data set: {reason}",
            fix="convert the data set again",
        ) from error  # fmt: skip


def text_of(record: bytes, where: str) -> str:
    """Returns the label of a record as text, without decoding its image.

    Raises:
        DataError: INTEGRITY `where` when it has none.
    """
    try:
        return _one_bytes(tfrecord.decode_example(record), "text").decode()
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
    """Returns features.json and dataset_info.json, with which tfds.builder_from_directory reads it.

    TFDS gives `image` as uint8 [height, width, channels], `label` as uint8 [length] and `text` as a
    string.
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
            "features": {
                "image": _tfds_image(manifest.image),
                "label": _tfds_bytes([_tfds_length(manifest.label)]),
                "text": {"pythonClassName": f"{_TFDS}.text_feature.Text", "text": {}},
            }
        },
    }
    return {"features.json": _json(features), "dataset_info.json": _json(info)}


_TFDS = "tensorflow_datasets.core.features"


def _tfds_image(image: ImageSpec) -> dict[str, object]:
    shape = [image.height, image.width, image.channels]
    if image.encoding == "raw":
        return _tfds_bytes(shape)
    spec = {"shape": {"dimensions": list(map(str, shape))}, "dtype": "uint8"}
    if image.encoding != "mixed":
        spec["encodingFormat"] = image.encoding
    return {"pythonClassName": f"{_TFDS}.image_feature.Image", "image": spec}


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
