"""`data_tools info`: what is in a data set folder."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_tools import manifest as manifests
from data_tools import schema, tfrecord
from data_tools.console import print_result, progress
from data_tools.flags import Info
from data_tools.manifest import Manifest

CONFLICTS_SHOWN = 10
"""At most so many images with several labels are listed; all are counted."""
_DIGEST_BYTES = 16


def main(command: Info) -> None:
    """Runs the command."""
    facts = collect(command.folder, manifests.load(command.folder))
    print_result(describe(facts), facts, as_json=command.json)


def collect(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Returns the facts of a data set in plain values.

    Over all splits, `classes` counts the examples of each class, `positions` the characters at each
    place of the labels. Images are equal when their bytes are.
    """
    classes: Counter[str] = Counter()
    positions: list[Counter[str]] = []
    seen = SeenImages()
    for split, data, text in _examples(folder, manifest):
        seen.add(data, text, split)
        if manifest.classes is not None:
            classes[text] += 1
        for place, character in enumerate(text if manifest.label else ""):
            if place == len(positions):
                positions.append(Counter())
            positions[place][character] += 1
    image, label = manifest.image, manifest.label
    return {
        "name": manifest.name,
        "kind": manifest.kind,
        "image": {
            "width": image.width, "height": image.height, "channels": image.channels,
            "encoding": image.encoding,
        },
        "splits": {
            name: {"examples": split.examples, "shards": len(split.shards), "bytes": split.bytes}
            for name, split in manifest.splits.items()
        },
        "charset": label.charset if label else None,
        "lengths": [label.min_length, label.max_length] if label else None,
        "classes": {name: classes[name] for name in manifest.classes or ()},
        "skipped": len(manifest.skipped),
        "positions": [dict(sorted(counts.items())) for counts in positions],
        **seen.facts(),
    }  # fmt: skip


def _examples(folder: Path, manifest: Manifest) -> Iterator[tuple[str, bytes, str]]:
    """Yields the split, the stored image and the label as text of each example, in order."""
    with progress("reading", sum(split.bytes for split in manifest.splits.values())) as advance:
        for name, split in manifest.splits.items():
            manifests.check_sizes(folder, split)
            for shard in split.shards:
                records = tfrecord.read_records(folder / shard.file, advance)
                for index, (offset, record) in enumerate(records):
                    where = f"{folder / shard.file}:record {index}:byte {offset}"
                    yield name, *schema.image_and_text(record, manifest, where)


@dataclass(slots=True)
class SeenImages:
    """Finds equal images by their hashes: some 24 bytes an example, however large the images.

    Attributes:
        digests: of all images, one after the other.
        labels: the number of each example's label.
        texts: the labels with their numbers.
        splits: how many examples each split has.
    """

    digests: bytearray = field(default_factory=bytearray)
    labels: "array[int]" = field(default_factory=lambda: array("q"))
    texts: dict[str, int] = field(default_factory=dict)
    splits: Counter[str] = field(default_factory=Counter)

    def add(self, image: bytes, label: str, split: str) -> None:
        """Takes the next example of a split; all of one split come before those of the next."""
        self.digests += hashlib.blake2b(image, digest_size=_DIGEST_BYTES).digest()
        self.labels.append(self.texts.setdefault(label, len(self.texts)))
        self.splits[split] += 1

    def facts(self) -> dict[str, Any]:
        """Returns how many images are there twice, and which have several labels."""
        groups = self._groups()
        conflicts = [group for group in groups if len({self.labels[n] for n in group}) > 1]
        return {
            "duplicates": {
                "examples": sum(len(group) - 1 for group in groups),
                "images": len(groups),
                "images_in_several_splits": sum(
                    len({self._place(number)[0] for number in group}) > 1 for group in groups
                ),
            },
            "conflicts": {
                "images": len(conflicts),
                "first": [self._labels_of(group) for group in conflicts[:CONFLICTS_SHOWN]],
            },
        }

    def _groups(self) -> list[list[int]]:
        """The numbers of the examples that share an image, for each that several have."""
        digests = np.frombuffer(self.digests, np.uint64).reshape(-1, _DIGEST_BYTES // 8)
        order = np.lexsort(digests.T)  # keeps the order of equal ones
        differs = np.any(digests[order[1:]] != digests[order[:-1]], axis=1)
        starts = np.concatenate([[0], np.flatnonzero(differs) + 1, [len(order)]])
        groups = [
            order[starts[at] : starts[at + 1]].tolist()
            for at in np.flatnonzero(np.diff(starts) > 1)
        ]
        return sorted(groups)

    def _labels_of(self, group: list[int]) -> list[dict[str, Any]]:
        """The first example of each label that an image has."""
        texts = list(self.texts)
        first = {self.labels[number]: number for number in reversed(group)}
        found = []
        for number in sorted(first.values())[:CONFLICTS_SHOWN]:
            split, record = self._place(number)
            found.append({"split": split, "record": record, "label": texts[self.labels[number]]})
        return found

    def _place(self, number: int) -> tuple[str, int]:
        """The split of an example and its number there."""
        for split, examples in self.splits.items():
            if number < examples:
                return split, number
            number -= examples
        raise IndexError(number)


def describe(facts: dict[str, Any]) -> list[str]:
    """Writes the facts as lines."""
    image = facts["image"]
    lines = [
        f"{facts['name']} ({facts['kind']}): images {image['width']}x{image['height']}x"
        f"{image['channels']}, {image['encoding']}"
    ]
    for name, split in facts["splits"].items():
        lines.append(
            f"  {name}: {split['examples']} examples, {split['shards']} shards, "
            f"{split['bytes']} bytes"
        )
    if facts["charset"]:
        shortest, longest = facts["lengths"]
        length = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        lines.append(f"  labels: {length} of {len(facts['charset'])}: {facts['charset']}")
    if facts["classes"]:
        each = " ".join(f"{name}:{count}" for name, count in facts["classes"].items())
        lines.append(f"  classes: {each}")
    for place, counts in enumerate(facts["positions"]):
        each = " ".join(f"{character}:{count}" for character, count in counts.items())
        lines.append(f"  position {place}: {each}")
    if facts["skipped"]:
        lines.append(f"  skipped: {facts['skipped']} rows, listed in the manifest")
    return lines + _describe_equal(facts["duplicates"], facts["conflicts"])


def _describe_equal(duplicates: dict[str, int], conflicts: dict[str, Any]) -> list[str]:
    """Says which images are there twice, and those of them whose labels differ."""
    if not duplicates["images"]:
        return ["  duplicates: none"]
    lines = [
        f"  duplicates: {duplicates['examples']} examples repeat one of {duplicates['images']} "
        f"images, of which {duplicates['images_in_several_splits']} are in several splits"
    ]
    if conflicts["images"]:
        shown = len(conflicts["first"])
        listed = "" if shown == conflicts["images"] else f", the first {shown}"
        lines.append(f"  conflicting labels: {conflicts['images']} images have several{listed}:")
    for labels in conflicts["first"]:
        each = ", ".join(f"{of['split']} record {of['record']} {of['label']!r}" for of in labels)
        lines.append(f"    {each}")
    return lines
