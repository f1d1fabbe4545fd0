"""What readers of files that hold many images give."""

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch:
    """The examples of a file, in its order.

    Attributes:
        images: uint8 [n, height, width, channels].
        labels: uint8 [n].
        coarse_labels: uint8 [n], where the set has such.
    """

    images: Pixels
    labels: Pixels
    coarse_labels: Pixels | None = None

    def part(self, rows: slice) -> "Batch":
        """Some of the examples."""
        coarse = None if self.coarse_labels is None else self.coarse_labels[rows]
        return Batch(self.images[rows], self.labels[rows], coarse)

    def forget(self) -> None:
        """Gives back the memory of what was read of a mapped file; it is read again if needed."""
        forget(self.images)


def forget(mapped: Pixels) -> None:
    """See `Batch.forget`."""
    pages = getattr(mapped, "_mmap", None)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)
