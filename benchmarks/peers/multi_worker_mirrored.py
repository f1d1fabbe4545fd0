"""TensorFlow's MultiWorkerMirroredStrategy as its guide to custom training loops writes it.

    python benchmarks/peers/multi_worker_mirrored.py

After tensorflow.org/tutorials/distribute/multi_worker_with_ctl: two workers, each a process that
TF_CONFIG tells its place. Without TF_CONFIG this process is worker 0 and starts worker 1.
"""

import argparse
import os

from measure import BATCH, memory_mib, parser, report, synthetic_batch, train
from tf_cluster import local_cluster, start_task, tf_config


def main() -> None:
    """Runs both workers."""
    arguments = parser(__doc__).parse_args()
    if "TF_CONFIG" in os.environ:
        run_worker(arguments)
        return
    cluster = local_cluster({"worker": 2})
    other = start_task(cluster, "worker", 1)
    os.environ["TF_CONFIG"] = tf_config(cluster, "worker", 0)
    try:
        run_worker(arguments)
        other.wait()
    finally:
        other.kill()


def run_worker(arguments: argparse.Namespace) -> None:
    """Trains, and prints the rate of all workers on worker 0."""
    import seed_cnn
    import tensorflow as tf

    # The first of all: it starts the worker's server.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    index = strategy.cluster_resolver.task_id
    with strategy.scope():
        named = seed_cnn.build()
        # Of TensorFlow itself, and takes plain variables; it sums the gradients of all replicas.
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(seed_cnn.LEARNING_RATE)
    variables = list(named.values())
    replicas = strategy.num_replicas_in_sync

    def step_fn(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = seed_cnn.loss(named, images, labels) / replicas
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    images, labels = map(tf.constant, synthetic_batch(index))

    @tf.function
    def train_step() -> tf.Tensor:
        losses = strategy.run(step_fn, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    rate, loss = train(train_step, arguments)
    if index == 0:
        report(rate * BATCH * replicas, float(loss), [memory_mib()])


if __name__ == "__main__":
    main()
