"""What TensorBoard shows of a model is what is in it, read back by TensorBoard itself."""

from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.util.tensor_util import make_ndarray

from hvd_train import summaries
from hvd_train.data.source import Batch
from hvd_train.metric_writer import open_writer
from hvd_train.models import linear, tutorial
from hvd_train.summaries import Smoothed, Summaries, histogram_value, to_pixels

RELUS = ["relu1", "relu2", "local3", "local4"]
LAYERS = [*RELUS, "softmax_linear"]


@pytest.fixture(scope="module")
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    return tutorial.build(24, 3, 10)


@pytest.fixture(scope="module")
def batch() -> Batch:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(20, 24, 24, 3)).astype(np.float32)
    return Batch(np.arange(20), images, rng.integers(0, 10, (20, 1)).astype(np.int32))


@pytest.fixture(scope="module")
def written(
    model: keras.Model, batch: Batch, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EventAccumulator, dict[str, float]]:
    """What TensorBoard reads of the summaries of steps 0 and 100, and the numbers of step 0."""
    run = tmp_path_factory.mktemp("run")
    looked = Summaries(SimpleNamespace(model=model, losses=tutorial.losses))  # type: ignore[arg-type]
    with open_writer(run, is_chief=True, step=0, total_steps=200) as writer:
        numbers = looked.write(0, batch, writer)
        looked.write(100, batch, writer)
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    return shown, numbers


def tags(shown: EventAccumulator) -> list[str]:
    """All but the graph's."""
    return [tag for tag in shown.Tags()["tensors"] if tag != "__run_graph__"]


def tensors(shown: EventAccumulator, tag: str) -> list[np.ndarray]:
    return [make_ndarray(event.tensor_proto) for event in shown.Tensors(tag)]


def test_every_summary_step_shows_images_and_histograms_of_all_layers_and_variables(
    written: tuple[EventAccumulator, dict[str, float]], model: keras.Model
) -> None:
    shown, _ = written
    paths = [variable.path for variable in model.trainable_variables]
    assert sorted(tags(shown)) == sorted([
        "images", *(f"activations/{name}" for name in LAYERS),
        *(f"{kind}/{path}" for kind in ("gradients", "weights") for path in paths),
    ])  # fmt: skip
    for tag in tags(shown):
        assert [event.step for event in shown.Tensors(tag)] == [0, 100]
    plugin = {"images": "images"}
    for tag in tags(shown):
        metadata = shown.SummaryMetadata(tag)
        assert metadata.plugin_data.plugin_name == plugin.get(tag, "histograms")


def test_the_images_are_those_of_the_batch(
    written: tuple[EventAccumulator, dict[str, float]], batch: Batch
) -> None:
    width, height, *encoded = tensors(written[0], "images")[0]
    assert (width, height, len(encoded)) == (b"24", b"24", summaries.IMAGES)
    for data, image in zip(encoded, batch.images, strict=False):
        np.testing.assert_array_equal(tf.io.decode_png(data).numpy(), to_pixels(image))


def test_histograms_count_every_value_once_between_its_least_and_its_largest(
    written: tuple[EventAccumulator, dict[str, float]], model: keras.Model
) -> None:
    for variable in model.trainable_variables:
        buckets = tensors(written[0], f"weights/{variable.path}")[0]
        values = variable.numpy()
        assert buckets.shape == (summaries.BUCKETS, 3)
        assert buckets[:, 2].sum() == values.size
        if values.min() < values.max():
            assert buckets[[0, -1], [0, 1]] == pytest.approx([values.min(), values.max()])


def test_gradients_are_those_of_the_mean_loss_of_the_first_examples(
    written: tuple[EventAccumulator, dict[str, float]], model: keras.Model, batch: Batch
) -> None:
    some = slice(0, summaries.EXAMPLES)
    with tf.GradientTape() as tape:
        logits = model(batch.images[some])
        each = tf.keras.losses.sparse_categorical_crossentropy(
            batch.labels[some, 0], logits, from_logits=True
        )
        loss = tf.reduce_mean(each)
    (gradient,) = tape.gradient(loss, [model.get_layer("local4").kernel.value])
    buckets = tensors(written[0], "gradients/local4/kernel")[0]
    counts, edges = np.histogram(gradient.numpy(), summaries.BUCKETS)
    np.testing.assert_allclose(buckets[:, 0], edges[:-1], rtol=1e-3)
    # Rounding may move a value over an edge.
    assert np.abs(buckets[:, 2] - counts).sum() < 0.001 * counts.sum()


def test_sparsity_is_the_share_of_zeros_of_a_layer(
    written: tuple[EventAccumulator, dict[str, float]], model: keras.Model, batch: Batch
) -> None:
    _, numbers = written
    assert list(numbers) == [f"sparsity/{name}" for name in LAYERS]
    x: tf.Tensor = tf.constant(batch.images[: summaries.EXAMPLES])
    for layer in model.layers[1:]:
        x = layer(x)
        if layer.name in RELUS:
            zeros = float(tf.reduce_mean(tf.cast(tf.equal(x, 0), tf.float64)))
            assert layer.name != "relu1" or zeros > 0.002
            assert numbers[f"sparsity/{layer.name}"] == pytest.approx(zeros, abs=1e-4)
    assert numbers["sparsity/softmax_linear"] == 0


