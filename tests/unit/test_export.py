"""Three tiny runs, exported in every format and used where this project isn't."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_runs import FORMATS, RUNS
from PIL import Image
from small_captchas import Ran
from small_cifar import CLASSES10, picture, write_cifar10

HERE = Path(__file__).resolve().parent
RunCli = Callable[..., Ran]
TRAIN = """
import json, sys
from hvd_train.cli import main
sys.exit(max(main(argv) for argv in json.loads(sys.argv[1])))
"""


@dataclass(frozen=True, slots=True)
class Exports:
    """What export_runs.py and load_exports.py left in a folder."""

    folder: Path
    report: dict[str, Any]
    used: dict[tuple[str, str], dict[str, Any]]

    def error_of(self, bad: str) -> str:
        """The standard error of a bad export, which has no other output."""
        done = self.report["bad"][bad]
        assert (done["stdout"], done["rc"] > 0) == ("", True)
        return str(done["stderr"])


def write_captchas(data_tools: Callable[..., Ran], folder: Path) -> None:
    """Sets for two runs, of several lengths and of one, and drawn JPEGs that are in neither."""
    for name, drawn, converted in (
        ("ctc", ["--length", "3-5", "--charset", "digits"], ["--variable-length"]),
        ("linear", [], []),
    ):
        pictures = folder / "pictures" / name
        for count, seed, path in ((220, 0, pictures), (24, 1, folder / "images" / name)):
            made = data_tools("make-captcha", path, "--count", count, "--seed", seed, *drawn)
            assert made.rc == 0, made.stderr
        (folder / "images" / name / "labels.csv").unlink()
        csv = pictures / "labels.csv"
        made = data_tools("captcha-to-tfrecord", pictures, csv, folder / "sets" / name, *converted)
        assert made.rc == 0, made.stderr
    grey = folder / "images" / "ctc" / "0.jpg"
    Image.open(grey).convert("L").save(grey)


def write_cifar(data_tools: Callable[..., Ran], folder: Path) -> None:
    """A small CIFAR-10, and PNGs of other pictures: noise, one color, nearly one color."""
    files = {f"data_batch_{i}.bin": [n % 10 for n in range(20)] for i in range(1, 6)}
    binary = write_cifar10(folder / "binary", {**files, "test_batch.bin": list(range(10))})
    made = data_tools("cifar-to-tfrecord", binary, folder / "sets" / "tutorial")
    assert made.rc == 0, made.stderr
    faint = 100 + (picture(8) > 250).astype(np.uint8)
    pictures = [*map(picture, range(1000, 1010)), np.full_like(faint, 70), faint]
    (folder / "images" / "tutorial").mkdir()
    for number, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / "images" / "tutorial" / f"{number}.png")
    Image.new("RGB", (200, 100)).save(folder / "images" / "wide.png")


@pytest.fixture(scope="module")
def exports(
    run_cli: RunCli, data_tools: Callable[..., Ran], tmp_path_factory: pytest.TempPathFactory
) -> Exports:
    folder = tmp_path_factory.mktemp("export")
    write_captchas(data_tools, folder)
    write_cifar(data_tools, folder)
    brief = ["--epochs", "3", "--batch-size", "20", "--eval-every", "0", "--summary-every", "0"]
    commands = [
        [task, "--data", str(folder / "sets" / name), "--name", name, "--runs-dir",
         str(folder / "runs"), *brief, *flags]
        for name, task, flags in (
            ("ctc", "captcha", []), ("linear", "captcha", ["--model", "linear"]),
            ("tutorial", "cifar", []),
        )
    ]  # fmt: skip
    for words in (
        ["-c", TRAIN, json.dumps(commands)],
        [HERE / "export_runs.py", folder],
    ):
        done = run_cli(["python", *words], timeout=300)
        assert done.rc == 0, done.stderr[-4000:]
    pairs = {
        (name, kind): (folder / "runs" / name / "export" / kind, folder / "images" / name)
        for name in RUNS
        for kind in FORMATS
    }
    pairs["plain", "keras"] = (folder / "plain", folder / "images" / "ctc")
    (folder / "used").mkdir()
    paths = [path for pair in pairs.values() for path in pair]
    done = run_cli(
        ["python", HERE / "load_exports.py", folder / "used", *paths], cwd=folder, timeout=300
    )
    assert done.rc == 0, done.stderr[-4000:]
    used = json.loads((folder / "used" / "used.json").read_text())
    report = json.loads((folder / "report.json").read_text())
    return Exports(folder, report, dict(zip(pairs, used, strict=True)))


def worst(exports: Exports, name: str, number: int, what: str = "logits") -> float:
    """By how much the logits of an export are off the predictor's."""
    expected = np.load(exports.folder / f"{name}.npy")
    found = np.load(exports.folder / "used" / f"{number} {what}.npy")
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def test_every_format_gives_the_predictor_s_answers_where_this_project_is_not(
    exports: Exports,
) -> None:
    for number, ((name, kind), used) in enumerate(exports.used.items()):
        off = worst(exports, name, number)
        print(f"{name}, {kind}: off by {off:.1e}")
        assert off <= 1e-4, (name, kind)
        assert used["texts"] == exports.report["texts"][name]
        assert used["lines"] <= 15
    # Moving averages are other weights.
    plain, averaged = (np.load(exports.folder / f"{name}.npy") for name in ("plain", "ctc"))
    assert np.abs(plain - averaged).max() > 1e-2


