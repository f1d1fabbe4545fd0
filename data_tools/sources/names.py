"""The names in a folder in little memory, sorted and to be looked up."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

_GROUP = 32
"""Names that are searched through, once their group is found."""


class Names:
    """Different names without NULs: 3 bytes and their own each, where a set takes 120.

    They lie one after the other in UTF-8, sorted by their code points, which is the order of their
    bytes too. Of each group of them the first is an object as well, by which the group is found.
    """

    def __init__(self, names: Iterable[str]) -> None:
        # Names of files are of any bytes, which Python writes as lone surrogates.
        encoded = sorted(name.encode(errors="surrogatepass") for name in names)
        self._count = len(encoded)
        self._firsts = encoded[::_GROUP]
        self._joined = bytearray(1)  # a NUL before each name and behind it
        self._starts = array("Q", [0])
        for start in range(0, len(encoded), _GROUP):
            self._joined += b"\0".join(encoded[start : start + _GROUP]) + b"\0"
            self._starts.append(len(self._joined) - 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for start, end in pairwise(self._starts):
            yield from self._joined[start + 1 : end].decode(errors="surrogatepass").split("\0")

    def __contains__(self, name: str) -> bool:
        return self.place(name) is not None

    def place(self, name: str) -> int | None:
        """Returns the place of a name among the sorted ones, None if it isn't there."""
        encoded = name.encode(errors="surrogatepass")
        group = bisect_right(self._firsts, encoded) - 1
        if group < 0:
            return None
        start, end = self._starts[group : group + 2]
        found = self._joined.find(b"\0%b\0" % encoded, start, end + 1)
        if found < 0:
            return None
        return group * _GROUP + self._joined.count(0, start, found)
