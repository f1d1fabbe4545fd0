"""Values as JSON and back, for what the ranks of a job tell each other: never a pickle.

What a value becomes follows from the annotation that both sides have, so nothing that arrives names
a type. The one thing that is named is a function of this package.
"""

import collections.abc
import dataclasses
import functools
import importlib
import itertools
import types
import typing
from collections import Counter
from pathlib import Path
from typing import Any

PACKAGE = "data_tools."


def dump(kind: Any, value: Any) -> Any:
    """Returns a value of an annotated kind in JSON's types.

    A dataclass becomes the list of the fields that `kind` has, a dict pairs, a function its name.

    Args:
        kind: a class or an annotation like dict[str, tuple[int, ...]] or Path | None.
        value: what the annotation says.

    Raises:
        TypeError: it holds something that `load` doesn't know.
    """
    kind = _without_none(kind)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, range):
        return [value.start, value.stop, value.step]
    if isinstance(value, dict):
        key_kind, item_kind = _pair(kind)
        return [[dump(key_kind, key), dump(item_kind, item)] for key, item in value.items()]
    if isinstance(value, list | tuple | set):
        return [dump(*pair) for pair in zip(_items(kind, len(value)), value, strict=True)]
    if isinstance(value, functools.partial) and not value.args:
        hints = typing.get_type_hints(value.func)
        keywords = [[name, dump(hints[name], item)] for name, item in value.keywords.items()]
        return [value.func.__module__, value.func.__name__, keywords]
    if dataclasses.is_dataclass(kind):
        return [dump(hint, getattr(value, name)) for name, hint in _fields(kind)]
    raise TypeError(f"{type(value).__name__} has no form on the wire")


def load(kind: Any, plain: Any) -> Any:
    """Returns the value of an annotated kind that `dump` made plain.

    A dataclass comes as it was, without its own checks.
    """
    if plain is None:
        return None
    kind = _without_none(kind)
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return plain
    if origin in (list, tuple, set):
        return origin(itertools.starmap(load, zip(_items(kind, len(plain)), plain, strict=True)))
    if origin in (dict, Counter, collections.abc.Mapping):
        key_kind, item_kind = _pair(kind)
        pairs = {load(key_kind, key): load(item_kind, item) for key, item in plain}
        return Counter(pairs) if origin is Counter else pairs
    if origin is collections.abc.Callable:
        return _load_partial(*plain)
    if dataclasses.is_dataclass(kind):
        made = object.__new__(typing.cast("type[Any]", kind))
        for (name, hint), item in zip(_fields(kind), plain, strict=True):
            object.__setattr__(made, name, load(hint, item))
        return made
    if kind in (bytes, bytearray):
        return kind.fromhex(plain)
    return range(*plain) if kind is range else kind(plain)


def _load_partial(module: str, name: str, keywords: list[tuple[str, Any]]) -> Any:
    if not module.startswith(PACKAGE):
        raise ValueError(f"{module}.{name} is no function of {PACKAGE}*")
    function = getattr(importlib.import_module(module), name)
    hints = typing.get_type_hints(function)
    return functools.partial(function, **{key: load(hints[key], item) for key, item in keywords})


def _without_none(kind: Any) -> Any:
    """The one other kind of `kind | None`."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return next(other for other in typing.get_args(kind) if other is not types.NoneType)


def _pair(kind: Any) -> tuple[Any, Any]:
    """The kinds of keys and values; a Counter has no second argument."""
    key, value, *_ = (*typing.get_args(kind), int)
    return key, value


def _items(kind: Any, count: int) -> collections.abc.Iterable[Any]:
    """The kind of each of so many items."""
    arguments = typing.get_args(kind)
    alike = typing.get_origin(kind) is not tuple or arguments[-1] is Ellipsis
    return itertools.repeat(arguments[0], count) if alike else arguments


def _fields(kind: Any) -> list[tuple[str, Any]]:
    """Name and annotation of each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
