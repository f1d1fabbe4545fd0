import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools import charsets, images, schema, tfrecord
from data_tools.errors import INTEGRITY, DataError
from data_tools.manifest import ImageSpec, LabelSpec, Manifest

DIGITS, UPPER, LOWER = string.digits, string.ascii_uppercase, string.ascii_lowercase
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 10, 3), np.uint8)


def manifest_of(encoding: str, charset: str = UPPER, lengths: tuple[int, int] = (4, 4)) -> Manifest:
    return Manifest(
        tool="0.1.0", name="captcha", kind="captcha", created_from={}, classes=None, skipped=(),
        image=ImageSpec(height=6, width=10, channels=3, encoding=encoding),
        label=LabelSpec(
            charset=charset, min_length=lengths[0], max_length=lengths[1], case="keep"
        ),
        splits={},
    )  # fmt: skip


def refused(record: bytes, manifest: Manifest) -> DataError:
    with pytest.raises(DataError) as caught:
        schema.decode_record(record, manifest, "set/shard:record 7")
    assert caught.value.kind is INTEGRITY
    assert caught.value.where == "set/shard:record 7"
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("labels", "charset"),
    [
        (["0012", "9"], DIGITS),
        (["ABC"], UPPER),
        (["abc"], LOWER),
        (["AB12"], DIGITS + UPPER),
        (["ab12"], DIGITS + LOWER),
        (["aB12"], DIGITS + UPPER + LOWER),
        (["AB_2"], "2AB_"),
        (["ЖЫ", "Я"], "ЖЫЯ"),
        (["b a"], " ab"),
    ],
)
def test_the_charset_is_the_smallest_named_set_that_holds_all_else_the_sorted_characters(
    labels: list[str], charset: str
) -> None:
    assert sorted(charsets.choose_charset(labels)) == sorted(charset)


def test_one_kind_of_character_starts_at_0() -> None:
    assert charsets.choose_charset(["Z"]) == UPPER
    assert charsets.choose_charset(["z"]) == LOWER
    assert charsets.choose_charset(["9"]) == DIGITS
    assert schema.encode_label("AZ", UPPER) == bytes([0, 25])


def test_the_named_sets_have_names_and_no_character_twice() -> None:
    assert {"digits", "upper", "lower"} <= set(charsets.CHARSETS)
    assert charsets.CHARSETS["digits"] == DIGITS
    assert charsets.CHARSETS["upper"] == UPPER
    assert charsets.CHARSETS["lower"] == LOWER
    for charset in charsets.CHARSETS.values():
        assert len(set(charset)) == len(charset)


@given(st.lists(st.text(st.sampled_from(DIGITS + UPPER + LOWER), min_size=1), min_size=1))
def test_of_the_named_sets_that_hold_all_labels_none_is_smaller(labels: list[str]) -> None:
    used = set("".join(labels))
    sizes = [len(charset) for charset in charsets.CHARSETS.values() if used <= set(charset)]
    chosen = charsets.choose_charset(labels)
    assert used <= set(chosen)
    assert len(chosen) == min(sizes)


def test_the_charset_does_not_depend_on_the_order_of_the_labels() -> None:
    labels = ["ü1", "a_", "Ω"]
    assert charsets.choose_charset(labels) == charsets.choose_charset(reversed(labels))


def test_the_courses_label_values_are_its_letters() -> None:
    assert schema.decode_label([18, 3, 2, 21], UPPER) == "SDCV"
    assert schema.decode_label(bytes([18, 3, 2, 21]), UPPER) == "SDCV"
    assert list(schema.encode_label("SDCV", UPPER)) == [18, 3, 2, 21]


@given(st.lists(st.text(max_size=6), min_size=1, max_size=6))
def test_any_label_survives_a_round_trip_in_its_charset(labels: list[str]) -> None:
    charset = charsets.choose_charset(labels)
    for label in labels:
        assert schema.decode_label(schema.encode_label(label, charset), charset) == label


def test_a_captcha_record_is_an_example_of_image_label_and_text() -> None:
    record = schema.captcha_record(b"image bytes", "CAB", UPPER)
    assert tfrecord.decode_example(record) == {
        "image": [b"image bytes"],
        "label": [bytes([2, 0, 1])],
        "text": [b"CAB"],
    }


