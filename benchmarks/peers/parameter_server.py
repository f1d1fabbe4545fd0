"""TensorFlow's ParameterServerStrategy as its guide writes it: one server, two workers.

    python benchmarks/peers/parameter_server.py

After tensorflow.org/tutorials/distribute/parameter_server_training: a coordinator schedules steps
on workers that read and update the server's variables with no order between them. Each task is a
process; the coordinator starts the others.
"""

import argparse
import os

from measure import BATCH, memory_mib, parser, report, synthetic_batch, train
from tf_cluster import local_cluster, start_task, tf_config

WORKERS = 2


def main() -> None:
    """Runs the task that TF_CONFIG names, or else all of them, this one being the coordinator."""
    arguments = parser(__doc__).parse_args()
    if "TF_CONFIG" in os.environ:
        serve()
        return
    cluster = local_cluster({"chief": 1, "ps": 1, "worker": WORKERS})
    tasks = [("ps", 0), *(("worker", index) for index in range(WORKERS))]
    os.environ["TF_CONFIG"] = tf_config(cluster, "chief", 0)
    servers = [start_task(cluster, job, index) for job, index in tasks]
    try:
        rate, loss = coordinate(arguments)
        memory = [memory_mib(server.pid) for server in servers]
    finally:
        # They serve until they are killed.
        for server in servers:
            server.kill()
            server.wait()
    report(rate * BATCH * WORKERS, loss, memory)


def serve() -> None:
    """Serves as the parameter server or as a worker, for ever."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    # As the guide does: a worker whose peer isn't up yet waits for it.
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()


def coordinate(arguments: argparse.Namespace) -> tuple[float, float]:
    """Trains; returns the steps a second of each worker, and a worker's last loss."""
    import seed_cnn
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        named = seed_cnn.build()
    variables = list(named.values())

    @tf.function
    def dataset_fn() -> tf.data.Dataset:
        # The workers share one batch: whose turn it is has no place in this function.
        return tf.data.Dataset.from_tensors(synthetic_batch(0)).repeat()

    @tf.function
    def step_fn(iterator: tf.data.Iterator) -> tf.Tensor:
        def replica_fn(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = seed_cnn.loss(named, images, labels)
            seed_cnn.descend(variables, tape.gradient(loss, variables))
            return loss

        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    def round_of_steps(count: int) -> object:
        for _ in range(count * WORKERS):
            last = coordinator.schedule(step_fn, args=(iterator,))
        coordinator.join()
        return last

    # Steps are only scheduled one by one: what is timed is all of them, to the end of the last.
    round_of_steps(arguments.warmup)
    once = argparse.Namespace(warmup=0, steps=1)
    rate, last = train(lambda: round_of_steps(arguments.steps), once)
    return rate * arguments.steps, float(last.fetch())


if __name__ == "__main__":
    main()
