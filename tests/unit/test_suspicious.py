"""What `hvd_train predict --suspicious` makes of labels, and how it draws images of any size."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from small_captchas import write_captchas

from data_tools import manifest as manifests
from data_tools.cli import main as data_tools
from data_tools.manifest import ImageSpec


@pytest.fixture
def suspicious(tf: ModuleType) -> ModuleType:
    from hvd_train import suspicious

    return suspicious


def test_labels_are_read_as_the_conversion_of_the_runs_data_set_read_its_own(
    suspicious: ModuleType, tmp_path: Path
) -> None:
    images, out = tmp_path / "images", tmp_path / "set"
    write_captchas(images, ["0123", "0456", "7890"])
    labels = images / "odd.csv"
    labels.write_text("0;123\n1;456\n2;7890\n")
    flags = ["--separator", ";", "--zero-pad", "--header", "no", "--length", "4", "--split",
             "train=1"]  # fmt: skip
    assert data_tools(["captcha-to-tfrecord", str(images), str(labels), str(out), *flags]) == 0
    found = suspicious.find_labelled(images, labels, manifests.load(out))
    assert (found.texts, found.faults) == (["0123", "0456", "7890"], [])


def test_a_sheet_shows_as_many_large_images_as_fit(suspicious: ModuleType, tmp_path: Path) -> None:
    path, sheet = tmp_path / "a.png", tmp_path / "sheet.png"
    Image.fromarray(np.zeros((300, 300, 3), np.uint8)).save(path)
    found = [suspicious.Denied(str(path), "A", 0.0, "B", 1.0)] * 200
    image = ImageSpec(height=300, width=300, channels=3, encoding="png")
    preparation = suspicious.Preparation(image=image, transcode=False, resize=False, pad=False)
    suspicious.write_sheet(sheet, found, preparation)
    with Image.open(sheet) as drawn:
        assert drawn.width * drawn.height > 90 * 300 * 300
