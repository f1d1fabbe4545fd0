"""What the ranks tell each other comes back as it was, by the receiver's annotations alone."""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from data_tools import convert_folder, schema, wire
from data_tools.convert_cifar import Part
from data_tools.convert_images import Chunk, ConvertedChunk
from data_tools.errors import INPUT, Kind
from data_tools.flags import CaptchaToTfrecord, ImageFlags
from data_tools.sources.captcha import Fault
from data_tools.sources.rows import Row, Rows
from data_tools.writer import WrittenShard


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner
    kind: Kind
    many: tuple[Inner, ...]
    pair: tuple[int, str]
    data: bytes
    counts: Counter[tuple[int, int]]
    names: dict[tuple[int, int], str]
    found: set[str]
    shares: dict[str, float]
    rows: range
    case: Literal["keep", "upper"] = "keep"
    maybe: int | None = None
    faults: list[Fault] = field(default_factory=list)


def travel(kind: Any, value: Any) -> Any:
    return wire.load(kind, json.loads(json.dumps(wire.dump(kind, value))))


def test_every_kind_of_field_comes_back_equal() -> None:
    value = Outer(
        inner=Inner("a", None), kind=INPUT, many=(Inner("b", Path("c/d")), Inner("", Path())),
        pair=(3, "x"), data=b"\x00\xff", counts=Counter({(1, 2): 3}), names={(1, 2): "\u00e9"},
        found={"jpeg", "png"}, shares={"train": 0.1 + 0.2}, rows=range(3, 9, 2), maybe=7,
        faults=[Fault(1, INPUT, "a", "b", "c")],
    )  # fmt: skip
    back = travel(Outer, value)
    assert back == value
    assert type(back.counts) is Counter
    assert type(back.kind) is Kind


def test_a_file_name_that_is_no_text_comes_back() -> None:
    path = Path(b"\xff.jpg".decode("utf-8", "surrogateescape"))
    assert travel(Path, path) == path


def test_what_conversion_sends_comes_back_and_does_the_same() -> None:
    flags = CaptchaToTfrecord(
        images=Path("i"), labels=Path("l"), out=Path("o"), split_folders="a=train,b=test",
    )  # fmt: skip
    for record, label in (
        (functools.partial(schema.captcha_record, charset="AB"), "BA"),
        (functools.partial(convert_folder.class_record, numbers={"cat": 1}), "cat"),
    ):
        chunk = Chunk(
            index=1, folder=Path("f"), source=Path("i"), rows=Rows.of([Row(3, "a.jpg", label)]),
            shares={"train": 1.0}, record=record, flags=flags,
        )  # fmt: skip
        back = travel(Chunk, chunk)
        assert back.record(b"image", label) == record(b"image", label)
        assert dataclasses.replace(back, record=record, flags=flags) == chunk
        assert type(back.flags) is ImageFlags
        assert all(
            getattr(back.flags, own.name) == getattr(flags, own.name)
            for own in dataclasses.fields(ImageFlags)
        )


def test_what_conversion_returns_comes_back_equal() -> None:
    done = ConvertedChunk(
        shards={"train": WrittenShard(Path("s"), 1, 2, "h")}, sizes=Counter({(80, 20): 3}),
        faults=[Fault(2, INPUT, "a.jpg", "cut", "replace it")], digest=b"\x01",
        first_of={(80, 20): "a.jpg"}, encodings={"png"},
    )  # fmt: skip
    assert travel(ConvertedChunk, done) == done
    part = Part(Path("s"), (Path("a"), Path("b")), "cifar10", range(3, 7))
    assert travel(Part, part) == part


def test_what_has_no_form_on_the_wire_is_a_type_error() -> None:
    for value in (object(), functools.partial(print, 1)):
        with pytest.raises(TypeError, match=" has no form on the wire"):
            wire.dump(dict[str, list[Any]], {"a": [value]})


def test_nothing_that_arrives_chooses_a_type_or_a_function_of_another_package() -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is longer"):
        wire.load(Inner, ["a", None, "os.system"])
    with pytest.raises(ValueError, match=r"os\.system is no function of data_tools\.\*"):
        wire.load(Callable[[bytes, str], bytes], ["os", "system", [["command", "true"]]])