def test_saved_model_reads_jpeg_and_png_files_and_names_their_labels(exports: Exports) -> None:
    for number, ((name, kind), used) in enumerate(exports.used.items()):
        if kind != "saved_model":
            continue
        assert worst(exports, name, number, "logits of bytes") <= 1e-4
        if name == "ctc":  # of the most probable path, whatever its length
            best = np.load(exports.folder / "ctc.npy").argmax(axis=2)
            assert used["labels"] == [collapsed(row) for row in best]
        else:
            assert used["labels"] == exports.report["texts"][name]
        no_image, wide = used["refused"]
        assert "Unknown image file format" in no_image
        assert "Shape of tensor" in wide


def collapsed(symbols: np.ndarray) -> str:
    """The label of a path of digits, 10 being the blank."""
    kept = [now for before, now in zip([10, *symbols], symbols, strict=False) if now != before]
    return "".join(str(symbol) for symbol in kept if symbol != 10)


def test_an_export_holds_the_model_its_labels_and_a_card_and_replaces_an_earlier_one(
    exports: Exports,
) -> None:
    folder, good = exports.folder, exports.report["good"]
    for name in RUNS:
        run = folder / "runs" / name
        step = json.loads((run / "eval.json").read_text())["step"]
        assert [path.name for path in sorted((run / "export").iterdir())] == sorted(FORMATS)
        for kind, done in zip(FORMATS, good[name], strict=True):
            export = run / "export" / kind
            line = f"exported the moving averages after {step} steps to {export}\n"
            assert (done["rc"], done["stdout"]) == (0, line)
            model = "model" if kind == "saved_model" else f"model.{kind}"
            names = sorted(path.name for path in export.iterdir())
            assert names == ["MODEL_CARD.md", "labels.json", model]
    assert [done["rc"] for done in good["plain"]] == [0, 0]
    assert sorted(path.name for path in (folder / "plain").iterdir()) == [
        "MODEL_CARD.md", "labels.json", "model.keras",
    ]  # fmt: skip
    assert not [*folder.rglob("*.incomplete"), *folder.rglob("*.old")]


def test_labels_json_and_the_card_say_what_the_logits_stand_for(exports: Exports) -> None:
    runs = exports.folder / "runs"
    labels = {
        name: json.loads((runs / name / "export" / "onnx" / "labels.json").read_text())
        for name in RUNS
    }
    digits = {"charset": "0123456789", "min_length": 3, "max_length": 5, "blank": 10}
    assert labels["ctc"].items() >= {**digits, "rule": "ctc", "classes": None}.items()
    assert labels["ctc"]["image"] == {"height": 20, "width": 80, "channels": 3}
    assert (labels["linear"]["rule"], labels["linear"]["blank"]) == ("characters", None)
    assert (labels["tutorial"]["rule"], labels["tutorial"]["charset"]) == ("class", None)
    assert labels["tutorial"]["classes"] == list(CLASSES10)
    result = json.loads((runs / "ctc" / "eval.json").read_text())
    manifest = json.loads((runs / "ctc" / "manifest.json").read_text())
    card = (runs / "ctc" / "export" / "onnx" / "MODEL_CARD.md").read_text()
    share = result["correct"] / result["examples"]
    assert f"- Accuracy: {share:.3f} ({result['correct']} of {result['examples']} of" in card
    assert manifest["created_from"]["digest"] in card
    assert "`hvd_train export runs/NAME --format onnx`" in card
    plain = (exports.folder / "plain" / "MODEL_CARD.md").read_text()
    assert "--format keras --no-ema`" in plain
    assert "- Accuracy: not measured yet with weights.\n" in plain


def test_what_can_t_be_exported_is_one_line_and_leaves_nothing(exports: Exports) -> None:
    folder = exports.folder
    runs = folder / "runs"
    assert exports.error_of("no checkpoint") == (
        f"error: INPUT: {runs / 'unsaved'}: it has no checkpoint; "
        "wait for its first (--checkpoint-minutes), or train again if it has ended\n"
    )
    assert exports.error_of("unknown format") == (
        "error: CONFIG: command line: invalid choice 'pickle' for argument '--format'. Expected "
        "one of ('saved_model', 'keras', 'onnx', 'tflite'); see hvd_train export --help\n"
    )
    assert exports.error_of("in the way") == (
        f"error: CONFIG: {folder / 'images'}: it exists and is no export of this program; "
        "choose another --output\n"
    )
    assert exports.error_of("taken") == (
        f"error: CONFIG: {folder / 'taken'}.incomplete: another process is writing it; "
        "wait for it to end\n"
    )
    assert exports.error_of("absent package") == (
        "error: CONFIG: --format onnx: it needs tf2onnx: No module named 'tf2onnx'; pip install "
        "tf2onnx onnx onnxruntime, as setup.cfg's extra export names them\n"
    )
    for kind in FORMATS:
        target = folder / "full" / kind
        assert exports.error_of(f"full disk, {kind}") == (
            f"error: SPACE: {target}: File too large; free some space or choose another folder\n"
        )
    assert list((folder / "full").iterdir()) == []
    assert not (runs / "unsaved" / "export").exists()


def test_a_model_of_one_s_own_is_exported_if_it_answers_as_evaluation_does(
    exports: Exports,
) -> None:
    own = exports.report["own"]
    assert (own["as it is"], own["eval_layers"]) == ("", "")
    assert own["own layer"] == (
        "error: CONFIG: --format keras: the file can't hold layers of your own (Twice); "
        "use --format saved_model"
    )
    assert own["eval_inputs"] == (
        "error: CONFIG: task: without the task's eval_inputs the model gives logits that are off "
        "by up to 1.2e+02; give its TaskModel eval_layers, the same in Keras layers"
    )
