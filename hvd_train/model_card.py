"""The text that goes with an exported model: what it is, how to use it, what it can't do."""

import platform

import keras
import tensorflow as tf
import yaml

import data_tools
from data_tools.manifest import Manifest
from hvd_train import config_files, results
from hvd_train.decoding import Decoding
from hvd_train.saved_run import SavedRun, training_program

TEMPLATE = """\
# {name}: {model}

{what}, in images of {width}x{height} pixels. A network of {parameters:,} parameters.

- Data: {name}, digest {digest}, of images and labels.
- Weights: {weights}, after {step:,} steps.
- Accuracy: {accuracy}.

## Input and output

- `image`, uint8 `[n, {height}, {width}, {channels}]`: the pixels as they are; what prepares them \
is in the model.
- `logits`, float32 `[{shape}]`. {logits}
{more}
## Use

```python
import numpy as np
from PIL import Image

images = [np.asarray(Image.open(file).convert("{mode}")) for file in files]
images = np.stack(images).reshape(-1, {height}, {width}, {channels})
```

```python
{loading}```
{decoding}
## Limits

- It knows pictures like those of its data set, of exactly this size; others must be brought to it \
as those were. It names a label for any picture, also for one that shows none.
- Transparent pictures must be put on white before, and 16-bit ones brought to 8 bits.
- It computes in float32{trained_in}.

## How to reproduce

data_tools {tool} converted the data set, with

    {arguments}

The settings below, as config.yaml: `{train} --config config.yaml --data DATASET --name NAME`, \
then `hvd_train export runs/NAME --format {format}{flag}`. Exported by hvd-train {version}, \
TensorFlow {tensorflow}, Keras {keras}, Python {python}.

```yaml
{settings}```
"""
LOGITS = {
    None: "How labels are read off them, the task's own `predict` tells.",
    "class": "The largest is that of the class; their softmax is the probabilities.",
    "characters": "At each position the largest is that of the character.",
    "ctc": "Each column names a character, or none (the last place, the blank); equal columns in "
    "turn count once. The label is that of the most probable path over the columns among those "
    "whose label has an allowed length.",
}
BYTES = """\
- A second signature, `serving_bytes`: `image_bytes`, string `[n]`, whole JPEG or PNG files of \
that size, to `logits`{label}
"""
LABEL = {
    None: ".",
    "class": " and `label`, string `[n]`.",
    "characters": " and `label`, string `[n]`.",
    "ctc": " and `label`, string `[n]`, of the most probable path, whatever its length.",
}
LOADING = {
    "saved_model": """\
import tensorflow as tf

model = tf.saved_model.load("model")
logits = model.signatures["serving_default"](image=tf.constant(images))["logits"].numpy()
""",
    "keras": """\
import keras

model = keras.saving.load_model("model.keras")
logits = keras.ops.convert_to_numpy(model(images))
""",
    "onnx": """\
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(logits,) = session.run(["logits"], {"image": images})
""",
    "tflite": """\
import tensorflow as tf

interpreter = tf.lite.Interpreter("model.tflite")
logits = interpreter.get_signature_runner()(image=images)["logits"]
""",
}


def card_of(
    name: str,
    saved_run: SavedRun,
    step: int,
    model: keras.Model,
    decoding: Decoding | None,
    *,
    averaged: bool,
    task_path: str | None,
) -> str:
    """The MODEL_CARD.md of an exported model.

    Args:
        name: of the format.
        saved_run: the run.
        step: of the checkpoint.
        model: `image`, uint8 [n, H, W, C], to logits.
        decoding: how labels are read off the logits, if that is known.
        averaged: whether the weights are their moving averages.
        task_path: `module:name` of the task, if it is none of this project's.
    """
    manifest, dtype = saved_run.manifest, saved_run.config.run.dtype
    image, created_from = manifest.image, manifest.created_from
    rule = decoding.rule if decoding else None
    settings = config_files.to_save(saved_run.config)
    del settings["data"]  # a path of this machine
    return TEMPLATE.format(
        name=manifest.name, model=model.name, format=name, what=_what(manifest),
        height=image.height, width=image.width, channels=image.channels,
        mode="RGB" if image.channels == 3 else "L", parameters=model.count_params(),
        digest=created_from.get("digest", "unknown"), step=step,
        accuracy=_accuracy(saved_run, results.AVERAGES if averaged else results.WEIGHTS),
        weights="their moving averages" if averaged else "as they were, without moving averages",
        shape=", ".join(["n", *map(str, model.output.shape[1:])]), logits=LOGITS[rule],
        more=BYTES.format(label=LABEL[rule]) if name == "saved_model" else "",
        loading=LOADING[name],
        decoding=f"\n```python\n{decoding.snippet}```\n" if decoding else "",
        trained_in="" if dtype == "float32" else f"; the accuracy is that of {dtype}",
        tool=manifest.tool, arguments=" ".join(_given(created_from.get("arguments", []))),
        train=" ".join(training_program(saved_run, task_path)),
        flag="" if averaged else " --no-ema",
        version=data_tools.__version__, tensorflow=tf.__version__, keras=keras.__version__,
        python=platform.python_version(),
        settings=yaml.safe_dump(settings, sort_keys=False),
    )  # fmt: skip


def _what(manifest: Manifest) -> str:
    if manifest.classes is not None:
        return f"Tells {len(manifest.classes)} classes apart"
    label = manifest.label
    assert label is not None
    lengths = sorted({label.min_length, label.max_length})
    return f"Reads {' to '.join(map(str, lengths))} characters of `{label.charset}`"


def _given(arguments: list[str]) -> list[str]:
    return [given for given in arguments if not given.endswith(("=None", "=False"))]


def _accuracy(saved_run: SavedRun, weights: str) -> str:
    """What eval.json says of such weights, on the split of the run's own figure if it can."""
    found = results.read(saved_run.folder)
    own = [
        one for one in (found, *found.get("evaluations", []))
        if one.get("weights") == weights and one.get("examples")
    ]  # fmt: skip
    if not own:
        return f"not measured yet with {weights}"
    best = next((one for one in own if one["split"] == found.get("split")), own[0])
    return (
        f"{best['correct'] / best['examples']:.3f} ({best['correct']} of {best['examples']} of "
        f"the split {best['split']}), with {weights}, after {found['step']:,} steps"
    )
