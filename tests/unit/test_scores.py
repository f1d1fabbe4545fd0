"""What is right and wrong in a split is counted, and the mistakes are found, for known outputs."""

from pathlib import Path
from types import ModuleType

import numpy as np
from small_sets import UPPER, write_set

from data_tools.manifest import Manifest


def test_a_split_is_counted_and_its_surest_mistakes_come_first(
    tf: ModuleType, tmp_path: Path
) -> None:
    import keras

    from hvd_train.data.source import Batch, MemorySource
    from hvd_train.predictor import Predictor
    from hvd_train.scores import score
    from hvd_train.task import TaskModel

    manifest: Manifest = write_set(tmp_path / "set", train=["AB"], test=["AB"])
    # Two characters: each row of an image is the odds of A, B and C at a place.
    read = np.array([[0, 1], [1, 1], [2, 1], [2, 2], [0, 0]])
    odds = np.array([2, 4, 8, 16, 3])
    labels = np.array([[0, 1], [0, 1], [0, 1], [2, 0], [0, 0]], np.int32)
    images = np.ones((5, 2, 3, 1), np.uint8)
    for row, (places, strength) in enumerate(zip(read, odds, strict=True)):
        images[row, [0, 1], places, 0] = strength
    model = keras.Sequential([
        keras.Input((2, 3, 1), dtype="uint8"), keras.layers.Reshape((2, 3)),
        keras.layers.Lambda(lambda x: keras.ops.log(keras.ops.cast(x, "float32"))),
    ])  # fmt: skip

    def losses(outputs: object, labels: object) -> object:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return tf.reduce_sum(each, axis=1)

    task_model = TaskModel(
        model=model, losses=losses, predict=lambda x: np.argmax(x, axis=2).astype(np.int32)
    )
    source = MemorySource(Batch(np.arange(5), images, labels))
    scores = score(Predictor(task_model), source, manifest, num_worst=2)
    assert (scores.examples, scores.correct) == (5, 2)
    assert scores.positions.tolist() == [[5, 3], [5, 4]]
    assert scores.names[:3].tolist() == [[6, 3], [3, 3], [1, 1]]
    assert scores.names[3:].sum() == 0
    assert len(scores.names) == len(UPPER)
    assert scores.confusion[:3, :3].tolist() == [[3, 1, 2], [0, 3, 0], [0, 0, 1]]
    found = [(one.example, one.truth, one.guess) for one in scores.worst]
    assert found == [(3, "CA", "CC"), (2, "AB", "CB")]
    np.testing.assert_allclose(
        [(one.probability, one.probability_of_truth) for one in scores.worst],
        [((16 / 18) ** 2, 16 / 18 / 18), ((8 / 10) ** 2, 8 / 10 / 10)], rtol=1e-5,
    )  # fmt: skip
