"""Keras: a model of layers, compile and fit, in one process with all of its threads.

    python benchmarks/peers/keras_fit.py

After keras.io/guides/training_with_built_in_methods.
"""

import time

from measure import BATCH, LEARNING_RATE, memory_mib, parser, report, synthetic_batch


def main() -> None:
    """Trains, and prints the rate."""
    arguments = parser(__doc__).parse_args()
    import keras
    import seed_cnn
    import tensorflow as tf

    def filled(name: str) -> dict[str, object]:
        return {
            "kernel_initializer": keras.initializers.TruncatedNormal(stddev=seed_cnn.STDDEVS[name]),
            "bias_initializer": keras.initializers.Constant(seed_cnn.BIASES[name]),
        }

    # Keras adds the sum of squares, TensorFlow's l2_loss half of it.
    decay = keras.regularizers.L2(seed_cnn.DECAY / 2)
    model = keras.Sequential([
        keras.Input((24, 24, 3)),
        keras.layers.Conv2D(64, 5, padding="same", activation="relu", **filled("conv1")),
        keras.layers.MaxPooling2D(3, strides=2, padding="same"),
        keras.layers.Lambda(seed_cnn.normalise),
        keras.layers.Conv2D(64, 5, padding="same", activation="relu", **filled("conv2")),
        keras.layers.Lambda(seed_cnn.normalise),
        keras.layers.MaxPooling2D(3, strides=2, padding="same"),
        keras.layers.Flatten(),
        keras.layers.Dense(384, activation="relu", kernel_regularizer=decay, **filled("local3")),
        keras.layers.Dense(192, activation="relu", kernel_regularizer=decay, **filled("local4")),
        keras.layers.Dense(10, **filled("softmax")),
    ])  # fmt: skip
    assert model.count_params() == 1_068_298
    model.compile(
        optimizer=keras.optimizers.SGD(LEARNING_RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    dataset = tf.data.Dataset.from_tensors(synthetic_batch(0)).repeat()
    model.fit(dataset, steps_per_epoch=arguments.warmup, verbose=0)
    start = time.perf_counter()
    history = model.fit(dataset, steps_per_epoch=arguments.steps, verbose=0)
    rate = arguments.steps / (time.perf_counter() - start)
    report(rate * BATCH, history.history["loss"][-1], [memory_mib()])


if __name__ == "__main__":
    main()