def test_the_graph_is_there_once_and_names_the_layers(
    written: tuple[EventAccumulator, dict[str, float]],
) -> None:
    shown, _ = written
    assert shown.Tags()["graph"]
    graph = shown.Graph()
    assert isinstance(graph, GraphDef)
    kinds = {node.op for node in graph.node}
    assert {"Conv2D", "Conv2DBackpropFilter", "MatMul", "MaxPool"} <= kinds
    assert any("local3" in node.name for node in graph.node)


def test_a_model_without_activations_shows_its_outputs(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    image = SimpleNamespace(height=4, width=6, channels=1)
    label = SimpleNamespace(max_length=2, charset="AB")
    model = linear.build(image, label, init_stddev=None)  # type: ignore[arg-type]
    pixels = np.full((3, 4, 6, 1), 7, np.uint8)
    looked = Summaries(SimpleNamespace(model=model, losses=linear.losses))  # type: ignore[arg-type]
    with open_writer(tmp_path, is_chief=True, step=0, total_steps=1) as writer:
        numbers = looked.write(0, Batch(np.arange(3), pixels, np.zeros((3, 2), np.int32)), writer)
    assert numbers == {"sparsity/logits": 0.0}
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    image_of = tensors(shown, "images")[0][2]
    np.testing.assert_array_equal(tf.io.decode_png(image_of).numpy(), np.full((4, 6, 3), 7))


def test_pixels_stay_what_they_are() -> None:
    pixels = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert to_pixels(pixels) is pixels


@pytest.mark.parametrize("shift", [-0.3, 0.0, 2.0, -5.0])
def test_standardised_images_are_shown_as_by_tensorflow_1(shift: float) -> None:
    image = np.random.default_rng(1).uniform(0, 1, (5, 4, 3)).astype(np.float32) + np.float32(shift)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        op = tf.compat.v1.summary.image("x", image[None])
        summary = tf.compat.v1.Summary.FromString(session.run(op))
    theirs = tf.io.decode_png(summary.value[0].image.encoded_image_string).numpy()
    # It multiplies in float32, we in float32 too, but one may round up what the other rounds down.
    assert np.abs(to_pixels(image).astype(int) - theirs).max() <= 1
    assert (to_pixels(image) == theirs).mean() > 0.9


def test_a_black_picture_of_zeros_is_no_division_by_zero() -> None:
    assert not to_pixels(np.zeros((2, 2, 3), np.float32)).any()


def test_a_histogram_leaves_out_what_is_not_finite() -> None:
    values = np.array([0.0, 1.0, 2.0, np.nan, np.inf, -np.inf], np.float32)
    buckets = make_ndarray(histogram_value("x", values).tensor)
    assert buckets[:, 2].sum() == 3
    assert (buckets[0, 0], buckets[-1, 1]) == (0, 2)


def test_a_histogram_of_nothing_is_empty() -> None:
    assert make_ndarray(histogram_value("x", np.array([np.nan])).tensor)[:, 2].sum() == 0


def test_smoothed_numbers_are_the_tutorials_moving_averages() -> None:
    losses = [5.0, 4.0, 6.0, 2.0]
    average = tf.train.ExponentialMovingAverage(0.9, zero_debias=True)
    smoothed, theirs = Smoothed(), []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loss = tf.compat.v1.placeholder(tf.float64, [])
        with tf.control_dependencies([average.apply([loss])]):
            value = tf.identity(average.average(loss))
        session.run(tf.compat.v1.global_variables_initializer())
        theirs = [session.run(value, {loss: value_now}) for value_now in losses]
    ours = []
    for value_now in losses:
        smoothed.update(loss=value_now)
        ours.append(smoothed.values()["loss_smoothed"])
    assert ours[0] == pytest.approx(5.0)
    assert ours == pytest.approx(theirs)


def test_a_confusion_matrix_is_darker_where_more_are_taken_for_a_class() -> None:
    names = ["cat", "dog", "ünïcode"]
    sheet = summaries.draw_confusion(np.array([[4, 0, 0], [1, 3, 0], [0, 0, 0]]), names)
    side = sheet.shape[0]
    assert sheet.shape == (side, side, 3)
    corners = side - 24 * np.arange(3, 0, -1)  # the first pixel of each cell
    shades = sheet[np.ix_(corners, corners)][:, :, 0]
    assert shades.tolist() == [[0, 255, 255], [191, 64, 255], [255, 255, 255]]


def test_a_hundred_classes_still_fit_a_picture() -> None:
    sheet = summaries.draw_confusion(np.eye(100, dtype=int), [f"class {n}" for n in range(100)])
    assert 1200 < sheet.shape[0] < 1400