def test_text_is_utf_8() -> None:
    record = schema.captcha_record(b"", "Ж", "ЖЫ")
    assert tfrecord.decode_example(record)["text"] == ["Ж".encode()]


@pytest.mark.parametrize("encoding", ["png", "mixed", "raw"])
def test_a_record_decodes_to_its_pixels_and_label_values(encoding: str) -> None:
    image = PIXELS.tobytes() if encoding == "raw" else images.encode_png(PIXELS)
    record = schema.captcha_record(image, "CABZ", UPPER)
    pixels, label = schema.decode_record(record, manifest_of(encoding), "here")
    np.testing.assert_array_equal(pixels, PIXELS)
    assert pixels.dtype == np.uint8
    assert label.dtype == np.uint8
    assert label.tolist() == [2, 0, 1, 25]


def test_a_jpeg_record_decodes_to_the_images_own_pixels() -> None:
    image = images.encode_jpeg(PIXELS)
    record = schema.captcha_record(image, "CABZ", UPPER)
    pixels, _ = schema.decode_record(record, manifest_of("jpeg"), "here")
    np.testing.assert_array_equal(pixels, images.decode(image, "here"))


def png_record(written: str = "CABZ", **changes: object) -> bytes:
    features = tfrecord.decode_example(
        schema.captcha_record(images.encode_png(PIXELS), written, UPPER)
    )
    flat = {name: values[0] for name, values in features.items()} | changes
    return tfrecord.encode_example({k: v for k, v in flat.items() if v is not None})


MISMATCHES = {
    "random bytes": b"\xff\xd8\xff\xe0 a JPEG and no Example",
    "no bytes": b"",
    "no image": png_record(image=None),
    "no label": png_record(label=None),
    "an image of ints": png_record(image=[1, 2, 3]),
    "base64 text as image": png_record(image=b"iVBORw0KGgoAAAANSUhEUgAAAAoAAAAGCAIAAABxZ0iSAAA="),
    "raw bytes where PNG is said": png_record(image=PIXELS.tobytes()),
    "an image of another size": png_record(image=images.encode_png(PIXELS[:5])),
    "a turned image": png_record(image=images.encode_png(PIXELS.transpose(1, 0, 2).copy())),
    "a cut image": png_record(image=images.encode_png(PIXELS)[:-9]),
    "a label value outside the charset": png_record(label=bytes([0, 1, 2, 26])),
    "a label that is too short": png_record("CAB"),
    "a label that is too long": png_record("CABZZ"),
    "text that is not the label's": png_record(text=b"ZZZZ"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_record_that_does_not_fit_the_manifest_is_integrity_at_its_place(name: str) -> None:
    refused(MISMATCHES[name], manifest_of("png"))


@pytest.mark.parametrize("change", [-1, 1])
def test_raw_bytes_of_another_size_are_integrity(change: int) -> None:
    image = (PIXELS.tobytes() + b"x")[: PIXELS.size + change]
    refused(schema.captcha_record(image, "CABZ", UPPER), manifest_of("raw"))


def test_labels_between_the_manifests_lengths_pass_and_others_do_not() -> None:
    manifest = manifest_of("png", lengths=(2, 3))
    for text in ("AB", "ABC"):
        assert len(schema.decode_record(png_record(text), manifest, "here")[1]) == len(text)
    for text in ("A", "ABCD"):
        refused(png_record(text), manifest)


def test_a_charset_of_256_characters_uses_every_value_of_a_byte() -> None:
    charset = "".join(chr(0x4E00 + index) for index in range(256))
    label = schema.encode_label(charset[255] + charset[0], charset)
    assert list(label) == [255, 0]
    assert schema.decode_label(label, charset) == charset[255] + charset[0]


@given(st.binary(max_size=80))
def test_random_records_are_integrity_and_nothing_else(record: bytes) -> None:
    refused(record, manifest_of("png"))


def test_every_damaged_record_decodes_or_is_integrity() -> None:
    whole = png_record()
    manifest = manifest_of("png")
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        try:
            schema.decode_record(bytes(damaged), manifest, "here")
        except DataError as error:
            assert (error.kind, error.where) == (INTEGRITY, "here")
