"""docs/your-own.md is run as it stands, by someone who has only a folder of images."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "your-own.md").read_text()

Commands = Callable[..., Any]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def write_photos(folder: Path) -> None:
    """60 noisy pictures a class, of two sizes: stripes that lie, and stripes that stand."""
    rng = np.random.default_rng(0)
    for number in range(120):
        stripes = np.tile(np.repeat([60, 190], 4), 6)[rng.integers(8) :][:36]
        pixels = np.broadcast_to(stripes[:, None], (36, 36)) + rng.normal(0, 20, (36, 36))
        name, pixels = ("lying", pixels) if number % 2 else ("standing", pixels.T)
        path = folder / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        picture.resize((36, 36 + number % 5)).save(path)


def test_the_page_s_commands_and_file_train_a_model_that_can_tell_the_classes_apart(
    run_cli: Commands, horovodrun: Commands, tmp_path: Path
) -> None:
    convert, train, export = map(shlex.split, blocks("sh"))
    (source,) = blocks("python")
    assert len(source.splitlines()) <= 40
    write_photos(tmp_path / "photos")
    (tmp_path / "photos.py").write_text(source)
    # The project as it is installed; not on the path, the current folder doesn't help.
    env = {"PYTHONPATH": str(ROOT)}
    done = run_cli(convert, cwd=tmp_path, env=env)
    assert (done.rc, done.stderr) == (0, "")
    assert train[:3] == ["horovodrun", "-np", "2"]
    done = horovodrun(2, train[3:], cwd=tmp_path, env=env)
    assert done.rc == 0, done.stderr
    result = json.loads((tmp_path / "runs" / "photos" / "eval.json").read_text())
    assert (result["ranks"], result["global_batch"]) == (2, 32)
    assert result["accuracy"] > 0.8
    evaluate = ["hvd_train", "evaluate", "runs/photos", "--task", "photos:TASK"]
    done = run_cli(evaluate, cwd=tmp_path, env=env)
    assert done.rc == 0, done.stderr
    said = f": test: {result['correct']} of {result['examples']} right after {result['step']} steps"
    assert said in done.stdout
    again = json.loads((tmp_path / "runs" / "photos" / "eval.json").read_text())
    assert again["accuracy_by_class"] == result["accuracy_by_class"]
    done = run_cli(export, cwd=tmp_path, env=env)
    assert (done.rc, done.stdout) == (
        0, f"exported the moving averages after {result['step']} steps to runs/photos/export/onnx\n"
    ), done.stderr  # fmt: skip
    labels = json.loads((tmp_path / "runs/photos/export/onnx/labels.json").read_text())
    assert (labels["rule"], labels["classes"]) == ("class", ["lying", "standing"])
