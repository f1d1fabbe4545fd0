"""`data_tools info`: what is in a data set folder."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from data_tools import manifest as manifests
from data_tools import schema, tfrecord
from data_tools.flags import Info
from data_tools.manifest import Manifest


def main(command: Info) -> None:
    """Runs the command."""
    facts = collect(command.folder, manifests.load(command.folder))
    if command.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print("\n".join(describe(facts)))


def collect(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Returns the facts of a data set in plain values.

    Over all splits, `classes` counts the examples of each class, `positions` the characters at each
    place of the labels.
    """
    classes: Counter[str] = Counter()
    positions: list[Counter[str]] = []
    for split in manifest.splits.values():
        manifests.check_sizes(folder, split)
        for shard in split.shards:
            for index, (offset, record) in enumerate(tfrecord.read_records(folder / shard.file)):
                where = f"{folder / shard.file}:record {index}:byte {offset}"
                text = schema.text_of(record, manifest, where)
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
    }  # fmt: skip


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
    return lines
