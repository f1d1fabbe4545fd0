"""How a label is read off a model's outputs, for programs that don't have this project."""

from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from data_tools.manifest import Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoding:
    """The rule, and what it needs.

    Attributes:
        rule: class, the largest output, of logits [n, classes]; characters, the largest at each
            position, [n, length, characters]; or ctc, the most probable path over the columns whose
            label has an allowed length, [n, columns, characters + 1], the blank last.
        names: what the places of the last axis stand for; of the blank, "".
    """

    rule: Literal["class", "characters", "ctc"]
    names: tuple[str, ...]

    @property
    def snippet(self) -> str:
        """Python that reads `texts` off `logits`, with labels.json in the current folder."""
        return _SNIPPETS[self.rule]

    def texts(self, logits: Any) -> Any:
        """Reads labels, string [n], off logits in TensorFlow; of ctc without limits to lengths."""
        symbols = tf.argmax(logits, axis=-1)
        if self.rule == "ctc":
            blank = len(self.names) - 1
            before = tf.pad(symbols[:, :-1], [[0, 0], [1, 0]], constant_values=blank)
            symbols = tf.where(symbols == before, tf.cast(blank, symbols.dtype), symbols)
        texts = tf.gather(tf.constant(self.names), symbols)
        return texts if self.rule == "class" else tf.strings.reduce_join(texts, axis=1)


def decoding_of(shape: tuple[int | None, ...], manifest: Manifest) -> Decoding | None:
    """Tells by the shape of the outputs how they are read; None when it is none of the rules."""
    if manifest.classes is not None:
        names = manifest.classes
        return Decoding(rule="class", names=names) if shape[1:] == (len(names),) else None
    assert manifest.label is not None
    characters = tuple(manifest.label.charset)
    if shape[1:] == (manifest.label.max_length, len(characters)):
        return Decoding(rule="characters", names=characters)
    if len(shape) == 3 and shape[2] == len(characters) + 1:
        return Decoding(rule="ctc", names=(*characters, ""))
    return None


_OPEN = """\
import json
import numpy as np

labels = json.load(open("labels.json", encoding="utf-8"))
"""
_SNIPPETS = {
    "class": _OPEN + 'texts = [labels["classes"][place] for place in np.argmax(logits, axis=1)]\n',
    "characters": _OPEN
    + """\
best = np.argmax(logits, axis=2)
texts = ["".join(labels["charset"][place] for place in row) for row in best]
""",
    "ctc": """\
import json
labels = json.load(open("labels.json", encoding="utf-8"))
names = [*labels["charset"], ""]
def read(columns):  # the best path to each (characters so far, symbol of the column)
    best = {(0, labels["blank"]): (0.0, "")}
    for column in columns.tolist():
        paths, best = best, {}
        for (count, last), (score, text) in paths.items():
            for symbol, logit in enumerate(column):
                name = names[symbol] if symbol != last else ""
                state, path = (count + len(name), symbol), (score + logit, text + name)
                if path > best.get(state, (-1e30, "")) and state[0] <= labels["max_length"]:
                    best[state] = path
    return max(path for (count, _), path in best.items() if count >= labels["min_length"])[1]
texts = [read(columns) for columns in logits]
""",
}
