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
