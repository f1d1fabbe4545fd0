"""Reads a captcha column by column: convolutions share their weights along the width.

Three blocks of convolution and pooling turn a picture into a row of columns, a 1-D convolution
looks at each column's neighbours, and a dense layer gives each column a distribution over the
characters and a blank. Connectionist temporal classification (Graves et al. 2006) sums over all
ways to spread the label over the columns, so nobody has to say where a letter stands.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from data_tools.manifest import ImageSpec, LabelSpec
from hvd_train.models.layers import batch_normalization

BLOCK_WIDTHS = (32, 64, 96)
"""Channels of the convolution blocks."""
CONTEXT_WIDTH = 128
"""Channels of the 1-D convolution over the columns."""
CONTEXT_COLUMNS = 5
"""Neighbouring columns that it sees."""
COLUMNS_A_CHARACTER = 3
"""The width is halved only while this many columns for each character remain."""


def build(image: ImageSpec, label: LabelSpec, *, batch_norm: str) -> keras.Model:
    """Returns the model: uint8 [n, H, W, C] to logits [n, columns, characters + 1], blank last.

    Args:
        image: size of the pictures.
        label: charset and length.
        batch_norm: sync or local, see `layers.batch_normalization`.
    """
    pixels = keras.Input((image.height, image.width, image.channels), dtype="uint8", name="image")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1.0, name="scale")(pixels)
    height, columns = image.height, image.width
    for block, width in enumerate(BLOCK_WIDTHS, start=1):
        last = block == len(BLOCK_WIDTHS)
        halve = not last and columns // 2 >= COLUMNS_A_CHARACTER * label.max_length
        pool = (height if last else 2, 2 if halve else 1)
        height, columns = -(-height // pool[0]), -(-columns // pool[1])
        x = _convolution(keras.layers.Conv2D, width, 3, f"conv{block}")(x)
        # Pooling before normalising is the same function for positive scales, on fewer values.
        x = keras.layers.MaxPooling2D(pool, padding="same", name=f"pool{block}")(x)
        x = batch_normalization(batch_norm, f"norm{block}")(x)
        x = keras.layers.ReLU(name=f"relu{block}")(x)
    x = keras.layers.Reshape((columns, BLOCK_WIDTHS[-1]), name="columns")(x)
    x = _convolution(keras.layers.Conv1D, CONTEXT_WIDTH, CONTEXT_COLUMNS, "context")(x)
    x = batch_normalization(batch_norm, "norm_context")(x)
    x = keras.layers.ReLU(name="relu_context")(x)
    # In mixed precision logits are float32.
    head = keras.layers.Dense(
        len(label.charset) + 1, name="characters", dtype=keras.config.floatx()
    )
    logits = head(x)
    return keras.Model(pixels, logits, name="ctc")


def _convolution(layer: Any, width: int, size: int, name: str) -> Any:
    return layer(
        width, size, padding="same", use_bias=False, kernel_initializer="he_normal", name=name
    )


def losses(logits: Any, labels: Any) -> Any:
    """CTC loss of each example in nats: [n].

    Args:
        logits: [n, columns, characters + 1], blank last.
        labels: int32 [n, max_length], filled up with -1.
    """
    positions = tf.where(labels >= 0)
    sparse = tf.SparseTensor(
        positions, tf.gather_nd(labels, positions), tf.shape(labels, out_type=tf.int64)
    )
    num_examples, num_columns = tf.shape(logits)[0], tf.shape(logits)[1]
    # The kernel of TensorFlow 1: its successor loops over the columns in Python-built graph ops.
    return tf.compat.v1.nn.ctc_loss(
        sparse, tf.transpose(logits, [1, 0, 2]), tf.fill([num_examples], num_columns)
    )


def decode(logits: np.ndarray, *, min_length: int, max_length: int) -> np.ndarray:
    """Returns the label of the most probable path whose label has an allowed length.

    The most probable path of all goes over the best symbol of each column. Where its label has no
    allowed length, as of few examples once a model is trained, a tenfold slower search finds it.

    Args:
        logits: [n, columns, characters + 1], blank last.
        min_length: shortest allowed label, in characters.
        max_length: longest allowed label.

    Returns:
        int32 [n, max_length], filled up with -1.
    """
    labels, found = _best_of_all(logits, min_length, max_length)
    if not found.all():
        labels[~found] = _best_allowed(logits[~found], min_length, max_length)
    return labels


def _best_of_all(
    logits: np.ndarray, min_length: int, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The label of the best symbols, and where it is the one: it is allowed, no other path as good.

    Returns:
        int32 [n, max_length], and bool [n].
    """
    blank = logits.shape[2] - 1
    best = np.argmax(logits, axis=2)
    peaks = np.take_along_axis(logits, best[:, :, None], axis=2)
    alone = np.all(np.count_nonzero(logits == peaks, axis=2) == 1, axis=1)
    before = np.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=blank)
    wrote = (best != blank) & (best != before)
    lengths = np.count_nonzero(wrote, axis=1)
    found = alone & (lengths >= min_length) & (lengths <= max_length)
    labels = np.full((len(logits), max_length), -1, np.int32)
    rows, columns = np.nonzero(wrote & found[:, None])
    labels[rows, np.cumsum(wrote, axis=1)[rows, columns] - 1] = best[rows, columns]
    return labels, found


