"""Named sets of characters that labels are made of."""

import string
from collections.abc import Iterable

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
    used: set[str] = set()
    for label in labels:
        used.update(label)
    named = (charset for charset in CHARSETS.values() if used <= set(charset))
    return next(named, "".join(sorted(used)))


def fold_case(label: str, case: str) -> str:
    """The label in "upper" or "lower" case; "keep" leaves it as it is."""
    return {"upper": label.upper(), "lower": label.lower()}.get(case, label)


def label_fault(label: str, allowed: range, charset: str) -> str:
    """Says why a label doesn't fit lengths and characters; empty if it does."""
    if not label.isprintable():
        return f"label {label!r} has a character that can't be printed"
    if len(label) not in allowed:
        lengths = f"{allowed.start}" + (f" to {allowed[-1]}" if len(allowed) > 1 else "")
        return f"label {label!r} has {len(label)} characters in place of {lengths}"
    outside = "".join(sorted(set(label).difference(charset)))
    return f"label {label!r} has {outside!r}, which is not of {charset!r}" if outside else ""


def is_number(label: str) -> bool:
    """Tells whether a spreadsheet takes a label for a number and drops zeros in front."""
    return label.isascii() and label.isdecimal()


def zero_padded(label: str, length: int) -> str:
    """The label with zeros in front; of other characters than digits it stays as it is."""
    return label.zfill(length) if is_number(label) else label
