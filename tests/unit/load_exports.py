"""Runs the Python of model cards in a process that can't import this project or Horovod.

python load_exports.py OUT EXPORT IMAGES [EXPORT IMAGES ...]: OUT gets logits and texts of each.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN = ("data_tools", "horovod", "hvd_train")


class Hides:
    """Refuses to import what isn't there where a model is used."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in HIDDEN:
            raise ImportError(f"{name} isn't here")


def refused(found: dict[str, Any], serve: Any, data: bytes) -> str:
    try:
        serve(image_bytes=found["tf"].constant([data]))
    except found["tf"].errors.InvalidArgumentError as error:
        return str(error)
    return ""


def use(export: Path, files: list[Path]) -> dict[str, Any]:
    os.chdir(export)
    blocks = re.findall(r"^```python\n(.*?)^```$", Path("MODEL_CARD.md").read_text(), re.M | re.S)
    found: dict[str, Any] = {"files": files}
    exec("\n".join(blocks), found)
    used = {"logits": found["logits"], "texts": found["texts"], "lines": blocks[-1].count("\n")}
    if (export / "model" / "saved_model.pb").exists():
        serve = found["model"].signatures["serving_bytes"]
        data = found["tf"].constant([file.read_bytes() for file in files])
        of_bytes = serve(image_bytes=data)
        used["logits of bytes"] = of_bytes["logits"].numpy()
        used["labels"] = [label.decode() for label in of_bytes["label"].numpy()]
        png = (export.parents[3] / "images" / "wide.png").read_bytes()
        used["refused"] = [refused(found, serve, data) for data in (b"no image", png)]
    return used


def main(out: Path, pairs: list[tuple[Path, Path]]) -> None:
    report = []
    for number, (export, images) in enumerate(pairs):
        used = use(export, sorted(images.iterdir()))
        for name in ("logits", "logits of bytes"):
            if name in used:
                assert used[name].dtype == np.float32
                np.save(out / f"{number} {name}.npy", used.pop(name))
        report.append(used)
    (out / "used.json").write_text(json.dumps(report))


if __name__ == "__main__":
    sys.meta_path.insert(0, Hides())
    out, *paths = map(Path, sys.argv[1:])
    main(out, list(zip(paths[::2], paths[1::2], strict=True)))