def _best_allowed(logits: np.ndarray, min_length: int, max_length: int) -> np.ndarray:
    """The label of the best path of an allowed length, int32 [n, max_length].

    Viterbi over the paths of CTC. A state is (characters written so far, symbol of the column);
    repeating a symbol writes nothing, a blank or another symbol before it writes it anew.
    """
    num_examples, num_columns, num_symbols = logits.shape
    blank = num_symbols - 1
    score = np.full((num_examples, max_length + 1, num_symbols), -np.inf)
    score[:, 0, blank] = 0.0
    came_from = np.empty((num_columns, *score.shape), np.int32)
    for column in range(num_columns):
        score, came_from[column] = _advance(score)
        score += logits[:, None, column, :] - _log_sum_exp(logits[:, column])[:, None, None]
    allowed = score[:, min_length:].reshape(num_examples, -1)
    best = np.argmax(allowed, axis=1)
    count, symbol = min_length + best // num_symbols, best % num_symbols
    return _trace_back(came_from, count, symbol, max_length)


def _advance(score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One column of Viterbi.

    Args:
        score: log-probability of the best path to each state, [n, length + 1, symbols].

    Returns:
        The best score of a path into each state before the column's own probability, and the symbol
        of the column before it, int32; whether a character was written follows from the two.
    """
    num_symbols = score.shape[2]
    blank = num_symbols - 1
    symbols = np.arange(num_symbols)
    # Staying on a symbol, or from any symbol to blank, writes nothing.
    stay, stay_from = score.copy(), np.broadcast_to(symbols, score.shape).copy()
    stay_from[:, :, blank] = np.argmax(score, axis=2)
    stay[:, :, blank] = np.max(score, axis=2)
    # Writing character c comes from the best other symbol with one character less.
    first = np.argmax(score, axis=2)[..., None]
    others = score.copy()
    np.put_along_axis(others, first, -np.inf, axis=2)
    second = np.argmax(others, axis=2)[..., None]
    write_from = np.where(first == symbols, second, first)
    write = np.where(
        first == symbols,
        np.take_along_axis(others, second, axis=2),
        np.take_along_axis(score, first, axis=2),
    )
    write[:, 1:], write[:, 0] = write[:, :-1].copy(), -np.inf
    write_from[:, 1:] = write_from[:, :-1].copy()
    write[:, :, blank] = -np.inf
    writes = write > stay
    return np.where(writes, write, stay), np.where(writes, write_from, stay_from)


def _trace_back(
    came_from: np.ndarray, count: np.ndarray, symbol: np.ndarray, max_length: int
) -> np.ndarray:
    """Walks the best path from its end to its start and collects what it wrote."""
    rows = np.arange(len(count))
    blank = came_from.shape[3] - 1
    labels = np.full((len(count), max_length), -1, np.int32)
    for column in reversed(range(len(came_from))):
        before = came_from[column, rows, count, symbol]
        wrote = (symbol != blank) & (before != symbol)
        labels[rows[wrote], count[wrote] - 1] = symbol[wrote]
        count = count - wrote
        symbol = before
    return labels


def _log_sum_exp(values: np.ndarray) -> np.ndarray:
    peak = values.max(axis=1)
    total: np.ndarray = peak + np.log(np.exp(values - peak[:, None]).sum(axis=1))
    return total
